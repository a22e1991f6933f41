"""What goes from attempt to attempt is one complete copy of a moment, never worse than the one before."""

import errno
import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.errors import ArtifactError
from orchestrator.hosts.fleet.saved_work import SavedWork
from orchestrator.hosts.transfer.collect import EVERYTHING, THE_REST, CollectRequest, CollectResult
from orchestrator.hosts.transfer.collector import ArchivePart, Collector
from orchestrator.promise.lease.cloud_api import WorkerAddress
from orchestrator.promise.lease.run_and_attempt import SavedState
from orchestrator.vm.buckets.manifest import MEASURED

Files = dict[str, str | None]  # path → content; None: it did not come
A, ODD, CUT = "worker0/artifacts/a", "worker0/artifacts/b\t\udcff", f"worker0/{THE_REST}"


class Workers:
    """A fleet of which only the collecting matters: each time it has the next of `copies`, and sends what is asked for."""

    workers = tuple(WorkerAddress(index, "127.0.0.1", 22, "") for index in range(2))

    def __init__(self, *copies: Files) -> None:
        self._copies = list(copies)
        self.sent: list[list[str]] = []

    def collect(self, request: CollectRequest) -> CollectResult:
        copy, collector = self._copies.pop(0), Collector(request)
        self.sent.append([])
        return CollectResult.of([self._collected(collector, index, copy) for index in range(2)])

    def _collected(self, collector: Collector, index: int, copy: Files) -> CollectResult:
        top = f"worker{index}/"
        files = {path.removeprefix(top): content for path, content in copy.items() if path.startswith(top)}
        cut = [files.pop(path) for path in (EVERYTHING, THE_REST) if path in files]
        rows: list[dict[str, Any]] = [
            {"path": path, "size_bytes": len(content), "sha256": hashlib.sha256(content.encode()).hexdigest()}
            for path, content in files.items()
            if content is not None
        ]
        left = [{"path": path, "why": "it did not come"} for path, content in files.items() if content is None]
        part, contents, answers = ArchivePart(index), io.BytesIO(), iter([*rows, *left, {"end": len(rows)}])
        part.result.files |= collector.request.known.get(index, {})

        def send(data: bytes) -> None:
            said = json.loads(data)
            for row in [row for first, after in said for row in rows[first:after]] if isinstance(said, list) else []:
                self.sent[-1].append(top + row["path"])
                contents.write((files[row["path"]] or "").encode())
            contents.seek(0)

        result = collector.collect(part, lambda: collector.receive(part, lambda: next(answers), send, contents.read))
        for file in result.files:  # each is where it is said to be
            place = collector.request.destination / top / (file.place or file.path)
            assert place.read_text() == files[file.path]
        return part.incomplete("the connection was cut") if cut else result


def saved(saved_work: SavedWork) -> dict[str, str]:
    """The files that the next attempt gets."""
    shipments = saved_work.shipments(2, lambda done, total: None)
    return {
        f"worker{worker}/{file.path}": shipment.contents[file.sha256].read_text()
        for worker, shipment in enumerate(shipments)
        if shipment is not None
        for file in shipment.manifest.files
    }


def save(saved_work: SavedWork, *copies: Files) -> list[list[str]]:
    """Make these copies, one after the other. Return what was sent each time."""
    fleet: Any = Workers(*copies)
    for _ in copies:
        copied: Any = saved_work.start(fleet)
        saved_work.keep(copied)
    return list(fleet.sent)


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


def test_a_worker_that_does_not_answer_keeps_what_it_had(tmp_path: Path) -> None:
    saved_work = SavedWork(tmp_path, ())
    both: Files = {"worker0/artifacts/a": "1", "worker1/artifacts/a": "1"}
    save(saved_work, both, {"worker0/artifacts/a": "2", f"worker1/{EVERYTHING}": None})
    assert saved(saved_work) == {"worker0/artifacts/a": "2", "worker1/artifacts/a": "1"}


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


def test_a_disk_without_hard_links_gets_everything_again_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", refuse)
    saved_work = SavedWork(tmp_path, ())
    both: Files = {"worker0/artifacts/a": "1", "worker0/artifacts/b": "1"}
    assert save(saved_work, both, both) == [list(both), list(both)] and saved(saved_work) == both
    save(saved_work, {**both, "worker0/artifacts/a": None})
    assert saved(saved_work) == both
    assert save(saved_work, both) == [["worker0/artifacts/a"]] and saved(saved_work) == both


def test_only_workers_that_left_something_get_something(tmp_path: Path) -> None:
    saved_work = SavedWork(tmp_path / "saved", ())
    save(saved_work, {"worker1/artifacts/checkpoint.pt": "x"})
    first, second = saved_work.shipments(2, lambda done, total: None)
    assert first is None and second is not None and second.files == 1


@pytest.mark.parametrize("paths", [sorted(MEASURED), ["above/data/x", "home/y"]], ids=["measured", "put aside"])
def test_from_what_the_next_attempt_gets_nothing_of_no_attempt_goes_on(tmp_path: Path, paths: list[str]) -> None:
    """There may be more in the bucket of the job, which a worker fetches unless it gets something."""
    saved_work = SavedWork(tmp_path / "saved", ())
    save(saved_work, dict.fromkeys((f"worker{worker}/{path}" for worker in (0, 1) for path in paths), "x"))
    assert saved_work.state() == SavedState()
    assert saved_work.shipments(2, lambda done, total: None) == (None, None)


COPY = st.sampled_from([[], [A], [f"{A}/x"], [f"{A}/x/y", f"{A}/z"]]).flatmap(
    lambda names: st.fixed_dictionaries(
        {name: st.sampled_from(["1", "2", None]) for name in [*names, ODD]}, optional={CUT: st.none()}
    )
)


@settings(max_examples=300, deadline=None)
@given(copies=st.lists(COPY, min_size=2, max_size=6))
@example(copies=[{A: "1", ODD: "1"}, {A: None, ODD: "2"}])  # a checkpoint that could not be read whole
@example(copies=[{f"{A}/x": "1", ODD: "2"}, {ODD: "3"}])  # what the job deleted
@example(copies=[{A: "1", ODD: "1"}, {A: "2", CUT: None}])  # the files of a copy belong together
@example(
    copies=[{A: "1", CUT: None}, {A: "1", ODD: "1"}]
)  # or what takes longer to copy than a slice lives would never come
@example(copies=[{A: "1", ODD: "1"}, {A: "1", ODD: "2"}, {A: "1", ODD: "2"}])
@example(copies=[{A: "1"}, {f"{A}/x": "2"}, {f"{A}/x": "2"}, {f"{A}/x": "3"}])  # a directory where a file was
def test_the_next_attempt_gets_of_each_file_of_any_name_the_last_that_came_whole_and_that_is_sent_once(
    tmp_path_factory: pytest.TempPathFactory, copies: list[Files]
) -> None:
    saved_work = SavedWork(tmp_path_factory.mktemp("saved"), ())
    there: dict[str, str] = {}
    last: dict[str, str] = {}
    for copy in copies:
        files = {path: text for path, text in copy.items() if path != CUT}
        assert set(*save(saved_work, copy)) == {
            path for path, text in files.items() if text not in (None, there.get(path))
        }
        came = {path: text or there.get(path) for path, text in files.items()}
        there = (there if CUT in copy else {}) | {path: text for path, text in came.items() if text is not None}
        last = last if CUT in copy else there
        assert saved(saved_work) == last and saved_work.state().files == len(last)
        for problem in saved_work.left:
            assert ("saved is an earlier state" in problem.why) is (f"worker0/{problem.path}" in last)
        assert all(path.is_file() or any(path.iterdir()) for path in saved_work.of(0).rglob("*"))


def state(tmp_path: Path, *copies: Files) -> SavedState:
    saved_work = SavedWork(tmp_path, ())
    save(saved_work, *copies)
    return saved_work.state()


def checkpoint(content: str, step: object) -> Files:
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    told = json.dumps({"step": step, "file": "checkpoint.pt", "sha256": sha256})
    return {"worker0/artifacts/checkpoint.pt": content, "worker0/artifacts/checkpoint.json": told}


def test_what_tpujob_measures_is_no_work_from_which_a_run_goes_on(tmp_path: Path) -> None:
    measured = {f"worker0/{path}": "{}" for path in MEASURED}
    assert state(tmp_path / "a", measured).files == 0
    found = state(tmp_path / "b", measured | {"worker0/artifacts/model.pt": "1234"})
    assert (found.files, found.size_bytes) == (1, 4)


def test_the_step_is_that_of_the_checkpoint_not_that_of_the_metrics(tmp_path: Path) -> None:
    found = state(tmp_path, checkpoint("at 20", 20) | {"worker0/artifacts/metrics.jsonl": '{"step": 68}\n'})
    assert (found.files, found.step, found.metrics_step) == (3, 20, 68)


TOLD = "worker0/artifacts/checkpoint.json"


@pytest.mark.parametrize(("files", "step"), [
    pytest.param(checkpoint("at 40", 40) | {TOLD: checkpoint("at 20", 20)[TOLD]}, None, id="told of another checkpoint"),
    pytest.param({TOLD: '{"step": 7}'}, 7, id="a job of one's own may tell it alone"),
    *(({TOLD: no_sense}, None)
      for no_sense in ("", "[]", "{}", '{"step": "80"}', '{"step": -1}', '{"step": true}', "[" * 50_000)),
])  # fmt: skip
def test_the_step_is_known_only_if_it_was_told_of_the_saved_checkpoint(
    tmp_path: Path, files: Files, step: int | None
) -> None:
    assert state(tmp_path, files).step == step


def test_the_last_line_with_a_step_counts_and_an_incomplete_one_does_not(tmp_path: Path) -> None:
    text = '{"step": 1}\n{"step": 2, "loss": 1}\n{"loss": 3}\nno json\n{"step": 30'
    assert state(tmp_path, {"worker0/artifacts/metrics.jsonl": text}).metrics_step == 2


@pytest.mark.parametrize(("found", "built_in", "text"), [
    (SavedState(), True, "begins at step 0: nothing was saved"),
    (SavedState(3, 1_200_000, True, 80, 85), True, "goes on at step 80, saved 4 s before the loss"),
    (SavedState(1, 900, metrics_step=5), True, "begins at step 0: no checkpoint was saved, only 1 file (900 bytes)"),
    (SavedState(3, 1_200_000, metrics_step=68), False,
     "goes on from 3 files (1.2 MB, metrics up to step 68), saved 4 s before the loss"),
    (SavedState(2, 2_000), False, "goes on from 2 files (2 KB), saved 4 s before the loss"),
])  # fmt: skip
def test_a_restart_is_described_by_what_is_saved(found: SavedState, built_in: bool, text: str) -> None:
    assert found.text(4.0, built_in=built_in) == text


URL = "gs://b/runs/r/saved"


@pytest.mark.parametrize(("here", "there", "is_there"), [
    pytest.param({}, SavedState(2, 9, step=5, url=URL, at=0.0), True, id="only the bucket has any"),
    pytest.param({"checkpoint.json": '{"step": 5}'}, SavedState(), False, id="only this machine has any"),
    pytest.param({"checkpoint.json": '{"step": 5}'}, SavedState(2, 9, step=6, url=URL, at=0.0), True, id="a later step"),
    pytest.param({"checkpoint.json": '{"step": 5}'}, SavedState(2, 9, step=5, url=URL, at=0.0), True, id="the same step"),
    pytest.param({"checkpoint.json": '{"step": 5}'}, SavedState(2, 9, step=4, url=URL, at=9e9), False, id="an earlier step"),
    pytest.param({"a": "1"}, SavedState(2, 9, step=4, url=URL, at=9e9), True, id="a later time"),
    pytest.param({"a": "1"}, SavedState(2, 9, step=4, url=URL, at=9.0), False, id="an earlier time"),
    pytest.param({"a": "1"}, SavedState(url=URL), False, id="this machine cannot look"),
    pytest.param({}, SavedState(url=URL), False, id="it cannot look, and has nothing"),
])  # fmt: skip
def test_the_newer_one_of_this_machine_and_the_bucket_goes_on(
    tmp_path: Path, here: dict[str, str], there: SavedState, is_there: bool
) -> None:
    saved_work = SavedWork(tmp_path, (), look_in_bucket=lambda: there)
    if here:
        save(saved_work, {f"worker0/artifacts/{name}": text for name, text in here.items()})
    state = saved_work.state()
    assert saved_work.is_in_bucket is is_there
    assert (state == there) is (is_there or not here)


def test_the_words_say_from_where_a_run_goes_on(tmp_path: Path) -> None:
    state = SavedState(2, 9, step=5, url=URL, at=0.0)
    assert state.text(4.0, built_in=False) == f"goes on at step 5, saved 4 s before the loss, in {URL}"
