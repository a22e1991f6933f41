"""What runs beside a job on its host: samples of the processors and the memory, and the packages of the job's Python."""

import errno
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.hosts.ssh import agent
from orchestrator.text import scripts
from orchestrator.vm.agent import host, packages
from tests.unit.vm.conftest import Worker
from tests.waiting import HANG_S

STAT = "cpu  {} 0 0 {} 0 0 0 {} 0 0\ncpu0 1 0 0 1\ncpu1 1 0 0 1\nintr 5\n"
MEMORY = "MemTotal:       1000 kB\nMemFree: 5 kB\nMemAvailable:    250 kB\n"


class Ended(Exception):
    pass


@pytest.fixture
def proc(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], str]]:
    files: dict[str, Callable[[], str]] = {"/proc/meminfo": lambda: MEMORY}
    monkeypatch.setattr(host, "_text", lambda path: files[path]())
    monkeypatch.setattr("os.nice", lambda _: 0)
    monkeypatch.setattr("os.umask", lambda _: 0)
    return files


def lines(directory: Path) -> list[dict[str, float]]:
    path = directory / host.NAME
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_sample_is_the_share_of_the_interval_in_which_the_processors_worked(
    tmp_path: Path, proc: dict[str, Callable[[], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = iter([STAT.format(100, 900, 0), STAT.format(150, 1000, 50)])
    proc["/proc/stat"] = lambda: next(stats, "")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise Ended

    monkeypatch.setattr("time.sleep", sleep)
    with pytest.raises(Ended):
        host.host_metrics(str(tmp_path), "5")
    head, first = lines(tmp_path)
    assert head == {"schema": 1} and first.pop("at") > 1e9
    assert first == {
        "every_s": 1.0, "cpu_percent": 25.0, "cpus": 2, "memory_used_bytes": 750 << 10, "memory_total_bytes": 1000 << 10,
    }  # fmt: skip
    assert slept == [1.0, 5.0, 5.0], "the first sample comes soon"


def test_a_week_has_three_thousand_lines(
    tmp_path: Path, proc: dict[str, Callable[[], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    proc["/proc/stat"] = lambda: STAT.format(1, 1, 0)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if sum(slept) > 7 * 86_400:
            raise Ended

    monkeypatch.setattr("time.sleep", sleep)
    with pytest.raises(Ended):
        host.host_metrics(str(tmp_path))
    assert len(slept) < 3100


@pytest.mark.parametrize("stat", ["", "cpu 1\n", "intr 5\n"])
def test_where_the_kernel_says_nothing_there_is_no_file(
    tmp_path: Path, proc: dict[str, Callable[[], str]], stat: str
) -> None:
    proc["/proc/stat"] = lambda: stat
    host.host_metrics(str(tmp_path))
    assert lines(tmp_path) == []


def test_a_full_disk_does_not_end_it(tmp_path: Path) -> None:
    host._write(str(tmp_path / "no" / "such" / "directory"), {})


def test_a_disk_that_was_full_at_the_first_sample_has_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / host.NAME

    def full(name: str, *how: Any, **more: Any) -> Any:
        path.touch()
        return open("/dev/full", "wb", buffering=0)  # noqa: PTH123

    with monkeypatch.context() as patch:
        patch.setattr(host, "open", full, raising=False)
        host._write(str(path), {"at": 1})
    host._write(str(path), {"at": 2})
    assert lines(tmp_path) == [{"schema": 1}, {"at": 2}]


@pytest.mark.parametrize("mine", [b"", b'{"cpu_percent": 1}\n', b'{"schema": 1}', b"\xff" * 99])
def test_a_file_of_that_name_which_the_job_made_is_left_alone(tmp_path: Path, mine: bytes) -> None:
    path = tmp_path / host.NAME
    path.write_bytes(mine)
    host._write(str(path), {"at": 1})
    assert path.read_bytes() == mine


def test_its_own_file_goes_on_until_the_job_makes_another(tmp_path: Path) -> None:
    path = tmp_path / host.NAME
    for at in (1, 2):
        host._write(str(path), {"at": at})
    assert lines(tmp_path) == [{"schema": 1}, {"at": 1}, {"at": 2}]
    path.write_text("mine\n")
    host._write(str(path), {"at": 3})
    assert path.read_text() == "mine\n"


def beside(directory: Path, *verb: str) -> str:
    (directory / "agent.zip").write_bytes(agent.archive())
    return " ".join([sys.executable, "-IS", str(directory / "agent.zip"), *verb])


def test_it_ends_with_the_job_on_a_worker_and_what_it_has_is_among_the_artifacts(
    tmp_path: Path, worker: Worker
) -> None:
    wait = f'until grep -q cpus "$TPUJOB_ARTIFACTS/{host.NAME}"; do sleep 0.02; done 2>/dev/null; exit 3\n'
    worker.start(scripts.beside(wait, beside(tmp_path, "host_metrics", '"$TPUJOB_ARTIFACTS"', "0.05")))
    assert (worker.ended()["rc"], worker.log(), worker.processes()) == (3, "", [])
    head, first, *_ = lines(worker.path("artifacts"))
    assert head == {"schema": 1} and 0 <= first["cpu_percent"] <= 100
    assert 0 < first["memory_used_bytes"] < first["memory_total_bytes"]


# -- packages ----------------------------------------------------------------------------------------------------------


def listed(directory: Path, site: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(written(directory, site))
    return found


def written(directory: Path, site: Path) -> str:
    (directory / "artifacts").mkdir(exist_ok=True)
    (directory / "agent.zip").write_bytes(agent.archive())
    command = [sys.executable, "-S", str(directory / "agent.zip"), "job_packages", str(directory / "artifacts")]
    done = subprocess.run(command, env={"PYTHONPATH": str(site)}, cwd=directory, timeout=HANG_S, check=False)
    assert done.returncode == 0
    assert sorted(path.name for path in directory.iterdir() if path.name.startswith(".draft")) == []
    return (directory / "artifacts" / packages.NAME).read_text()


def test_the_packages_of_the_python_are_listed_and_none_is_imported(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name, version in (("Torch_XLA", "2.9.0"), ("numpy", "1.26.4+own")):
        (site / f"{name}-{version}.dist-info").mkdir(parents=True)
        (site / f"{name}-{version}.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    (site / "numpy.py").write_text("raise SystemExit('it was imported')")
    (site / "damaged-1.dist-info").mkdir()
    found = listed(tmp_path, site)
    assert found["packages"] == {"numpy": "1.26.4+own", "torch-xla": "2.9.0"}
    assert found["schema"] == 1 and found["python"] == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize("mine", ["", '{"react": "18"}'], ids=["opened", "written"])
def test_a_list_that_the_job_writes_itself_is_left_alone(tmp_path: Path, mine: str) -> None:
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts" / packages.NAME).write_text(mine)
    assert written(tmp_path, tmp_path) == mine


def test_artifacts_on_another_disk_have_the_list(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        if Path(other).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("there is one disk only")
        (tmp_path / "artifacts").symlink_to(f"{other}/artifacts")
        Path(other, "artifacts").mkdir()
        assert listed(tmp_path, tmp_path)["schema"] == 1
        assert [path.name for path in Path(other).iterdir()] == ["artifacts"]


def test_artifacts_on_a_disk_without_links_have_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: str) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr("os.link", refuse)
    monkeypatch.setattr("os.nice", lambda _: 0)
    monkeypatch.setattr("os.umask", lambda _: 0)
    (tmp_path / "artifacts").mkdir()
    packages.job_packages(str(tmp_path / "artifacts"))
    assert json.loads((tmp_path / "artifacts" / packages.NAME).read_text())["packages"]["pytest"]
    assert [path.name for path in tmp_path.iterdir()] == ["artifacts"]


def test_a_job_that_ends_before_the_list_is_there_is_not_said_to_have_left_it(tmp_path: Path, worker: Worker) -> None:
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(
        f"#!{sys.executable}\nimport time\nopen({str(tmp_path / 'began')!r}, 'x')\ntime.sleep({HANG_S})\n"
    )
    python.chmod(0o755)
    listing = agent.command_of_the_job("job_packages", '"$TPUJOB_ARTIFACTS"')
    job = f"until [ -e {tmp_path}/began ]; do sleep 0.02; done; echo mine\n"
    worker.start(scripts.beside(job, f'PATH="{python.parent}:$PATH"; [ -z "$0" ] || {listing}'))
    assert (worker.ended()["rc"], worker.log(), worker.processes()) == (0, "mine\n", [])


def test_the_list_of_an_attempt_whose_work_goes_on_is_replaced_by_that_of_the_next(tmp_path: Path) -> None:
    """It comes with the saved work, and the next attempt may have other versions."""
    now = listed(tmp_path, tmp_path)
    (tmp_path / "artifacts" / packages.NAME).write_text('{"schema":1,"python":"3.8.0","packages":{"old":"1"}}')
    assert listed(tmp_path, tmp_path) == now != {}


def test_a_job_neither_waits_for_the_list_nor_fails_without_python(tmp_path: Path, worker: Worker) -> None:
    worker.start(scripts.beside("echo mine; exit 3\n", "no-such-python job_packages"))
    ended = worker.ended()
    assert (ended["rc"], worker.log()) == (3, "mine\n")
