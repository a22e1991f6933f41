"""The effects of the watchdog: metadata, API, files and processes. Each has a timeout and raises no exception."""

import fcntl
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.promise import watchdog
from orchestrator.promise.watchdog import Vm
from tests.contract.hosts.scripted_relay import certificate
from tests.fakes.api import Request, StubApi, StubReply, stub_api
from tests.unit.vm.conftest import Worker
from tests.unit.vm.watchdog_world import config
from tests.waiting import HANG_S, held_port, until

TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"
Reply = tuple[int, Any]


class Server:
    """Answers by `replies`, and any other path with 404."""

    def __init__(self, stub: StubApi) -> None:
        self.replies: dict[str, Callable[[], Reply]] = {}
        self.drip_s = 0.0  # between two bytes of what the API says
        self.stub, self.address = stub, stub.url.partition("://")[2]
        stub.answer_with = self._answer

    def _answer(self, asked: Request) -> StubReply:
        status, value = self.replies.get(asked.path, lambda: (404, {}))()
        return StubReply(status, value, drip_s=self.drip_s if asked.path.startswith("/v2/") else 0.0)

    @property
    def seen(self) -> list[tuple[str, str, str | None, bytes]]:
        """The requests as (method, path, Authorization or Metadata-Flavor, body)."""
        said = [each.headers.get("authorization") or each.headers.get("metadata-flavor") for each in self.stub.asked]
        return [(each.method, each.path, by, each.body) for each, by in zip(self.stub.asked, said, strict=True)]

    def asked(self, path: str) -> int:
        return sum(path == each.path for each in self.stub.asked)


@pytest.fixture
def server(stub: StubApi) -> Server:
    made, tokens = Server(stub), iter(range(1, 100))
    made.replies[TOKEN] = lambda: (200, {"access_token": f"t{next(tokens)}", "expires_in": 3600})
    return made


@pytest.fixture
def vm(server: Server, worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vm]:
    """An emulated VM, with the test's own process as the watchdog."""
    (tmp_path / "run").mkdir()
    for name, value in {
        "TPUJOB_WATCHDOG_DIR": str(tmp_path / "run"),
        "TPUJOB_TPU_API": f"http://{server.address}",
        "GCE_METADATA_HOST": server.address,
        "HOME": str(worker.home),
    }.items():
        monkeypatch.setenv(name, value)
    alarm = watchdog.signal.getsignal(watchdog.signal.SIGALRM)
    made = Vm(config())
    made.timeout_s = HANG_S  # how long it waits for an answer is one test's matter
    yield made
    watchdog.signal.signal(watchdog.signal.SIGALRM, alarm)
    sys.modules["ssl"] = ssl


def test_a_call_carries_the_vms_token_and_returns_the_servers_time(vm: Vm, server: Server) -> None:
    server.replies["/v2/n"] = lambda: (200, {"name": "n"})
    before = int(time.time())
    status, said, now = vm.perform(("call", "GET", "/v2/n", None))
    assert (status, said) == (200, {"name": "n"})
    assert before <= now <= time.time()
    assert vm.perform(("call", "DELETE", "/v2/n", None))[0] == 200
    assert [seen[:3] for seen in server.seen] == [
        ("GET", TOKEN, "Google"),
        ("GET", "/v2/n", "Bearer t1"),
        ("DELETE", "/v2/n", "Bearer t1"),
    ]


@pytest.mark.parametrize(("heartbeat_s", "timeout_s"), [(60.0, 15.0), (20.0, 5.0), (2.0, 2.0), (600.0, 15.0)])
def test_an_effect_may_take_twice_a_quarter_of_a_heartbeat_within_bounds(
    vm: Vm, monkeypatch: pytest.MonkeyPatch, heartbeat_s: float, timeout_s: float
) -> None:
    alarms: list[float] = []
    monkeypatch.setattr(watchdog.signal, "setitimer", lambda which, seconds: alarms.append(seconds))
    made = Vm(config(heartbeat_s=heartbeat_s))
    assert made.timeout_s == timeout_s and made.perform(("clock",)) > 0
    assert alarms == [2 * timeout_s, 0], "and none rings later"


def test_a_pause_has_no_timeout_and_a_failure_is_logged_once_but_for_calls(
    vm: Vm, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(**{**vars(time), "sleep": slept.append}))  # its own alone
    assert vm.perform(("sleep", 7.0)) is None and slept == [7.0]

    def fails(*_: object) -> None:
        raise OSError("no such device")

    for name in ("busy", "call"):
        monkeypatch.setattr(vm, name, fails)
    assert vm.perform(("busy",)) is True and vm.perform(("busy",)) is True, "unseen is not idle"
    assert vm.perform(("call", "GET", "/v2/n", None)) == (0, None, None)
    out = capfd.readouterr().out
    assert out.count("busy failed: OSError: no such device") == 1 and "call failed" not in out
    monkeypatch.setattr(vm, "heartbeat", fails)
    vm.perform(("heartbeat",))
    vm.perform(("busy",))
    out = capfd.readouterr().out
    assert out.count("busy failed") == 1 and out.count("heartbeat failed") == 1


def test_a_body_is_sent_as_json_and_only_where_there_is_one(vm: Vm, server: Server) -> None:
    for body in (None, {"a": 1}):
        vm.perform(("call", "DELETE", "/v2/n", body))
    assert [sent for method, _, _, sent in server.seen if method == "DELETE"] == [b"", b'{"a": 1}']


def test_a_refused_token_is_fetched_again_once(vm: Vm, server: Server) -> None:
    answers: Iterator[tuple[int, dict[str, str]]] = iter([(401, {}), (200, {}), (401, {}), (401, {})])
    server.replies["/v2/n"] = lambda: next(answers)
    assert vm.perform(("call", "GET", "/v2/n", None))[0] == 200
    assert vm.perform(("call", "GET", "/v2/n", None))[0] == 401
    assert server.asked(TOKEN) == 3


def test_a_token_is_fetched_again_before_it_expires(vm: Vm, server: Server) -> None:
    server.replies[TOKEN] = lambda: (200, {"access_token": "short", "expires_in": 59})
    vm.perform(("call", "GET", "/v2/n", None))
    vm.perform(("call", "GET", "/v2/n", None))
    assert server.asked(TOKEN) == 2


@pytest.mark.parametrize("token", [(500, {}), (404, {}), (200, b"<html>"), (200, {"x": 1}), (200, [])])
def test_without_a_token_there_is_no_answer(vm: Vm, server: Server, token: Reply) -> None:
    server.replies[TOKEN] = lambda: token
    assert vm.perform(("call", "GET", "/v2/n", None)) == (0, None, None)
    assert server.asked("/v2/n") == 0


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff\xfe", b'{"a":', b"[" * 100_000])
def test_a_reply_that_is_not_json_is_an_answer_without_content(vm: Vm, server: Server, body: bytes) -> None:
    server.replies["/v2/n"] = lambda: (502, body)
    status, said, now = vm.perform(("call", "GET", "/v2/n", None))
    assert (status, said) == (502, None)
    assert now is not None


def test_a_refused_connection_is_no_reply(vm: Vm, monkeypatch: pytest.MonkeyPatch) -> None:
    with held_port() as closed:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{closed}")
        lost = Vm(config())
        assert lost.perform(("call", "GET", "/v2/n", None)) == (0, None, None)
        assert lost.perform(("publish", "watchdog", {})) is False


def test_a_server_that_drips_does_not_block_the_watchdog(vm: Vm, server: Server) -> None:
    """Each byte arrives within the timeout, the whole reply does not."""
    server.drip_s = 0.05
    server.replies["/v2/n"] = lambda: (200, b" " * 1000)
    vm.timeout_s = 0.2
    assert vm.perform(("call", "GET", "/v2/n", None)) == (0, None, None), "a client that waits for the whole gets a 200"


def test_what_it_publishes_is_one_guest_attribute(vm: Vm, server: Server) -> None:
    path = "/computeMetadata/v1/instance/guest-attributes/tpujob/watchdog"
    server.replies[path] = lambda: (200, b"")
    assert vm.perform(("publish", "watchdog", {"armed": True})) is True
    assert server.seen == [("PUT", path, "Google", b'{"armed": true}')]


def test_the_worker_index_is_from_the_metadata_server_or_the_host_name(
    vm: Vm, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.replies["/computeMetadata/v1/instance/attributes/agent-worker-number"] = lambda: (200, b"3\n")
    assert vm.perform(("worker",)) == 3
    server.replies.clear()
    fields = ("Linux", "t1v-n-0a1b2c3d-w-7", "6", "1", "x86_64")
    monkeypatch.setattr(watchdog.os, "uname", lambda: os.uname_result(fields))
    assert vm.perform(("worker",)) == 7
    monkeypatch.setattr(watchdog.os, "uname", lambda: os.uname_result(("Linux", "somehost", "6", "1", "x86_64")))
    assert vm.perform(("worker",)) == 1
    server.replies["/computeMetadata/v1/instance/attributes/agent-worker-number"] = lambda: (503, b"")
    assert vm.perform(("worker",)) is None


def test_the_heartbeat_is_the_file_that_the_agents_verb_writes(vm: Vm, worker: Worker) -> None:
    assert vm.perform(("heartbeat",)) is None
    worker.env["TPUJOB_WATCHDOG_DIR"] = vm.directory
    process = worker.popen("heartbeat")
    assert process.stdin and process.stdout
    process.stdin.write(b"one\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline().removeprefix(b"tpujob:")) == {"heartbeat": vm.directory}
    assert vm.perform(("heartbeat",)) == "one"
    process.stdin.write(b"two\n")
    process.stdin.flush()
    until(lambda: vm.perform(("heartbeat",)) == "two")
    assert process.communicate(timeout=HANG_S)[0] == b""
    assert process.returncode == 0
    assert [path.name for path in Path(vm.directory).iterdir()] == ["heartbeat"]


def test_a_heartbeat_that_cannot_be_written_is_an_error(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    worker.env["TPUJOB_WATCHDOG_DIR"] = str(tmp_path / "file")
    assert "error" in worker.ask("heartbeat", stdin=b"one\n")


def test_a_fifo_or_a_link_in_place_of_the_heartbeat_neither_blocks_nor_is_followed(vm: Vm, tmp_path: Path) -> None:
    os.mkfifo(f"{vm.directory}/heartbeat")
    assert vm.perform(("heartbeat",)) in (None, "")
    beat = Path(vm.directory, "heartbeat")
    beat.unlink()
    (tmp_path / "secret").write_text("x")
    beat.symlink_to(tmp_path / "secret")
    assert vm.perform(("heartbeat",)) is None


def test_the_real_api_is_asked_over_tls_and_believed_only_with_a_certificate(
    vm: Vm, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, public = certificate(tmp_path, "localhost")
    with stub_api(context) as secure:
        secure.answers(StubReply(200, {"name": "n"}))
        vm.api = secure.url.replace("127.0.0.1", "localhost")
        assert vm.perform(("call", "GET", "/v2/n", None)) == (0, None, None)
        monkeypatch.setenv("SSL_CERT_FILE", str(public))
        assert vm.perform(("call", "GET", "/v2/n", None))[:2] == (200, {"name": "n"})


@pytest.mark.parametrize(("url", "loaded"), [("http://127.0.0.1:1", None), ("https://tpu.googleapis.com", ssl)])
def test_only_an_api_over_tls_costs_the_memory_of_it(
    vm: Vm, monkeypatch: pytest.MonkeyPatch, url: str, loaded: object
) -> None:
    monkeypatch.setitem(sys.modules, "ssl", ssl)
    monkeypatch.setenv("TPUJOB_TPU_API", url)
    Vm(config())
    assert sys.modules["ssl"] is loaded


# -- the job --


def test_the_job_is_seen_from_its_start_to_its_end(vm: Vm, worker: Worker) -> None:
    assert vm.perform(("job",)) == ("none", None, None)
    worker.start("sleep 60", phase="setup")
    assert vm.perform(("job",)) == ("none", None, None)
    worker.start("sleep 60")
    assert vm.perform(("job",)) == ("running", None, None)
    worker.ask("stop", "a1", "setup", "0")
    assert vm.perform(("job",)) == ("running", None, None)
    before = vm.clock()
    worker.ask("stop", "a1", "main", "0")
    state, ago_s, rc = vm.perform(("job",))
    assert (state, rc) == ("ended", 143)
    assert 0 <= ago_s <= vm.clock() - before


def test_the_newest_job_counts_and_its_exit_code(vm: Vm, worker: Worker) -> None:
    worker.start("exit 3", attempt="old")
    until(lambda: worker.status("old")["state"] == "exited")
    assert vm.perform(("job",))[2] == 3
    worker.start("exit 0", attempt="anew")
    until(lambda: worker.status("anew")["state"] == "exited")
    assert vm.perform(("job",))[2] == 0
    worker.start("sleep 60", attempt="b")
    assert vm.perform(("job",)) == ("running", None, None)
    worker.ask("stop", "b", "main", "0")


def test_the_time_since_a_job_ended_is_of_the_monotonic_clock(vm: Vm, worker: Worker) -> None:
    main = worker.home / "tpujob/runs/a1/main"
    main.mkdir(parents=True)
    (main / "lock").touch()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    ended: dict[str, Any] = {"ended_at": 0.0, "ended_boot_s": vm.clock() - 60.0, "boot": boot, "rc": 0}
    (main / "exit.json").write_text(json.dumps(ended))
    state, ago_s, rc = vm.perform(("job",))
    assert (state, rc) == ("ended", 0)
    assert ago_s is not None
    assert 60.0 <= ago_s <= vm.clock() - ended["ended_boot_s"]
    (main / "exit.json").write_text(json.dumps({**ended, "boot": "another"}))
    assert vm.perform(("job",)) == ("ended", None, 0), "this VM restarted: the time is unknown"


def test_a_job_whose_supervisor_was_killed_has_ended_without_a_code(vm: Vm, worker: Worker) -> None:
    worker.start("sleep 60")
    for process in worker.supervisors():
        process.kill()
        process.wait()
    assert vm.perform(("job",)) == ("ended", None, None)
    worker.ask("stop", "a1", "main", "0")


def test_a_job_that_left_no_code_has_ended_only_if_it_had_started(vm: Vm, worker: Worker) -> None:
    main = worker.home / "tpujob/runs/a1/main"
    main.mkdir(parents=True)
    (main / "lock").touch()
    (main / "exit.json").mkdir()  # a directory in its place says nothing, as no file does
    assert vm.perform(("job",)) == ("none", None, None)
    (main / "started.json").touch()
    assert vm.perform(("job",)) == ("ended", None, None)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"ended_boot_s": "x"}', '{"ended_boot_s": null, "rc": 0}', "["])
def test_malformed_files_of_the_job_end_nothing(vm: Vm, worker: Worker, text: str) -> None:
    main = worker.home / "tpujob/runs/a1/main"
    main.mkdir(parents=True)
    (main / "exit.json").write_text(text)
    lock = os.open(main / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert vm.perform(("job",)) == ("running", None, None)
    os.close(lock)


def report(vm: Vm, *, metrics: bool = False) -> Any:
    vm.perform(("job",))
    return vm.perform(("report", metrics))


def test_the_attempt_of_the_newest_job_is_reported_with_its_state(vm: Vm, worker: Worker) -> None:
    assert report(vm) == (None, {})
    worker.start("exit 3", attempt="r-1")
    until(lambda: worker.status("r-1")["state"] == "exited")
    assert report(vm) == ({"attempt": "r-1", "state": "ended", "rc": 3}, {})
    (worker.home / "tpujob/runs/r-2/setup").mkdir(parents=True)
    assert report(vm)[0]["attempt"] == "r-1"
    script = """echo '{"loss": 0.5, "step": 7}' >> "$TPUJOB_ARTIFACTS/metrics.jsonl"; echo on; sleep 60"""
    worker.start(script, attempt="r-2")
    running = {"attempt": "r-2", "state": "running", "rc": None}
    until(lambda: report(vm, metrics=True) == (running, {"step": 7, "loss": 0.5}))
    assert report(vm) == (running, {}), "only where it is asked for"
    worker.ask("stop", "r-2", "main", "0")
    assert report(vm)[0] == {"attempt": "r-2", "state": "ended", "rc": 143}


@pytest.fixture
def main(worker: Worker) -> Iterator[Path]:
    """The directory of a job that runs."""
    made = worker.home / "tpujob/runs/a1/main"
    made.mkdir(parents=True)
    (worker.home / "tpujob/runs/a1/artifacts").mkdir()
    lock = os.open(made / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield made
    os.close(lock)


@pytest.mark.parametrize("rc", [256, -1, "0", [], 10**999])
def test_an_exit_code_that_is_none_is_not_reported(vm: Vm, main: Path, rc: object) -> None:
    boot = {"ended_boot_s": 0.0, "boot": "another"}
    (main / "exit.json").write_text(json.dumps({**boot, "rc": 255}))
    assert report(vm)[0]["rc"] == 255
    (main / "exit.json").write_text(json.dumps({**boot, "rc": rc}))
    assert report(vm)[0] == {"attempt": "a1", "state": "ended", "rc": None}


def test_a_job_that_cannot_be_judged_runs_as_the_watchdog_takes_it(vm: Vm, main: Path) -> None:
    (main / "exit.json").write_text("{}")
    assert report(vm)[0] == {"attempt": "a1", "state": "running", "rc": None}


NAME, LONG = "n" * 40, "n" * 41
MANY = {f"m{number:02}": number for number in range(12)}
WIDE = {f"m{number:02}": "x" * 40 for number in range(11)}  # 561 characters as JSON

Line = tuple[str, dict[str, Any]]


@pytest.mark.parametrize(("text", "found"), [
    ('{"a": 1}\n{"b": 2}\n', {"b": 2}),
    ('{"a": 1}\n{"b": 2}', {"a": 1}),
    ('{"a": 1}', {}),
    ("", {}),
    ('{"a": 1}\n\n', {}),
    ('{"a": 1}\n[1]\n', {}),
    ("[" * 4000 + "\n", {}),
    ('{"a": NaN, "b": -Infinity, "c": 1e999, "d": true, "e": null, "f": [1], "g": {}, "h": -0.5}\n', {"h": -0.5}),
    ('{"a": -1.7976931348623157e308}\n', {"a": -sys.float_info.max}),
    ('{"a": 1%s, "b": 2}\n' % ("0" * 400), {"b": 2}),
    (json.dumps({NAME: NAME, LONG: 1, "a": LONG}) + "\n", {NAME: NAME}),
    (json.dumps({**MANY, "n": 1}) + "\n", MANY),
    (json.dumps({**MANY, "step": 9}) + "\n", {"step": 9, **{name: MANY[name] for name in [*MANY][:11]}}),
    (json.dumps(WIDE) + "\n", WIDE),
    (json.dumps({**WIDE, "m11": "x" * 28}) + "\n", {**WIDE, "m11": "x" * 28}),
    (json.dumps({**WIDE, "m11": "x" * 29}) + "\n", {}),
    ('{"a": 1, "b": "%s"}\n' % ("x" * (4096 - 18)), {"a": 1}),
    ('{"a": 1, "b": "%s"}\n' % ("x" * (4096 - 17)), {}),
    ("x" * 99_999 + '\n{"a": 1}\n', {"a": 1}),
    ("\udcff{\n", {}),
])  # fmt: skip
def test_metrics_are_few_short_values_of_the_last_complete_line(
    vm: Vm, main: Path, text: str, found: dict[str, Any]
) -> None:
    (main.parent / "artifacts/metrics.jsonl").write_bytes(text.encode(errors="surrogateescape"))
    assert report(vm, metrics=True)[1] == found


def test_what_is_no_file_of_its_own_has_no_metrics_and_neither_blocks_nor_stays_open(
    vm: Vm, main: Path, tmp_path: Path
) -> None:
    line = main.parent / "artifacts/metrics.jsonl"
    (tmp_path / "metrics.jsonl").write_text('{"secret": 1}\n')
    job, files = report(vm)[0], {*Path("/proc/self/fd").iterdir()}
    for put in (lambda: None, line.mkdir, lambda: os.mkfifo(line), lambda: line.symlink_to(tmp_path / line.name)):
        put()
        assert report(vm, metrics=True) == (job, {})
        if line.is_dir():
            line.rmdir()
        else:
            line.unlink(missing_ok=True)
    line.parent.rmdir()
    line.parent.symlink_to(tmp_path)
    assert report(vm, metrics=True) == (job, {}), "what hangs behind a link must not hang the watchdog"
    assert {*Path("/proc/self/fd").iterdir()} == files


# -- the notice --


@pytest.mark.parametrize(("reply", "said"), [
    ((200, b"TRUE"), True), ((200, b"true\n"), True), ((200, b"FALSE"), False), ((404, b""), False),
    ((503, b""), False),
])  # fmt: skip
def test_a_notice_is_the_exact_text_of_the_metadata_server(vm: Vm, server: Server, reply: Reply, said: bool) -> None:
    server.replies["/computeMetadata/v1/instance/preempted"] = lambda: reply
    assert vm.perform(("preempted",)) is said


def test_a_running_job_gets_a_stop_request_and_its_grace(vm: Vm, worker: Worker) -> None:
    script = "trap 'echo saved; exit 9' TERM; echo on; while :; do sleep 0.05; done"
    worker.start("sleep 60", phase="setup")
    worker.start(script)
    until(lambda: "on" in worker.log())
    assert vm.perform(("stop", 30.0)) is True
    ended = worker.ended()
    assert (ended["rc"], ended["stopped"], "saved" in worker.log()) == (9, True, True)
    assert worker.status(phase="setup")["state"] == "running"
    assert vm.perform(("stop", 30.0)) is True, "there is nothing left to stop"
    worker.ask("stop", "a1", "setup", "0")
    assert [path.name for path in worker.path("main").glob(".stop*")] == []


def test_nothing_to_stop_is_no_failure_and_a_stop_that_was_asked_for_stays(vm: Vm, worker: Worker) -> None:
    assert vm.perform(("stop", 30.0)) is True
    main = worker.home / "tpujob/runs/a1/main"
    main.mkdir(parents=True)
    (main / "lock").touch()
    assert vm.perform(("stop", 30.0)) is True
    assert not (main / "stop.json").exists(), "the lock is free: nothing runs"
    with (main / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (main / ".stop.watchdog").write_text("of a watchdog that was killed here")
        files = {*Path("/proc/self/fd").iterdir()}
        assert vm.perform(("stop", 30.0)) is True
        assert json.loads((main / "stop.json").read_text()) == {"grace_s": 30.0}
        assert (main / "stop.json").stat().st_mode & 0o777 == 0o644, "for the job's user to read"
        (main / "stop.json").write_text('{"grace_s": 1.0}')
        assert vm.perform(("stop", 30.0)) is True
        assert json.loads((main / "stop.json").read_text()) == {"grace_s": 1.0}
        assert {*Path("/proc/self/fd").iterdir()} == files, "it runs for days: no file stays open"


def test_the_watchdog_follows_no_link_in_place_of_a_phase(vm: Vm, worker: Worker, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    lock = os.open(elsewhere / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    run = worker.home / "tpujob/runs/a1"
    run.mkdir(parents=True)
    (run / "main").symlink_to(elsewhere)
    assert vm.perform(("stop", 30.0)) is False
    assert [path.name for path in elsewhere.iterdir()] == ["lock"]
    os.close(lock)


# -- logins --


def test_a_process_that_was_started_over_ssh_is_a_login(vm: Vm, tmp_path: Path) -> None:
    def sleeper(**environment: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "60"], env=environment)

    others = [
        sleeper(SSH_CONNECTION="a", TPUJOB_WATCHDOG_DIR=f"{tmp_path}/run2"),
        sleeper(TPUJOB_WATCHDOG_DIR=vm.directory, NOT_SSH_CONNECTION="a"),
    ]
    assert vm.perform(("busy",)) is False
    login = sleeper(SSH_CONNECTION="127.0.0.1 1 127.0.0.1 2", TPUJOB_WATCHDOG_DIR=vm.directory)
    until(lambda: vm.perform(("busy",)))
    for process in (*others, login):
        process.kill()
        process.wait()
    assert vm.perform(("busy",)) is False


# -- as a program --


class Scripted:
    """In place of a `Vm`: it replies in this order, raises what is an exception, and at last SystemExit."""

    def __init__(self, *replies: Any) -> None:
        self.replies, self.asked, self.logged = iter(replies), list[Any](), list[str]()

    def perform(self, effect: Any) -> Any:
        self.asked.append(effect[0])
        reply = next(self.replies, SystemExit())
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def log(self, text: str) -> None:
        self.logged.append(text)


@pytest.fixture
def started_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Scripted], int]:
    def start(scripted: Scripted) -> int:
        monkeypatch.setattr(watchdog, "Vm", lambda config: scripted)
        (tmp_path / "watchdog.json").write_text(json.dumps(config()))
        return watchdog.main(["watchdog.py", str(tmp_path / "watchdog.json")])

    return start


def test_it_waits_for_its_index_and_starts_over_after_an_exception(
    started_with: Callable[[Scripted], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(**{**vars(time), "sleep": slept.append}))  # its own alone
    scripted = Scripted(None, 0, 7.0, ValueError("odd"), 8.0)
    with pytest.raises(SystemExit):
        started_with(scripted)
    assert scripted.asked == ["worker", "worker", "clock", "heartbeat", "clock", "heartbeat"] and slept == [2, 5]
    assert [line.partition(" ")[0] for line in scripted.logged] == ["watching", "starting"]


def test_a_second_one_ends_at_once(started_with: Callable[[Scripted], int], tmp_path: Path) -> None:
    first = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    assert started_with(Scripted()) == 0
    os.close(first)


# -- as a program of its own --


def started(server: Server, place: Path, python: str) -> tuple[dict[str, Any], subprocess.Popen[bytes], list[str]]:
    """Return how it is started, its process, and the first two lines of its log."""
    environment = {"TPUJOB_WATCHDOG_DIR": str(place), "GCE_METADATA_HOST": server.address, "TPUJOB_TPU_API": "http://x"}
    command: dict[str, Any] = {
        "args": [python, "-IS", watchdog.__file__, str(place / "watchdog.json")],
        "env": environment,
    }
    process = subprocess.Popen(**command, stdout=subprocess.PIPE)
    return command, process, [process.stdout.readline().decode() for _ in range(2)]


def ended(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.kill()


def test_it_survives_exceptions_and_only_one_instance_runs(server: Server, tmp_path: Path, python: str) -> None:
    """Its configuration lacks every key that the program needs, so that each start fails at once."""
    (tmp_path / "watchdog.json").write_text(
        json.dumps(
            {"node": "projects/p/locations/z/nodes/n", "heartbeat_s": 60.0, "user": "u", "api": {"url": "http://x"}}
        )
    )
    command, process, lines = started(server, tmp_path, python)
    assert "watching projects/p/locations/z/nodes/n as worker 1" in lines[0]
    assert "starting over after KeyError" in lines[1]
    assert subprocess.run(**command, capture_output=True, timeout=HANG_S, check=False).returncode == 0
    assert process.poll() is None
    ended(process)


@pytest.mark.parametrize("python", ["this python", "python3.10"], indirect=True)
def test_it_waits_until_its_worker_index_is_known(server: Server, tmp_path: Path, python: str) -> None:
    """The metadata server may be late at boot; taken for another worker, the first would judge no beats, for ever."""
    answers = iter([(503, b""), (200, b"0")])
    server.replies["/computeMetadata/v1/instance/attributes/agent-worker-number"] = lambda: next(answers)
    (tmp_path / "watchdog.json").write_text(json.dumps(config()))
    _, process, lines = started(server, tmp_path, python)
    ended(process)
    assert "answered 503" in lines[0]
    assert lines[1].endswith("as worker 0\n")


def test_it_is_small_and_imports_little(server: Server) -> None:
    assert Path(watchdog.__file__).stat().st_size <= 32 << 10
    code = f"""
import runpy, sys
before = set(sys.modules)
vm = runpy.run_path({watchdog.__file__!r})["Vm"]({{"heartbeat_s": 60.0, "user": "u", "api": {{"url": ""}}}})
vm.perform(("publish", "watchdog", {{}}))
heavy = {{"ssl", "_hashlib", "asyncio", "subprocess", "threading", "logging", "pathlib"}}
print(sorted(name for name in heavy & set(sys.modules) - before if sys.modules[name]))
"""
    environment = {"TPUJOB_WATCHDOG_DIR": "/nowhere", "GCE_METADATA_HOST": server.address, "TPUJOB_TPU_API": "http://x"}
    argv = [sys.executable, "-IS", "-c", code]
    said = subprocess.run(argv, capture_output=True, env=environment, timeout=HANG_S, check=True).stdout
    assert said.decode().splitlines()[-1] == "[]"
