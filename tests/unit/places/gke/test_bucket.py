"""Code that went through a bucket is deleted by the command that sees the run end, whoever ended it."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.client.events import Reporter
from orchestrator.client.jobs.ending import cancel
from orchestrator.client.session import Session
from orchestrator.core.jobfile import keys
from orchestrator.core.lease.run_and_attempt import Began, RunRecord
from orchestrator.places.google.objects import Objects
from orchestrator.places.preparation import records as runs
from orchestrator.settings import GKE, Target
from tests.emulator_fixture import Emulator

JOB = "on: gke\nname: hello\ncommand: ls\ngke: {image: 'i:1'}\nbucket: gs://my-bucket/runs\n"


@pytest.fixture
def session(tmp_path: Path, shared_emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", shared_emulator.url)
    monkeypatch.chdir(tmp_path)
    with closing(Session(Target("emulated", "emulated"), tmp_path, reporter=Reporter())) as made:
        yield made


@pytest.fixture
def objects(shared_emulator: Emulator) -> Objects:
    return Objects(emulator=shared_emulator.url)


def begun(session: Session, objects: Objects, directory: Path) -> RunRecord:
    """A run whose code was uploaded, and whose process is gone."""
    spec = keys.load(JOB, path="job.yaml")
    record, attempt = runs.new_run(spec, directory / "job.yaml", GKE, directory / "runs", session.now(GKE))
    url = f"gs://my-bucket/runs/{record.id}/code.tar.gz"
    record = replace(record, spec=record.spec.having(cluster={"phases": ["main"], "pods": 1, "code_object": url}))
    (directory / "code").write_bytes(b"packed")
    objects.upload(url, directory / "code")
    session.ledger.record(Began(record, attempt))
    return record


def stored(objects: Objects, record: RunRecord) -> list[str]:
    return [each.name for each in objects.list(f"gs://my-bucket/runs/{record.id}/")]


def test_the_next_command_deletes_the_code_of_a_run_whose_process_was_killed(
    session: Session, objects: Objects, tmp_path: Path
) -> None:
    record = begun(session, objects, tmp_path)
    assert stored(objects, record)
    session.recover()
    assert session.ledger.run(record.id)[1].state.ended
    assert stored(objects, record) == []


def test_cancel_deletes_the_code_of_a_run_that_is_not_followed(
    session: Session, objects: Objects, tmp_path: Path
) -> None:
    record = begun(session, objects, tmp_path)
    assert session.locks.lock(f"{record.id}-1"), "so that the run counts as alive"
    cancel(session, *session.ledger.run(record.id))
    assert stored(objects, record) == []
