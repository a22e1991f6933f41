"""The worker of a local job collects with the packer of a worker, and reports what it cannot collect."""

from pathlib import Path

import pytest

from orchestrator.errors import RemoteError
from orchestrator.places.local.crew import LocalCrew, ask_to_end, remove_leftovers
from orchestrator.remote.fleet.follow import WorkerState
from orchestrator.remote.fleet.steps import StartRequest
from orchestrator.remote.transfer import collect
from orchestrator.remote.transfer.collect import CollectRequest, CollectResult
from tests.disk import calls_of_depth


@pytest.fixture
def crew(tmp_path: Path) -> LocalCrew:
    """A worker whose attempt wrote two artifacts."""
    artifacts = tmp_path / "runs" / "a1" / "artifacts"
    artifacts.mkdir(parents=True)
    for name in ("one", "two"):
        (artifacts / name).write_text(name)
    return LocalCrew(tmp_path / "runs", "a1")


def collected_by(crew: LocalCrew, directory: Path) -> CollectResult:
    found = crew.collect(CollectRequest("", directory / "run", ())).wait(60.0).result
    assert found is not None
    return found


def test_the_artifacts_of_a_local_job_are_collected(crew: LocalCrew, tmp_path: Path) -> None:
    collected = collected_by(crew, tmp_path)
    assert [file.path for file in collected.files] == ["artifacts/one", "artifacts/two"]
    assert collected.problems == ()
    assert (tmp_path / "run" / "worker0" / "artifacts" / "two").read_text() == "two"


def test_a_collection_that_a_signal_ended_the_wait_for_is_gone_on_with(crew: LocalCrew, tmp_path: Path) -> None:
    """A second one would write the same files at the same time."""
    order = CollectRequest("", tmp_path / "run", ())
    first = crew.collect(order)
    assert crew.collect(order) is first
    assert first.wait(60.0).result is not None and crew.collect(order) is first


def test_only_a_phase_that_runs_is_asked_to_end(crew: LocalCrew) -> None:
    crew.start(StartRequest("a1", "main", "sleep 600", ({},)))
    crew.follow(lambda worker, data: None)
    assert crew.wait(60.0).workers[0].state is WorkerState.RUNNING, "the first look tells that at once"
    assert not crew.asked_to_end()
    ask_to_end(crew.runs, crew.attempt)
    assert crew.asked_to_end()
    crew.stop(0.0)
    assert not crew.asked_to_end(), "what has ended is judged by its end"
    with pytest.raises(RemoteError, match="was stopped"):
        crew.start(StartRequest("a1", "main", "sleep 600", ({},)))


def test_more_files_than_an_index_may_list_wait_with_the_reason(
    crew: LocalCrew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "INDEX_BYTES", 100)
    collected = collected_by(crew, tmp_path)
    [waiting] = collected.waiting
    assert (waiting.path, collected.files) == (collect.EVERYTHING, ())
    assert "one archive" in waiting.why


@pytest.mark.parametrize("left", [False, True])
def test_a_tree_of_any_depth_that_a_job_made_is_removed(crew: LocalCrew, tmp_path: Path, left: bool) -> None:
    (crew.runs / "a1" / "work" / "/".join("d" * 100)).mkdir(parents=True)
    with calls_of_depth(60):
        remove_leftovers(crew.runs, lambda attempt: False) if left else crew.close()
    assert list(crew.runs.iterdir()) == []


def test_a_packer_that_ends_early_is_the_reason(
    crew: LocalCrew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.places.local.crew.AGENT", ("true",))
    [waiting] = collected_by(crew, tmp_path).waiting
    assert waiting.why
