"""The code of a job as one archive, what the pods unpack of it, and that it is deleted from a bucket."""

import os
import tarfile
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
from orchestrator.places.gke.preparation import CodeArchive, pack_code
from orchestrator.places.google.objects import Objects
from orchestrator.places.preparation import records as runs
from orchestrator.remote.shipping import tree
from orchestrator.remote.shipping.shipment import Shipment, make_shipment
from orchestrator.settings import GKE, Target
from orchestrator.vm.pod_start import unpack
from tests.emulator_fixture import Emulator


def files(directory: Path) -> Path:
    code = directory / "code"
    (code / "package" / "empty").mkdir(parents=True)
    (code / "train.py").write_text("print(1)\n")
    (code / "run.sh").write_text("#!/bin/sh\n")
    (code / "run.sh").chmod(0o755)
    (code / "package" / "__init__.py").write_bytes(b"")
    (code / "package" / "same.py").write_text("print(1)\n")
    (code / "package" / "link.py").symlink_to("../train.py")
    return code


def shipment(directory: Path, code: Path) -> Shipment:
    return make_shipment(tree.survey({".": tree.Source(code, gitignore=True)}), directory / "store")


def packed(directory: Path, name: str = "code.tar.gz") -> CodeArchive:
    return pack_code(shipment(directory, directory / "code"), directory / name)


def test_the_same_files_are_the_same_bytes_whenever_they_were_written(tmp_path: Path) -> None:
    code = files(tmp_path)
    first = packed(tmp_path, "a")
    os.utime(code / "train.py", (1, 1))
    (code / "run.sh").chmod(0o700)
    second = packed(tmp_path, "b")
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.path.read_bytes()[4:8] == bytes(4), "no time in the head of gzip"
    assert (first.sha256, first.size_bytes) == (second.sha256, len(second.path.read_bytes()))
    (code / "train.py").write_text("print(2)\n")
    assert packed(tmp_path, "c").sha256 != first.sha256


def test_an_archive_tells_nothing_of_this_machine(tmp_path: Path) -> None:
    files(tmp_path)
    with tarfile.open(packed(tmp_path).path) as archive:
        members = archive.getmembers()
    assert {(member.uid, member.gid, member.uname, member.gname, member.mtime) for member in members} == {
        (0, 0, "", "", 0)
    }


def test_the_pods_unpack_what_was_packed(tmp_path: Path) -> None:
    code = files(tmp_path)
    archive = packed(tmp_path)
    unpack(str(tmp_path), {"code_sha256": archive.sha256}, str(tmp_path / "work"), None)  # type: ignore[arg-type]
    work = tmp_path / "work"
    found = {path.relative_to(work).as_posix() for path in work.rglob("*")}
    assert found == {path.relative_to(code).as_posix() for path in code.rglob("*")}
    assert (work / "train.py").read_text() == (work / "package" / "same.py").read_text() == "print(1)\n"
    assert (work / "package" / "link.py").readlink() == Path("../train.py")
    assert (work / "package" / "__init__.py").read_bytes() == b""
    assert os.access(work / "run.sh", os.X_OK) and not os.access(work / "train.py", os.X_OK)


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
