"""The inhibitor is a program of the system that ends with the block or with our process; fake ones on PATH play it."""

import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from orchestrator.api.session import sleep_inhibitor
from orchestrator.api.session.sleep_inhibitor import about_sleep, inhibit_sleep
from tests.forked import Child
from tests.waiting import HANG_S, has_ended, ran, until

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="plays systemd-inhibit")
GRANTED = 'while [ "$1" != sh ]; do shift; done; exec "$@"'


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleep_inhibitor, "ANSWER_S", HANG_S)


def put(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = directory / "systemd-inhibit"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def test_without_such_a_program_nothing_is_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with inhibit_sleep("why") as inhibited:
        assert inhibited is False


LID, SLEEP = "you close the lid", "this machine sleeps"


@pytest.mark.parametrize("scope", ["", "System", "Device"])
@pytest.mark.parametrize(("terminal", "inhibited"), [(True, True), (True, False), (False, True), (False, False)])
def test_what_closing_the_lid_does_is_said_where_there_is_one_and_somebody_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str, terminal: bool, inhibited: bool
) -> None:
    """A mouse has a battery of scope Device."""
    for name, value in {"AC/type": "Mains", "BAT/type": "Battery", **({"BAT/scope": scope} if scope else {})}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{value}\n")
    monkeypatch.setattr(sleep_inhibitor, "POWER", tmp_path)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    what = LID if terminal and scope != "Device" else None if inhibited else SLEEP
    text = about_sleep(inhibited=inhibited, ttl_s=900.0, else_do="!")
    assert text == (what and f"if {what} for longer than 15 m, the slice is deleted!")


@pytest.mark.parametrize("script", ["exit 1", "sleep 0.3; echo Access denied >&2; exit 1"], ids=["at once", "late"])
def test_a_refusal_is_not_taken_for_a_promise(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, script, monkeypatch)
    with inhibit_sleep("why") as inhibited:
        assert inhibited is False


def test_one_that_never_answers_promises_nothing_and_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 600", monkeypatch)
    monkeypatch.setattr(sleep_inhibitor, "ANSWER_S", 0.5)
    with inhibit_sleep("why") as inhibited:
        assert inhibited is False
    assert not (tmp_path / "pid").exists() or has_ended(int((tmp_path / "pid").read_text() or "0"))


def test_the_inhibitor_ends_with_the_process_that_wanted_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, f"echo $$ > {tmp_path}/pid; {GRANTED}", monkeypatch)
    code = "from orchestrator.api.session import sleep_inhibitor; import os; sleep_inhibitor.ANSWER_S = 180; "
    code += "print(sleep_inhibitor.inhibit_sleep('why').__enter__(), flush=True); os._exit(9)"
    done = ran([sys.executable, "-c", code])
    assert done.stdout.strip() == "True"
    pid = int((tmp_path / "pid").read_text())
    until(lambda: has_ended(pid), "the end of the inhibitor")


def test_the_inhibitor_ends_with_its_process_though_forked_children_of_that_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, f"echo $$ > {tmp_path}/pid; {GRANTED}", monkeypatch)

    def inhibit() -> bool:
        held.append(inhibit_sleep("why"))
        return held[0].__enter__()

    held: list[AbstractContextManager[bool]] = []
    with Child(inhibit, then=lambda: Child(lambda: "alive").keep()) as parent:
        assert parent.said == "True" and parent.grandchild
        pid = int((tmp_path / "pid").read_text())
        parent.kill()
        until(lambda: has_ended(pid), "the end of the inhibitor")
        os.kill(parent.grandchild, 0)


def test_the_inhibitor_ends_with_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, f"echo $$ > {tmp_path}/pid; {GRANTED}", monkeypatch)
    with inhibit_sleep("why") as inhibited:
        assert inhibited is True
        pid = int((tmp_path / "pid").read_text())
        assert not has_ended(pid)
    assert has_ended(pid)
