"""The program of a pod, step by step: its code, its disk, its stdout, what its results may cost, and its death."""

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import DEFAULT, Mock

import psutil
import pytest

from orchestrator.hosts.ssh import agent
from orchestrator.text.scripts import Environment
from orchestrator.vm.buckets import upload
from orchestrator.vm.buckets.cloud_storage import Storage
from orchestrator.vm.files import pack
from orchestrator.vm.pod import results
from orchestrator.vm.pod.output import WORD, Output
from orchestrator.vm.pod.results import LONGEST_BYTES, NO_ROOM, NO_TIME, Results
from tests.fakes.pods import Leap, archive_of, popen, request
from tests.unit.vm.conftest import Worker, python  # noqa: F401 - the Python of a worker, or that of TPU VM images
from tests.waiting import HANG_S, until


@dataclass
class Container:
    """A directory for one pod, and its program in it."""

    place: Path
    python: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def popen(
        self, asked: Mapping[str, Any], archive: bytes | None = None, stdout: int = subprocess.PIPE, **env: str
    ) -> subprocess.Popen[bytes]:
        self.processes.append(popen(self.place, asked, archive, env, python=self.python, stdout=stdout))
        return self.processes[-1]

    def run(self, asked: Mapping[str, Any], archive: bytes | None = None, **env: Any) -> tuple[int, list[bytes]]:
        """Run it to its end; return its code, and the lines that it wrote."""
        process = self.popen(asked, archive, **env)
        said, _ = process.communicate(timeout=HANG_S)
        return process.returncode, said.splitlines()

    @property
    def note(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.place / "note").read_text())
        return found

    def path(self, *parts: str) -> Path:
        return self.place.joinpath("run", "r1-1", *parts)

    def left(self) -> list[psutil.Process]:
        """What of the job still runs."""
        return Worker(self.place).processes()


@pytest.fixture
def container(tmp_path: Path, python: str) -> Iterator[Container]:  # noqa: F811 - the fixture
    made = Container(tmp_path / "pod", python)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    until(lambda: not made.left(), "the end of all that the pod had started")


def test_code_is_unpacked_with_its_links_and_its_modes_and_there_is_a_home_also_where_the_image_has_none(
    container: Container,
) -> None:
    archive = archive_of(
        ("bin/tool", b"#!/bin/bash\necho runs\n", "x"), ("tool", None, "bin/tool"), ("a/é", b"text\n", "")
    )
    script = './tool; cat a/é; [ ! -x a/é ] && find a/é -mmin -60; echo "$HOME"'
    code, lines = container.run(request(("main", script), archive=archive), archive, HOME="/nowhere")
    assert code == 0 and lines[2:6] == [b"runs", b"text", "a/é".encode(), f"{container.place}/run/home".encode()]


@pytest.mark.parametrize(("damage", "why"), [
    (lambda archive: archive[:-9] + b"x" * 9, "the code arrived with another content than its hash says"),
    (lambda archive: None, "there is no code: No such file or directory"),
])  # fmt: skip
def test_damaged_or_missing_code_is_never_run(container: Container, damage: Any, why: str) -> None:
    archive = archive_of(("good", b"x" * 1000, ""))
    code, lines = container.run(request(("main", "echo never"), archive=archive), damage(archive))
    assert (code, container.note["detail"]) == (71, why) and b"never" not in lines


def test_scripts_find_the_agent_and_environments_are_made_as_on_a_worker(container: Container) -> None:
    """The scripts of `places/preparation/phases.py`, as they are."""
    environment = Environment(python="3.11", base=sys.executable, root=str(container.place / "envs"))
    setup = environment.setup(agent.command("environment"))
    script = environment.use('command -v python; echo "$VIRTUAL_ENV"')
    code, lines = container.run(request(("setup", setup), ("main", script)))
    assert code == 0, lines
    assert f"{container.place}/envs/{environment.name}/bin/python".encode() in lines


def test_a_stdout_that_nothing_reads_ends_neither_the_job_nor_its_time_limit(container: Container) -> None:
    script = 'yes | head -c 1000000; echo >"$TPUJOB_ARTIFACTS/done"; sleep 1000'
    leap = Leap(container.place.with_name("clock"), to_s=3541.0)  # of 3600 s, the last 60 s are for the end
    process = container.popen(request(("main", script), max_duration_s=3600.0), PYTHONPATH=leap.path)
    until(lambda: container.path("artifacts", "done").exists(), "the job")
    leap.now()
    until(lambda: container.path("main", "exit.json").exists(), "the end of the job by its time limit")
    assert json.loads(container.path("main", "exit.json").read_text())["stopped"]
    assert process.poll() is None


def test_a_stdout_that_is_closed_ends_nothing(container: Container) -> None:
    process = container.popen(request(("main", "echo up; until [ -e go ]; do sleep 0.05; done; echo down; exit 4")))
    process.stdout.readline()
    process.stdout.close()
    until(lambda: container.path("main", "started.json").exists(), "the job")
    (container.path("work") / "go").touch()
    assert process.wait(HANG_S) == 4 and container.note["rc"] == 4


def test_a_supervisor_that_is_killed_is_lost_and_nothing_of_its_job_stays(container: Container) -> None:
    process = container.popen(request(("main", "echo up; sleep 1000")))
    until(lambda: container.path("main", "started.json").exists(), "the job")
    (supervisor,) = [each for each in psutil.Process(process.pid).children() if "local" in each.cmdline()]
    supervisor.kill()
    assert process.wait(HANG_S) == 71
    assert (container.note["why"], container.note["detail"]) == ("lost", "the supervisor of main was killed")
    assert not container.left()


def test_no_room_for_the_job_is_said(container: Container) -> None:
    """A file in the place of a directory stands for a full disk."""
    container.path().mkdir(parents=True)
    container.path("work.draft").touch()
    code, _ = container.run(request(("main", "echo never")))
    assert (code, container.note["why"]) == (71, "failed")
    assert container.note["detail"] == f"File exists: {container.path('work.draft')}"


def test_a_stop_that_cannot_be_written_down_stops_the_job_all_the_same_and_a_second_one_changes_nothing(
    container: Container,
) -> None:
    """A directory in the place of the file stands for a full disk."""
    script = """
    mkdir "$TPUJOB_PHASE_DIR/.stop.json.$PPID"; echo kept >"$TPUJOB_ARTIFACTS/kept"
    trap "touch stopping; sleep 0.5; exit 0" TERM; echo up; while true; do sleep 0.05; done
    """
    process = container.popen(request(("main", script)))
    until(lambda: container.path("main", "log").exists() and container.path("main", "log").read_text(), "the job")
    process.send_signal(signal.SIGTERM)
    until((container.path("work") / "stopping").exists, "its grace")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 143 and b'"files": 1' in out and container.note["why"] == "stopped"


def test_an_end_that_cannot_be_written_down_is_told_with_its_cause(container: Container) -> None:
    code, _ = container.run(request(("main", 'mkdir "$TPUJOB_PHASE_DIR/.exit.json.$PPID"; echo up')))
    assert code == 71 and container.note["why"] == "lost"
    assert container.note["detail"].startswith("the supervisor of main ended: IsADirectoryError: [Errno 21] Is a")


class Sent:
    """The results of a run, and what was said of them."""

    def __init__(self, place: Path) -> None:
        self.run, self.said = place / "run", place / "said"
        (self.run / "artifacts").mkdir(parents=True)
        self.read: list[str] = []

    def rows(
        self, left_s: Callable[[], float] = lambda: 100.0, storage: Storage | None = None, **keys: Any
    ) -> dict[str, str | None]:
        """Send them; return why each is not sent."""
        with self.said.open("wb") as file:
            output = Output(file.fileno())
            Results(str(self.run), request(**keys), 0, output).send(storage or Storage(), left_s, dict)
        lines = [json.loads(line[len(WORD) :]) for line in self.said.read_bytes().splitlines()]
        whole = b"".join(base64.b64decode(line["results"]) for line in lines if "results" in line)
        rows = zlib.decompressobj().decompress(whole) if whole else storage.index  # type: ignore[union-attr]
        return {row["path"]: row.get("why") for row in json.loads(rows)}


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sent:
    found = Sent(tmp_path)

    def counted(piece: bytes) -> Any:
        found.read.append(f"{len(piece)}")
        return DEFAULT

    def sha256() -> Mock:
        digest = Mock(wraps=hashlib.sha256())
        digest.update.side_effect = counted
        return digest

    monkeypatch.setattr(pack, "hashlib", SimpleNamespace(sha256=sha256))
    return found


def test_a_file_that_no_log_takes_is_not_read_where_there_is_no_bucket(sent: Sent) -> None:
    (sent.run / "artifacts" / "a").write_bytes(b"a")
    with (sent.run / "artifacts" / "large").open("wb") as file:
        os.truncate(file.fileno(), LONGEST_BYTES + 1)
    assert sent.rows() == {"artifacts/a": None, "artifacts/large": NO_ROOM}
    assert sent.read == ["1"]


def test_a_large_file_takes_half_of_the_time_and_small_ones_behind_it_are_sent(sent: Sent) -> None:
    (sent.run / "artifacts" / "small").write_bytes(b"s")
    (sent.run / "artifacts" / "large").write_bytes(bytes(9 << 20))
    assert sent.rows(lambda: 10.0 - len(sent.read)) == {"artifacts/large": NO_TIME, "artifacts/small": None}
    assert sent.read == [f"{pack.PIECE_BYTES}"] * 5 + ["1"]


def test_what_there_was_no_time_to_look_at_is_said(sent: Sent) -> None:
    for name in "abc":
        (sent.run / "artifacts" / name).write_bytes(b"x")
    named = ("artifacts/a", "artifacts/b", "(the rest)")
    assert sent.rows(lambda: 2.0 - len(sent.read)) == dict.fromkeys(named, NO_TIME)


class Bucket(Storage):
    """It takes a file in a second, as long as there is time, and keeps the rows of the index."""

    index = b""

    def __init__(self, left_s: Callable[[], float]) -> None:
        super().__init__({}, left_s)
        self.took: list[str] = []

    def sparing(self, spare_s: float) -> "Bucket":
        self.spare_s = spare_s
        return self

    def send(self, bucket: str, name: str, path: Path) -> str | None:
        if self._left_s() <= self.spare_s:
            return NO_TIME
        self.took.append(path.name)
        return None

    def put(self, bucket: str, name: str, content: bytes, generation: str | None = None) -> str | None:
        assert name == "p/r1/worker0/index.json" and self._left_s() > 0
        self.index = json.dumps(json.loads(content)["rows"]).encode()
        return None


def test_the_index_in_a_bucket_comes_last_and_says_what_did_not_come(sent: Sent) -> None:
    for name in "abc":
        (sent.run / "artifacts" / name).write_bytes(b"x")
    bucket = Bucket(lambda: 7.0 - len(bucket.took))
    why = f"it did not reach the bucket: {NO_TIME}"
    rows = sent.rows(storage=bucket, bucket="gs://b/p")
    assert rows == {"artifacts/a": None, "artifacts/b": None, "artifacts/c": why} and bucket.took == ["a", "b"]


@pytest.mark.parametrize(("module", "keys"), [(results, {}), (upload, {"bucket": "gs://b/p"})])
def test_an_index_has_an_end_which_is_said(
    sent: Sent, monkeypatch: pytest.MonkeyPatch, module: ModuleType, keys: dict[str, Any]
) -> None:
    monkeypatch.setattr(module, "INDEX_BYTES", 300)
    for name in "abc":
        (sent.run / "artifacts" / name).write_bytes(b"x")
    rows = sent.rows(storage=Bucket(lambda: 100.0), **keys)
    assert list(rows) == ["artifacts/a", "artifacts/b", "(the rest)"]
    assert str(rows["(the rest)"]).startswith("1 more files than the index of a pod lists: have the job put small ones")


def test_what_lies_beside_the_artifacts_takes_no_room_from_a_promise(sent: Sent) -> None:
    (sent.run / "work").mkdir()
    (sent.run / "before.json").write_text('{"home": null, "of": {}, "elsewhere": {}}')
    (sent.run / "artifacts" / "model").write_bytes(os.urandom(9000))
    for name in ("a", "b", "c"):
        (sent.run / "work" / name).write_bytes(os.urandom(1000))
    (sent.run / "artifacts" / "host.jsonl").write_bytes(os.urandom(1000))
    rows = sent.rows(beside=True, inline_bytes=9500)
    assert rows["artifacts/model"] is None and list(rows.values()).count(NO_ROOM) == 4
