"""The worker of a local job collects with the packer of a worker, and reports what it cannot collect."""

from pathlib import Path

import pytest

from orchestrator.places.local.worker import LocalWorker, remove_leftovers
from orchestrator.remote.transfer import collect
from tests.disk import calls_of_depth


@pytest.fixture
def worker(tmp_path: Path) -> LocalWorker:
    """A worker whose attempt wrote two artifacts."""
    artifacts = tmp_path / "runs" / "a1" / "artifacts"
    artifacts.mkdir(parents=True)
    for name in ("one", "two"):
        (artifacts / name).write_text(name)
    return LocalWorker(tmp_path / "runs", "a1")


def test_the_artifacts_of_a_local_job_are_collected(worker: LocalWorker, tmp_path: Path) -> None:
    collected = worker.collect(tmp_path / "run", ())
    assert [file.path for file in collected.files] == ["artifacts/one", "artifacts/two"]
    assert collected.problems == ()
    assert (tmp_path / "run" / "worker0" / "artifacts" / "two").read_text() == "two"


def test_more_files_than_an_index_may_list_wait_with_the_reason(
    worker: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "INDEX_BYTES", 100)
    collected = worker.collect(tmp_path / "run", ())
    [waiting] = collected.waiting
    assert (waiting.path, collected.files) == (collect.EVERYTHING, ())
    assert "one archive" in waiting.why


@pytest.mark.parametrize("left", [False, True])
def test_a_tree_of_any_depth_that_a_job_made_is_removed(worker: LocalWorker, tmp_path: Path, left: bool) -> None:
    (worker.runs / "a1" / "work" / "/".join("d" * 100)).mkdir(parents=True)
    with calls_of_depth(60):
        remove_leftovers(worker.runs, lambda attempt: False) if left else worker.close()
    assert list(worker.runs.iterdir()) == []


def test_a_packer_that_ends_early_is_the_reason(
    worker: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.places.local.worker.AGENT", ("true",))
    [waiting] = worker.collect(tmp_path / "run", ()).waiting
    assert waiting.why
