"""The work of a job in the emulated Cloud Storage, as the processes on a worker save and fetch it."""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.places.google.objects import Objects
from orchestrator.places.preparation.buckets import SavedInBucket
from orchestrator.promise.lease.run_and_attempt import SavedState
from orchestrator.text import scripts
from orchestrator.vm.buckets.data_objects import Source
from tests import ROOT
from tests.emulator.fixture import Emulator
from tests.unit.vm.conftest import Worker
from tests.waiting import until

# It counts, until it is told to end or asked to; then it writes a last checkpoint.
JOB = """
import json, os, pathlib, signal, sys, time
artifacts = pathlib.Path(os.environ["TPUJOB_ARTIFACTS"])
def save(step):
    draft = artifacts / ".draft"
    draft.write_text(json.dumps({"step": step}))
    draft.replace(artifacts / "checkpoint.json")
def noticed(*_):
    save(99)
    sys.exit(143)
signal.signal(signal.SIGTERM, noticed)
save(10)
while not pathlib.Path("END").exists():
    time.sleep(0.02)
save(20)
"""


class Job:
    """An attempt on a worker of the test, with a bucket of the shared emulator."""

    def __init__(self, emulator: Emulator, bucket: str, home: Path, number: int) -> None:
        home.mkdir()
        self.emulator, self.url, self.attempt = emulator, f"gs://{bucket}/runs/r/saved", f"r-{number}"
        variables = {"TPUJOB_WORKER": "0", "TPUJOB_WORKERS": "1", "STORAGE_EMULATOR_HOST": emulator.url}
        self.env = {
            **variables,
            "GCE_METADATA_HOST": "127.0.0.1:1",
            "PYTHONPATH": str(ROOT),
        }
        self.worker = Worker(home, env={"PYTHONPATH": self.env["PYTHONPATH"]})
        self.state = SavedInBucket(self.url, emulator.url)

    def path(self, *parts: str) -> Path:
        return self.worker.home.joinpath("tpujob", "runs", self.attempt, *parts)

    def verb(self, name: str, *more: str) -> str:
        words = [sys.executable, "-P", "-m", "orchestrator.vm", name, "node", self.url, *more]
        return shlex.join(words)

    def start(self, phase: str, script: str, **variables: str) -> None:
        self.worker.start(script, attempt=self.attempt, phase=phase, env={**self.env, **variables})

    def setup(self, **variables: str) -> tuple[int, str]:
        """Fetch what is saved; return the exit code, and what was said."""
        self.start("setup", self.verb("restore_work"), **variables)
        ended = self.path("setup", "exit.json")
        until(ended.exists, "the end of the setup")
        return json.loads(ended.read_text())["rc"], self.path("setup", "log").read_text()

    def begin(self) -> None:
        (self.worker.home / "job.py").write_text(JOB.replace("END", str(self.worker.home / "end")))
        wanted = json.dumps({"patterns": [], "beside": 1000})
        beside = f"{self.verb('save_work', wanted, '1')} 3>&1"
        self.start("main", scripts.beside(f"exec {sys.executable} {self.worker.home}/job.py\n", beside))

    def ended(self) -> str:
        until(self.path("main", "exit.json").exists, "the end of the job")
        assert self.worker.processes() == []
        return self.path("main", "log").read_text()

    @contextmanager
    def fault(self, kind: str, operation: str, **how: Any) -> Iterator[None]:
        body = {"kind": kind, "operation": f"storage.objects.{operation}", **how}
        self.emulator.request("POST", "/_emulator/faults", body)
        try:
            yield
        finally:
            self.emulator.request("DELETE", "/_emulator/faults")


@pytest.fixture
def job(shared_emulator: Emulator, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    bucket = f"saved-{abs(hash(request.node.nodeid))}"
    return lambda number: Job(shared_emulator, bucket, tmp_path / str(number), number)


def test_a_job_is_saved_while_it_runs_and_the_next_attempt_has_its_files(job: Any) -> None:
    first = job(1)
    assert first.setup() == (0, "")
    first.begin()
    until(lambda: first.state().step == 10, "a copy")
    assert (first.state().files, first.state().url) == (1, first.url)
    (first.worker.home / "end").touch()
    assert first.ended() == f"tpujob: the work is saved to {first.url} from now on\n", (
        "no word of what was left running"
    )
    second = job(2)
    rc, said = second.setup(TPUJOB_SAVED_WORK="bucket")
    assert rc == 0 and re.fullmatch(r"tpujob: saved work of step 10 from gs://\S+: 1 file, 0.0 MB, in [\d.]+ s\n", said)
    assert json.loads(second.path("artifacts", "checkpoint.json").read_text()) == {"step": 10}
    second.state.delete()
    assert Objects(emulator=second.emulator.url).list(second.url) == [] and second.state() == SavedState()


def test_a_job_that_is_stopped_with_time_for_a_checkpoint_is_saved_once_more(job: Any) -> None:
    first = job(1)
    first.setup()
    first.begin()
    until(lambda: first.state().step == 10, "a copy")
    first.worker.ask("stop", first.attempt, "main", "30")
    assert first.state().step == 99 and first.ended()


def test_one_that_is_stopped_with_less_time_is_not(job: Any) -> None:
    first = job(1)
    first.setup()
    first.begin()
    until(lambda: first.state().step == 10, "a copy")
    first.worker.ask("stop", first.attempt, "main", "10")
    assert first.state().step == 10


def test_without_permission_the_setup_says_so_and_the_job_runs(job: Any) -> None:
    first = job(1)
    with first.fault("status", "insert", status=403):
        rc, said = first.setup()
        first.begin()
        until(lambda: "is not saved" in first.path("main", "log").read_text(), "a word of the job, too")
    assert rc == 0 and said.startswith(f"tpujob: the work is not saved to {first.url}: ") and said.count("\n") == 1
    assert "may not read and write there" in said and "HTTP 403" in said
    until(lambda: first.state().step == 10, "a copy, now that it may")
    (first.worker.home / "end").touch()
    assert first.ended().count("\n") == 2


@pytest.mark.parametrize(("known", "rc", "words"), [
    ("bucket", 1, "the saved work in gs://.* cannot be fetched: .*HTTP 403"),
    ("", 0, "the work is not saved to gs://.*HTTP 403"),
    ("client", 0, "the work is not saved to gs://.*HTTP 403"),
])  # fmt: skip
def test_what_is_known_to_be_saved_is_not_begun_anew(job: Any, known: str, rc: int, words: str) -> None:
    second = job(2)
    with second.fault("status", "get", status=403):
        found, said = second.setup(TPUJOB_SAVED_WORK=known)
    assert found == rc and re.search(words, said)


def test_files_that_the_client_has_sent_are_not_replaced(job: Any) -> None:
    first = job(1)
    first.setup()
    first.begin()
    until(lambda: first.state().step == 10, "a copy")
    second = job(2)
    assert second.setup(TPUJOB_SAVED_WORK="client") == (0, "")
    assert not second.path("artifacts", "checkpoint.json").exists()
    (first.worker.home / "end").touch()
    first.ended()


def test_an_attempt_that_was_superseded_does_not_begin(job: Any) -> None:
    job(3).setup()
    rc, said = job(2).setup()
    assert (rc, said) == (1, "tpujob: attempt 3 of this run has begun, on node: this one ends\n")


def test_a_machine_that_cannot_look_into_the_bucket_says_that_it_does_not_know(job: Any) -> None:
    first = job(1)
    first.setup()
    with first.fault("status", "get", status=403):
        state = first.state()
    assert state.text(None, built_in=False) == f"goes on from what is in {first.url}, which this machine cannot read"
    assert first.state().text(None, built_in=False) == "begins at step 0: nothing was saved"


def test_an_object_is_stored_only_in_place_of_the_generation_that_was_named(job: Any) -> None:
    emulator = job(1).emulator
    source = Source({"STORAGE_EMULATOR_HOST": emulator.url})
    assert source.put("conditions", "a", b"1", "0") is None
    assert "HTTP 412" in str(source.put("conditions", "a", b"2", "0"))
    row = source.row("conditions", "a")
    assert row is not None and source.put("conditions", "a", b"3", row["generation"]) is None
    assert "HTTP 412" in str(source.put("conditions", "a", b"4", row["generation"]))
    assert source.content("conditions", "a") == b"3"
    assert [source.delete("conditions", "a") for _ in range(2)] == [None, None]
    assert source.row("conditions", "a") is None
