"""What goes from attempt to attempt is one complete copy of a moment, never worse than the one before."""

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.core.lease.saved_state import SavedState
from orchestrator.errors import ArtifactError
from orchestrator.remote.transfer.collect import (
    EVERYTHING,
    THE_REST,
    CollectedFile,
    CollectRequest,
    CollectResult,
    Problem,
)
from orchestrator.remote.transfer.saved_work import SavedWork

Files = dict[str, str | None]  # path → content; None: it did not come


class Workers:
    """A fleet of which only the collecting matters: each time it has the next of `copies`, and sends what is not known."""

    workers = tuple(WorkerAddress(index, "127.0.0.1", 22, "") for index in range(2))

    def __init__(self, *copies: Files) -> None:
        self._copies = list(copies)
        self.sent: list[list[str]] = []

    def collect(self, request: CollectRequest) -> CollectResult:
        files, waiting, sent = [], [], []
        for path, content in self._copies.pop(0).items():
            worker, _, inside = path.partition("/")
            index = int(worker.removeprefix("worker"))
            if content is None:
                waiting.append(Problem(index, inside, "it did not come"))
                continue
            place = inside.replace("\t", "_")
            sha256 = hashlib.sha256(content.encode()).hexdigest()
            file = CollectedFile(index, inside, len(content), sha256, place if place != inside else "")
            known = request.known[index].get(inside)
            if known is None or known.sha256 != file.sha256:
                sent.append(path)
                target = request.destination / worker / place
                target.parent.mkdir(parents=True, exist_ok=True)
                draft = target.with_name(".draft")  # a file gets its name when it is complete
                draft.write_text(content)
                draft.rename(target)
            assert (request.destination / worker / place).read_text() == content
            files.append(file)
        self.sent.append(sent)
        return CollectResult(tuple(files), waiting=tuple(waiting))


def saved(saved_work: SavedWork) -> dict[str, str]:
    """The files that the next attempt gets."""
    found = {}
    for worker in range(2):
        top = saved_work.of(worker)
        for path in top.rglob("*"):
            if path.is_file():
                found[f"worker{worker}/{path.relative_to(top)}"] = path.read_text()
    return found


def save(saved_work: SavedWork, *copies: Files) -> list[list[str]]:
    """Make these copies, one after the other. Return what was sent each time."""
    fleet: Any = Workers(*copies)
    for _ in copies:
        copied: Any = saved_work.start(fleet)
        saved_work.keep(copied)
    return list(fleet.sent)


def test_a_checkpoint_that_could_not_be_read_whole_is_kept_from_before(tmp_path: Path) -> None:
    saved_work = SavedWork(tmp_path, ())
    first: Files = {"worker0/artifacts/checkpoint.pt": "one", "worker0/artifacts/log": "a"}
    save(saved_work, first, {"worker0/artifacts/checkpoint.pt": None, "worker0/artifacts/log": "b"})
    assert saved(saved_work) == {"worker0/artifacts/checkpoint.pt": "one", "worker0/artifacts/log": "b"}


def test_a_disk_that_refuses_the_new_copy_leaves_the_last_one_and_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_work = SavedWork(tmp_path, ())
    fleet: Any = Workers({"worker0/artifacts/log": "a"}, {"worker0/artifacts/log": "b"})
    first: Any = saved_work.start(fleet)
    saved_work.keep(first)
    second: Any = saved_work.start(fleet)
    rename = Path.rename

    def full(path: Path, target: Path) -> Path:
        if ".draft" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", full)
        with pytest.raises(ArtifactError, match="No space left on device"):
            saved_work.keep(second)
    assert saved(saved_work) == {"worker0/artifacts/log": "a"}


def test_what_the_job_deleted_is_not_saved_any_more(tmp_path: Path) -> None:
    saved_work = SavedWork(tmp_path, ())
    save(saved_work, {"worker0/artifacts/old/1": "1", "worker0/artifacts/new": "2"}, {"worker0/artifacts/new": "3"})
    assert saved(saved_work) == {"worker0/artifacts/new": "3"} and not (saved_work.of(0) / "artifacts/old").exists()


def test_a_worker_that_does_not_answer_keeps_what_it_had(tmp_path: Path) -> None:
    saved_work = SavedWork(tmp_path, ())
    both: Files = {"worker0/artifacts/a": "1", "worker1/artifacts/a": "1"}
    save(saved_work, both, {"worker0/artifacts/a": "2", f"worker1/{EVERYTHING}": None})
    assert saved(saved_work) == {"worker0/artifacts/a": "2", "worker1/artifacts/a": "1"}


def test_a_copy_that_was_cut_off_changes_nothing_because_its_files_belong_together(tmp_path: Path) -> None:
    saved_work = SavedWork(tmp_path, ())
    both: Files = {"worker0/artifacts/a": "1", "worker0/artifacts/b": "1"}
    save(saved_work, both, {"worker0/artifacts/a": "2", f"worker0/{THE_REST}": None})
    assert saved(saved_work) == {"worker0/artifacts/a": "1", "worker0/artifacts/b": "1"}


def test_the_copy_after_one_that_was_cut_off_asks_only_for_the_rest(tmp_path: Path) -> None:
    """Otherwise work that takes longer to copy than a slice lives would never be saved."""
    saved_work = SavedWork(tmp_path, ())
    cut: Files = {"worker0/artifacts/a": "1", f"worker0/{THE_REST}": None}
    whole: Files = {"worker0/artifacts/a": "1", "worker0/artifacts/b": "1"}
    assert save(saved_work, cut, whole) == [["worker0/artifacts/a"], ["worker0/artifacts/b"]]
    assert saved(saved_work) == {"worker0/artifacts/a": "1", "worker0/artifacts/b": "1"}


def test_only_what_changed_since_the_last_copy_is_sent(tmp_path: Path) -> None:
    saved_work = SavedWork(tmp_path, ())
    first: Files = {"worker0/artifacts/big": "1", "worker0/artifacts/step": "1"}
    second: Files = {"worker0/artifacts/big": "1", "worker0/artifacts/step": "2"}
    assert save(saved_work, first, second, second)[1:] == [["worker0/artifacts/step"], []]
    assert saved(saved_work) == {"worker0/artifacts/big": "1", "worker0/artifacts/step": "2"}


@pytest.mark.parametrize("at", [1, 2])
def test_a_complete_copy_is_there_whenever_this_process_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    saved_work = SavedWork(tmp_path, ())
    save(saved_work, {"worker0/artifacts/a": "1"})
    renames, rename = 0, Path.rename

    def killed(path: Path, target: Path) -> Path:
        nonlocal renames
        if path.name.startswith(("worker", ".worker")):
            renames += 1
            if renames == at:
                raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        save(saved_work, {"worker0/artifacts/a": "2"})
    assert saved(SavedWork(tmp_path, ())) == {"worker0/artifacts/a": "1"}


def test_a_disk_without_hard_links_gets_everything_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", refuse)
    saved_work = SavedWork(tmp_path, ())
    both: Files = {"worker0/artifacts/a": "1", "worker0/artifacts/b": "1"}
    assert save(saved_work, both, both) == [list(both), list(both)] and saved(saved_work) == both


def test_only_workers_that_left_something_get_something(tmp_path: Path) -> None:
    saved_work = SavedWork(tmp_path / "saved", ())
    save(saved_work, {"worker1/artifacts/checkpoint.pt": "x"})
    first, second = saved_work.shipments(2, lambda done, total: None)
    assert first is None and second is not None and second.files == 1


def test_the_next_attempt_gets_a_file_of_any_name_under_its_own(tmp_path: Path) -> None:
    saved_work, odd = SavedWork(tmp_path / "saved", ()), "worker0/artifacts/a\t\udcff"
    save(saved_work, {odd: "one", "worker0/artifacts/x": "a"}, {odd: None, "worker0/artifacts/x": "b"})
    shipment, _ = saved_work.shipments(2, lambda done, total: None)
    assert shipment is not None
    files = {file.path: file.size_bytes for file in shipment.manifest.files}
    assert files == {"artifacts/a\t\udcff": 3, "artifacts/x": 1}


def state(tmp_path: Path, *copies: Files) -> SavedState:
    saved_work = SavedWork(tmp_path, ())
    save(saved_work, *copies)
    return saved_work.state()


def checkpoint(content: str, step: object) -> Files:
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    told = json.dumps({"step": step, "file": "checkpoint.pt", "sha256": sha256})
    return {"worker0/artifacts/checkpoint.pt": content, "worker0/artifacts/checkpoint.json": told}


def test_the_step_is_that_of_the_checkpoint_not_that_of_the_metrics(tmp_path: Path) -> None:
    found = state(tmp_path, checkpoint("at 20", 20) | {"worker0/artifacts/metrics.jsonl": '{"step": 68}\n'})
    assert (found.files, found.step, found.metrics_step) == (3, 20, 68)


def test_the_step_is_unknown_if_it_was_told_of_another_checkpoint_than_the_saved_one(tmp_path: Path) -> None:
    older = {"worker0/artifacts/checkpoint.json": checkpoint("at 20", 20)["worker0/artifacts/checkpoint.json"]}
    assert state(tmp_path, checkpoint("at 40", 40) | older).step is None


def test_a_job_of_ones_own_may_tell_the_step_alone(tmp_path: Path) -> None:
    assert state(tmp_path, {"worker0/artifacts/checkpoint.json": '{"step": 7}'}).step == 7


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"step": "80"}', '{"step": -1}', '{"step": true}', "[" * 50_000])
def test_a_checkpoint_file_that_makes_no_sense_tells_nothing(tmp_path: Path, text: str) -> None:
    assert state(tmp_path, {"worker0/artifacts/checkpoint.json": text}).step is None


def test_the_last_line_with_a_step_counts_and_an_incomplete_one_does_not(tmp_path: Path) -> None:
    text = '{"step": 1}\n{"step": 2, "loss": 1}\n{"loss": 3}\nno json\n{"step": 30'
    assert state(tmp_path, {"worker0/artifacts/metrics.jsonl": text}).metrics_step == 2


@pytest.mark.parametrize(
    ("found", "built_in", "text"),
    [
        (SavedState(), True, "begins at step 0: nothing was saved"),
        (SavedState(3, 1_200_000, True, 80, 85), True, "goes on at step 80, saved 4 s before the loss"),
        (
            SavedState(1, 900, metrics_step=5),
            True,
            "begins at step 0: no checkpoint was saved, only 1 file (900 bytes)",
        ),
        (
            SavedState(3, 1_200_000, metrics_step=68),
            False,
            "goes on from 3 files (1.2 MB, metrics up to step 68), saved 4 s before the loss",
        ),
        (SavedState(2, 2_000), False, "goes on from 2 files (2 KB), saved 4 s before the loss"),
    ],
)
def test_a_restart_is_described_by_what_is_saved(found: SavedState, built_in: bool, text: str) -> None:
    assert found.text(4.0, built_in=built_in) == text
