"""`tpujob notify` and what `doctor` says: who is told, what came back, what waits, and who else can read the address."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.api.guarantee import telling
from orchestrator.api.session.session import Session
from orchestrator.errors import ConfigError, TpujobError, UserError
from orchestrator.notify.messages import Message
from orchestrator.notify.outbox import Outbox
from tests.cli_fixture import CI_MARKS
from tests.fakes.api import StubApi, StubReply


class Home:
    """A user whose settings a test writes."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings = path / "config" / "tpujob" / "settings.yaml"
        self.settings.parent.mkdir(parents=True)
        self.job = path / "job.yaml"
        for name in CI_MARKS:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(path / "config"))
        monkeypatch.setenv("TPUJOB_STATE_DIR", str(path / "state"))
        monkeypatch.setenv("TPUJOB_CLOUD", "emulated")

    def write(self, text: str, mode: int = 0o600) -> None:
        self.settings.write_text(text)
        self.settings.chmod(mode)

    def send(self, job: str | None = None) -> str:
        if job is not None:
            self.job.write_text(f"command: ls\n{job}")
        with closing(Session.open(light=True)) as session:
            session.notifier.wake = lambda: None  # type: ignore[method-assign]
            return telling.send_test(session, None if job is None else self.job)

    def check(self) -> tuple[bool | None, str, str | None] | None:
        with closing(Session.open(light=True)) as session:
            found = telling.check(session)
        return None if found is None else (found.live, found.text, found.fix)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    yield Home(tmp_path, monkeypatch)


def test_a_test_message_says_what_came_back(home: Home, stub: StubApi) -> None:
    stub.answers(StubReply(200), StubReply(404, "no_team"))
    home.write(f"notify: {stub.url}/s3cr3t\n")
    assert home.send() == "127.0.0.1 answered 200"
    shape = json.loads(stub.asked[0].body)
    assert "says hello" in shape["text"] and shape["tpujob"]["messages"][0]["event"] == "test"
    with pytest.raises(TpujobError, match="answered 404: no_team"):
        home.send()


def test_a_job_file_has_its_own_receiver_or_that_of_the_settings(
    home: Home, stub: StubApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.answers(StubReply(200))
    home.write(f"notify: {stub.url}/settings\n")
    monkeypatch.setenv("HOOK", f"{stub.url}/job")
    for job in ("notify: ${env:HOOK}\n", "notify: {on: [ended]}\n", ""):
        home.send(job)
    assert [asked.path for asked in stub.asked] == ["/job", "/settings", "/settings"]
    with pytest.raises(UserError, match="nobody is told"):
        home.send("notify: off\n")


def test_without_a_receiver_there_is_nothing_to_try(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("", "notify: off\n"):
        home.write(text)
        with pytest.raises(UserError, match="the settings have no `notify:`"):
            home.send()
    home.write("notify: ${env:HOOK}\n")
    monkeypatch.delenv("HOOK", raising=False)
    with pytest.raises(ConfigError, match="the variable HOOK"):
        home.send()


def test_doctor_says_who_is_told_what_waits_and_who_else_can_read_the_address(home: Home, tmp_path: Path) -> None:
    assert home.check() is None
    home.write("notify: https://hooks.example.com/s3cr3t\n")
    assert home.check() == (True, "hooks.example.com: `tpujob notify` sends a test message", None)
    home.write("notify: https://hooks.example.com/s3cr3t\n", 0o644)
    live, text, fix = home.check() or (None, "", "")
    assert live is False and "other users can read the address" in text and fix == f"chmod 600 {home.settings}"
    home.write("notify: ${env:HOOK}\n", 0o644)
    assert (home.check() or (None,))[0] is True
    box = Outbox(tmp_path / "state")
    box.make(0)
    box.put([("settings", Message(f"r{number}", "ended", 1.0, "x")) for number in range(3)], time.time())
    box.failed(["r0", "r1"], time.time(), "hooks.example.com answered 503")
    box.failed(["r2"], time.time(), "hooks.example.com answered 404", final=True)
    live, text, _ = home.check() or (None, "", "")
    wanted = (
        "2 messages waiting: hooks.example.com answered 503; 1 message not delivered: hooks.example.com answered 404"
    )
    assert (live, text) == (False, wanted)
    box.path.write_bytes(b"no database" * 1000)
    live, text, _ = home.check() or (None, "", "")
    assert live is False and "cannot be read" in text
    assert "s3cr3t" not in text
