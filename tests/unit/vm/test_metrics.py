"""What a worker measures: the tail of a job's metrics.jsonl, and HBM use and duty cycle as libtpu says them."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.hosts.ssh import agent
from orchestrator.text import scripts
from orchestrator.vm.agent import chips, stream
from orchestrator.vm.agent.stream import MetricsTail
from tests.unit.vm.conftest import Worker
from tests.waiting import HANG_S, ran, until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def look(tail: MetricsTail) -> list[bytes]:
    return list(tail.pieces(last=True))


def test_each_look_yields_the_new_complete_lines(path: Path) -> None:
    tail = MetricsTail(str(path), 0)
    assert look(tail) == []
    path.write_bytes(b"1\n2\n3")
    assert look(tail) == [b"", b"1\n2\n"]
    with path.open("ab") as file:
        file.write(b"3\n")
    assert look(tail) == [b"33\n"] and look(tail) == []


def test_it_goes_on_at_a_byte_that_another_process_reached(path: Path) -> None:
    path.write_bytes(b"1\n2\n")
    assert look(MetricsTail(str(path), 2)) == [b"2\n"]


def test_a_file_that_was_truncated_begins_anew(path: Path) -> None:
    tail = MetricsTail(str(path), 0)
    path.write_bytes(b"1\n2\n")
    look(tail)
    path.write_bytes(b"7\n")
    assert look(tail) == [b"", b"7\n"]


def test_a_file_that_was_replaced_begins_anew(path: Path) -> None:
    tail = MetricsTail(str(path), 0)
    path.write_bytes(b"1\n")
    look(tail)
    other = path.with_name("other")
    other.write_bytes(b"7\n8\n9\n")
    other.rename(path)
    assert look(tail) == [b"", b"7\n8\n9\n"]


def test_a_line_without_end_comes_in_pieces(path: Path) -> None:
    path.write_bytes(b"x" * (stream.PIECE_BYTES + 10))
    assert look(MetricsTail(str(path), 0)) == [b"", b"x" * stream.PIECE_BYTES]


def test_one_look_does_not_keep_the_log_waiting(path: Path) -> None:
    path.write_bytes(b"1234567\n" * (stream.LOOK_BYTES // 4))
    tail = MetricsTail(str(path), 0)
    assert sum(map(len, tail.pieces())) == stream.LOOK_BYTES
    assert list(tail.pieces()) == [], "the next look is later"
    assert sum(map(len, look(tail))) == stream.LOOK_BYTES


def test_there_is_an_end_to_what_is_sent_of_a_file_that_is_replaced_all_the_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MOST_BYTES", 100)
    tail, sent = MetricsTail(str(path), 0), 0
    for _ in range(9):
        path.unlink(missing_ok=True)
        path.write_bytes(b"1234567\n" * 5)
        sent += sum(map(len, look(tail)))
    assert sent <= 140


@pytest.mark.parametrize("kind", ["fifo", "directory", "link"])
def test_what_is_no_regular_file_is_left_alone(path: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/etc/hostname")
    assert look(MetricsTail(str(path), 0)) == []


KNOWN = set(chips.NAMES)
GIB = 1 << 30
LOADED = {
    "hbm_capacity_usage": [str(3 * GIB), str(4 * GIB)],
    "hbm_capacity_total": [str(16 * GIB)] * 2,
    "duty_cycle_pct": ["12.35", "24.69"],
}


class Monitoring:
    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers

    def get_metric(self, arg: str, /) -> Any:
        assert arg in KNOWN, "libtpu ends the process that asks for anything else"
        answer = self.answers.get(arg, [])
        if isinstance(answer, Exception):
            raise answer
        return type("LibtpuSdkMetric", (), {"data": lambda self: answer})()


def test_a_sample_has_a_number_for_each_chip() -> None:
    assert chips.sample(Monitoring(LOADED), KNOWN) == {
        "hbm_used_bytes": [3 * GIB, 4 * GIB],
        "hbm_total_bytes": [16 * GIB] * 2,
        "duty_cycle_percent": [12.35, 24.69],
    }


def test_while_nothing_is_loaded_there_is_no_sample() -> None:
    assert chips.sample(Monitoring({}), KNOWN) == {}


@pytest.mark.parametrize(
    "answer", [RuntimeError("Failed to open libtpu.so"), ["many"], [""], [None], ["nan"], ["inf"], ["-1"], None, 7, []]
)
def test_what_is_no_measurement_is_left_out_and_the_rest_stays(answer: Any) -> None:
    found = chips.sample(Monitoring({**LOADED, "duty_cycle_pct": answer}), KNOWN)
    assert set(found) == {"hbm_used_bytes", "hbm_total_bytes"}


@pytest.mark.parametrize("total", [[], ["5"], ["5", "6", "7"], ["5", "much"]])
def test_used_memory_without_the_total_of_each_chip_is_left_out(total: list[str]) -> None:
    found = chips.sample(Monitoring({**LOADED, "hbm_capacity_total": total}), KNOWN)
    assert set(found) == {"duty_cycle_percent"}


def test_a_duty_cycle_of_each_chip_may_stand_beside_the_memory_of_each_core() -> None:
    found = chips.sample(Monitoring({**LOADED, "duty_cycle_pct": ["50.0"]}), KNOWN)
    assert (found["duty_cycle_percent"], len(found["hbm_used_bytes"])) == ([50.0], 2)


def test_an_older_libtpu_is_not_asked_for_what_it_does_not_have() -> None:
    assert set(chips.sample(Monitoring(LOADED), {"duty_cycle_pct"})) == {"duty_cycle_percent"}


# -- as the process that it is -----------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "answers").write_text(json.dumps(LOADED))
    install(tmp_path / "packages")
    return tmp_path


@pytest.fixture
def sampler(place: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, *_arguments(place), "0.01"], env=_environment(place))
    yield process
    process.kill()
    process.wait()


def _arguments(place: Path) -> list[str]:
    (place / "agent.zip").write_bytes(agent.archive())
    return [str(place / "agent.zip"), "tpu_metrics", str(place / "artifacts")]


def _environment(place: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(place / "packages"), "STAND_IN": str(place / "answers")}


def written(place: Path) -> list[dict[str, Any]]:
    path = place / "artifacts" / chips.NAME
    return (
        [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if path.exists()
        else []
    )


def test_it_samples_until_it_is_ended(place: Path, sampler: subprocess.Popen[bytes]) -> None:
    until(lambda: len(written(place)) > 3)
    header, first, *_ = written(place)
    assert header == {"schema": 1}
    assert first["hbm_used_bytes"] == [3 * GIB, 4 * GIB] and first["at"] > 1e9 and first["every_s"] == 0.01
    sampler.terminate()
    assert sampler.wait(HANG_S) == -15


def test_a_long_job_is_sampled_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(Exception):
        pass

    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3000:
            raise Ended

    for name in ("os.nice", "resource.setrlimit", "time.sleep"):
        monkeypatch.setattr(name, sleep if name == "time.sleep" else lambda *_: None)
    monkeypatch.setitem(sys.modules, "libtpu.sdk", SimpleNamespace(tpumonitoring=Monitoring({})))  # type: ignore[misc]
    monkeypatch.setattr(Monitoring, "list_supported_metrics", lambda self: [], raising=False)
    monkeypatch.setattr(chips, "QUIET", {})
    monkeypatch.setattr(chips.signal, "signal", lambda *_: None)
    with pytest.raises(Ended):
        chips.tpu_metrics(str(tmp_path))
    assert (slept[0], slept[500]) == (10.0, 20.0)
    assert sum(slept) > 7 * 86400, "a week in 3,000 lines"


def test_a_library_that_hangs_does_not_keep_it_from_ending(place: Path) -> None:
    (place / "answers").write_text(json.dumps({"hbm_capacity_usage": "hang"}))
    process = subprocess.Popen([sys.executable, *_arguments(place), "0.01"], env=_environment(place))
    until((place / "answers.hangs").exists)
    process.terminate()
    assert process.wait(HANG_S) != 0


def test_without_libtpu_it_writes_why_and_ends(place: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(place / "nothing")}
    done = subprocess.run([sys.executable, *_arguments(place), "0.01"], env=environment, timeout=HANG_S, check=False)
    assert done.returncode == 0
    (line,) = written(place)
    assert line["absent"].startswith("the job's python3 has no libtpu.sdk: ModuleNotFoundError")


def test_the_packages_of_the_job_do_not_import_from_the_agent_nor_the_agent_from_the_directory_of_the_job(
    place: Path,
) -> None:
    (place / "packages" / "libtpu" / "sdk.py").write_text(
        "import sys\nassert not [p for p in sys.path if 'agent.zip' in p]\n"
    )
    (place / "json.py").write_text("raise SystemExit('not for the agent')\n")
    subprocess.run(
        [sys.executable, *_arguments(place), "0.01"], env=_environment(place), cwd=place, timeout=HANG_S, check=True
    )
    (line,) = written(place)
    assert "has no attribute 'tpumonitoring'" in line["absent"]


def test_a_job_neither_waits_for_the_sampler_nor_hears_of_it(place: Path) -> None:
    sampler = shlex.join(["bash", "-c", f"echo $$ >pid; exec {shlex.join([sys.executable, *_arguments(place)])} 0.01"])
    script = scripts.beside("sleep 0.05 & wait; echo mine; exit 3\n", sampler)
    try:
        done = ran(["bash", "-c", script], env=_environment(place), cwd=place)
        until(lambda: bool(written(place)))
    finally:
        os.kill(int((place / "pid").read_text()), signal.SIGKILL)
    assert (done.returncode, done.stdout, done.stderr) == (3, "mine\n", "")


@pytest.mark.parametrize("first", ["", "#!/usr/bin/env bash\n", "\n", "cat <<end\nx\nend\n"])
def test_errors_of_bash_name_the_lines_of_the_job(place: Path, first: str) -> None:
    script = place / "main"
    script.write_text(scripts.beside(f"{first}no-such-command\n", "true"))
    done = ran(["bash", str(script)])
    assert f"line {first.count(chr(10)) + 1}: no-such-command" in done.stderr


def test_it_ends_with_the_job_on_a_worker_and_its_file_is_among_the_artifacts(place: Path, worker: Worker) -> None:
    wait = f'until grep -q hbm "$TPUJOB_ARTIFACTS/{chips.NAME}"; do sleep 0.02; done 2>/dev/null; echo done; exit 3\n'
    sampler = f'{shlex.join([sys.executable, *_arguments(place)[:2]])} "$TPUJOB_ARTIFACTS" 0.01'
    packages, answers = (shlex.quote(str(place / name)) for name in ("packages", "answers"))
    given = f"export PYTHONPATH={packages} STAND_IN={answers}\n"
    worker.start(given + scripts.beside(wait, sampler))
    ended = worker.ended()
    assert (ended["rc"], worker.log(), worker.processes()) == (3, "done\n", [])
    assert chips.NAME in [path.name for path in worker.path("artifacts").iterdir()]


def test_neither_a_failed_look_nor_a_full_disk_ends_the_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "accel0").touch()
    variables = {"EMULATED_CHIPS": str(tmp_path), "AGENT": "1", "HOSTS": "h", "WORKER": "0", "ATTEMPT": "a"}
    for name, value in {**variables, "ARTIFACTS": "/no/such"}.items():
        monkeypatch.setenv(f"TPUJOB_{name}", value)
    monkeypatch.setattr(os, "nice", Mock())
    monkeypatch.setattr(os, "getsid", lambda _pid: 0)  # as where the first process of the session is out of sight
    found = [subprocess.TimeoutExpired("find", 20), OSError(), (set(), {}), ({os.getpid()}, {})]
    monkeypatch.setattr(chips, "holders", looks := Mock(side_effect=found))
    with (tmp_path / "log").open("wb") as log:
        monkeypatch.setattr(chips, "LOG", log.fileno())
        chips.chips("0")
    assert looks.call_count == len(found)
    assert (tmp_path / "log").read_text() == "tpujob: no process holds a TPU chip 0 s after the job began\n"


def test_what_is_not_well_is_published_with_each_look_as_one_write_may_be_dropped_and_noted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "accel0").touch()
    monkeypatch.delenv("TPUJOB_AGENT", raising=False)
    variables = {
        "EMULATED_CHIPS": str(tmp_path),
        "HOSTS": "h",
        "WORKER": "0",
        "ATTEMPT": "a",
        "ARTIFACTS": str(tmp_path),
    }
    for name, value in variables.items():
        monkeypatch.setenv(f"TPUJOB_{name}", value)
    monkeypatch.setattr(os, "nice", Mock())
    monkeypatch.setattr(chips, "holders", Mock(side_effect=[*[(set(), {})] * 3, ({os.getpid()}, {})]))
    connection = Mock()
    connection.getresponse.return_value.status = 200
    monkeypatch.setattr(chips.http.client, "HTTPConnection", Mock(return_value=connection))
    chips.chips("0")
    published = [json.loads(each.args[2])["use"] for each in connection.request.call_args_list]
    noted = [json.loads(line)["chips"]["use"] for line in (tmp_path / chips.NAME).read_text().splitlines()]
    assert (published, noted) == (["idle", "idle", "idle", "used"], ["idle", "used"])


def test_a_job_that_seemed_to_train_alone_is_told_so_after_its_end_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("accel0", chips.NAME):
        (tmp_path / name).write_text('{"duty_cycle_percent":[7.5]}\n')
    variables = {"EMULATED_CHIPS": str(tmp_path), "AGENT": "1", "HOSTS": "10.0.0.1,10.0.0.2", "WORKER": "0"}
    for name, value in {**variables, "ATTEMPT": "a", "ARTIFACTS": str(tmp_path)}.items():
        monkeypatch.setenv(f"TPUJOB_{name}", value)
    monkeypatch.setattr(os, "nice", Mock())
    monkeypatch.setattr(chips, "holders", Mock(side_effect=[({os.getpid()}, {}), (set(), {}), KeyboardInterrupt]))
    with (tmp_path / "log").open("wb") as log, pytest.raises(KeyboardInterrupt):
        monkeypatch.setattr(chips, "LOG", log.fileno())
        chips.chips("0")
    told = [json.loads(line) for line in (tmp_path / chips.NAME).read_text().splitlines()]
    assert [each["chips"]["use"] for each in told if "chips" in each] == ["alone"]


SDK = """
import json, os, pathlib, signal, sys, time

class LibtpuSdkMetric:
    def __init__(self, values): self._values = values
    def data(self): return self._values
    def description(self): return ""

def _print_stack(*_):
    print("a stack", file=sys.stderr, flush=True)
    os._exit(99)

class _Monitoring:
    _used = False
    def list_supported_metrics(self):
        return ["tensorcore_util", "duty_cycle_pct", "hbm_capacity_total", "hbm_capacity_usage"]
    def get_metric(self, arg, /):
        if arg not in self.list_supported_metrics():
            os.abort()
        if not self._used:
            self._used = True
            signal.signal(signal.SIGTERM, _print_stack)
        found = json.loads(pathlib.Path(os.environ["STAND_IN"]).read_text())
        answer = found.get(arg, [])
        if answer == "hang":
            pathlib.Path(os.environ["STAND_IN"] + ".hangs").touch()
            time.sleep(1000)
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return LibtpuSdkMetric(answer)

tpumonitoring = _Monitoring()
"""


def install(directory: Path) -> Path:
    """Write the package below `directory`, for PYTHONPATH, and return that."""
    package = directory / "libtpu"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "sdk.py").write_text(SDK)
    return directory
