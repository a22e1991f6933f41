"""What is carried from attempt to attempt is never worse than what was carried before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.remote.transfer.collect import EVERYTHING, THE_REST, CollectRequest, CollectResult, Problem
from orchestrator.remote.transfer.saved_work import SavedWork


class Workers:
    """A fleet of which only the collecting matters: each time it brings the next of `brought`."""

    def __init__(self, *brought: dict[str, str | None]) -> None:
        self._brought = list(brought)

    def collect(self, order: CollectRequest) -> Workers:
        self._order = order
        return self

    def within(self, seconds: float) -> CollectResult:
        destination, waiting = self._order.destination, []
        for path, content in self._brought.pop(0).items():
            worker, _, inside = path.partition("/")
            if content is None:
                waiting.append(Problem(int(worker.removeprefix("worker")), inside, "it changed while it was read"))
                continue
            (destination / path).parent.mkdir(parents=True, exist_ok=True)
            (destination / path).write_text(content)
        return CollectResult(waiting=tuple(waiting))


def carried(saved_work: SavedWork) -> dict[str, str]:
    found = (path for path in saved_work.directory.rglob("*") if path.is_file())
    return {str(path.relative_to(saved_work.directory)): path.read_text() for path in found}


def pull(saved_work: SavedWork, *brought: dict[str, str | None]) -> None:
    fleet: Any = Workers(*brought)
    for _ in brought:
        saved_work.pull(fleet, 1.0)


def test_a_checkpoint_that_could_not_be_read_whole_is_kept_from_before(tmp_path: Path) -> None:
    saved_work = SavedWork(tmp_path, ())
    first: dict[str, str | None] = {"worker0/artifacts/checkpoint.pt": "one", "worker0/artifacts/log": "a"}
    pull(saved_work, first, {"worker0/artifacts/checkpoint.pt": None, "worker0/artifacts/log": "b"})
    assert carried(saved_work) == {"worker0/artifacts/checkpoint.pt": "one", "worker0/artifacts/log": "b"}


def test_what_the_job_deleted_is_not_carried_on(tmp_path: Path) -> None:
    saved_work = SavedWork(tmp_path, ())
    pull(saved_work, {"worker0/artifacts/old": "1", "worker0/artifacts/new": "2"}, {"worker0/artifacts/new": "3"})
    assert carried(saved_work) == {"worker0/artifacts/new": "3"}


def test_a_worker_that_does_not_answer_keeps_what_it_had(tmp_path: Path) -> None:
    saved_work = SavedWork(tmp_path, ())
    both: dict[str, str | None] = {"worker0/artifacts/a": "1", "worker1/artifacts/a": "1"}
    pull(saved_work, both, {"worker0/artifacts/a": "2", f"worker1/{EVERYTHING}": None})
    assert carried(saved_work) == {"worker0/artifacts/a": "2", "worker1/artifacts/a": "1"}


def test_a_worker_that_was_cut_off_halfway_keeps_what_it_had(tmp_path: Path) -> None:
    saved_work = SavedWork(tmp_path, ())
    both: dict[str, str | None] = {"worker0/artifacts/a": "1", "worker0/artifacts/b": "1"}
    pull(saved_work, both, {"worker0/artifacts/a": "2", f"worker0/{THE_REST}": None})
    assert carried(saved_work) == both


def test_only_workers_that_left_something_get_something(tmp_path: Path) -> None:
    saved_work = SavedWork(tmp_path / "saved", ())
    pull(saved_work, {"worker1/artifacts/checkpoint.pt": "x"})
    first, second = saved_work.bundles(2, tmp_path / "bundles")
    assert first is None and second is not None and second.files == 1
