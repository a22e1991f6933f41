"""What workers save to the bucket of their job, and fetch for the next attempt: on a bucket that is a dictionary."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.vm.buckets import manifest, restore_work, save_work
from orchestrator.vm.buckets.data_objects import Changed, Failed, Source
from orchestrator.vm.buckets.manifest import Copy, File, Manifest, Part, Superseded
from orchestrator.vm.buckets.save_work import Saver
from orchestrator.vm.buckets.saved import Saved
from orchestrator.vm.files.phases import PhaseFiles
from tests.waiting import HANG_S

URL, TOP = "gs://b/runs/r/saved", "runs/r/saved/"
EVERYTHING = {"patterns": [], "beside": 1_000_000}


@dataclass
class Bucket:
    """Objects by name, with their generations. `before_put` is called with each name first, and may refuse it."""

    objects: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    writes: int = 0
    before_put: Callable[[str], str | None] = lambda name: None

    def put(self, name: str, content: bytes, generation: str | None) -> str | None:
        if (why := self.before_put(name)) is not None:
            return why
        if generation not in (None, str(self.objects.get(name, (0, b""))[0])):
            return "HTTP 412 conditionNotMet"
        self.writes += 1
        self.objects[name] = (self.writes, content)
        return None

    @property
    def manifest(self) -> Manifest:
        return Manifest.of_text(self.objects[f"{TOP}manifest.json"][1])

    def steps(self) -> list[int | None]:
        """Return the step of each copy, the newest first."""
        return [copy.step for copy in self.manifest.copies]

    @property
    def names(self) -> set[str]:
        return set(self.objects)


class OfBucket(Source):
    """The requests of one worker."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__()
        self.bucket = bucket

    def rows(self, bucket: str, prefix: str) -> list[dict[str, Any]]:
        found = self.bucket.objects.items()
        return [{"name": name, "size": str(len(text))} for name, (_, text) in found if name.startswith(prefix)]

    def row(self, bucket: str, name: str) -> dict[str, Any] | None:
        found = self.bucket.objects.get(name)
        return found and {"name": name, "size": str(len(found[1])), "generation": str(found[0])}

    def content(self, bucket: str, name: str, generation: str | None = None) -> bytes:
        found = self.bucket.objects.get(name)
        if found is None or generation not in (None, str(found[0])):
            raise Changed("HTTP 404")
        return found[1]

    def put(self, bucket: str, name: str, content: bytes, generation: str | None = None) -> str | None:
        return self.bucket.put(name, content, generation)

    def delete(self, bucket: str, name: str) -> str | None:
        self.bucket.objects.pop(name, None)
        return None

    def account(self) -> str:
        return "vm@p.iam.gserviceaccount.com"


@dataclass
class Host:
    """A worker of an attempt: its own home, and the bucket."""

    bucket: Bucket
    home: Path
    attempt: int = 1
    worker: int = 0
    workers: int = 1
    node: str = "node"

    def __post_init__(self) -> None:
        phase = PhaseFiles(f"r-{self.attempt}", "main", str(self.home / "runs"))
        self.run = Path(phase.run)
        for name in ("main", "work", "artifacts"):
            (self.run / name).mkdir(parents=True)
        (self.run / "main" / "started.json").write_text("{}")
        saved = Saved(URL, self.attempt, self.node, self.worker, self.workers, OfBucket(self.bucket))
        self.saver = Saver(saved, phase, EVERYTHING)
        self.saved = saved

    def write(self, path: str, text: str) -> None:
        target = self.run / path
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(".new")
        draft.write_text(text)
        draft.replace(target)

    def checkpoint(self, step: int, **files: str) -> None:
        for name, text in files.items():
            self.write(f"artifacts/{name}", text)
        self.write("artifacts/checkpoint.json", json.dumps({"step": step}))

    def restore(self) -> dict[str, str]:
        """Return the files of the attempt once its script has fetched what is saved."""
        restore_work._restore(self.saved, self.saved.write(), self.run)
        return self.files()

    def files(self) -> dict[str, str]:
        found = [path for top in ("artifacts", "work") for path in (self.run / top).rglob("*") if path.is_file()]
        return {str(path.relative_to(self.run)): path.read_text() for path in found}


Hosts = Callable[..., Host]


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def host(bucket: Bucket, tmp_path: Path) -> Hosts:
    count = iter(range(100))
    return lambda **how: Host(bucket, tmp_path / str(next(count)), **how)


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the workers say in the log."""
    lines: list[str] = []
    for name in ("restore_work", "save_work", "saved"):
        monkeypatch.setattr(f"orchestrator.vm.buckets.{name}.say", lines.append)
    return lines


def test_the_next_attempt_has_the_files_in_the_state_of_the_newest_copy(host: Hosts, bucket: Bucket) -> None:
    first = host()
    first.checkpoint(10, weights="ten")
    first.write("work/notes/a.txt", "a")
    first.saver.save()
    first.checkpoint(20, weights="twenty")
    first.saver.save()
    assert bucket.steps() == [20, 10]
    second = host(attempt=2)
    second.write("work/notes/a.txt", "of the code")
    found = second.restore()
    assert found == {
        "artifacts/weights": "twenty",
        "artifacts/checkpoint.json": '{"step": 20}',
        "work/notes/a.txt": "a",
    }
    assert json.loads((second.run / "restored.json").read_text()) == ["notes/a.txt"], (
        "they are the job's, not its code's"
    )


def test_only_what_changed_is_sent_and_what_two_copies_do_not_need_is_deleted(host: Hosts, bucket: Bucket) -> None:
    one = host()
    one.write("artifacts/large", "L" * 1000)
    for step in range(5):
        one.checkpoint(step, weights=f"of {step}")
        one.saver.save()
    sent = [name for name, (_, text) in bucket.objects.items() if text == b"L" * 1000]
    assert len(sent) == 1 and "/000001/" in sent[0]
    texts = {text for _, text in bucket.objects.values()}
    assert {b"of 4", b"of 3"} <= texts and not {b"of 2", b"of 1", b"of 0"} & texts
    before = bucket.writes
    one.saver.save()
    assert bucket.writes == before, "nothing has changed"
    assert host(attempt=2).restore()["artifacts/large"] == "L" * 1000


@pytest.mark.parametrize("ends", range(4))
def test_a_copy_that_is_cut_at_any_write_is_never_used(host: Hosts, bucket: Bucket, ends: int) -> None:
    """Two files, the part, the manifest: whichever write is the first that does not arrive."""
    one = host()
    one.checkpoint(10, weights="ten")
    one.saver.save()
    one.checkpoint(20, weights="twenty")
    left = iter([None] * ends)
    bucket.before_put = lambda name: next(left, "HTTP 503")
    with pytest.raises(Exception, match="503"):
        one.saver.save()
    bucket.before_put = lambda name: None
    next_host = host(attempt=2)
    assert next_host.restore()["artifacts/weights"] == "ten"


def test_a_copy_that_was_cut_goes_on_with_what_has_arrived(host: Hosts, bucket: Bucket) -> None:
    one = host()
    one.checkpoint(10, weights="ten")
    bucket.before_put = lambda name: "HTTP 503" if name.endswith("1.json") else None
    with pytest.raises(Exception, match="503"):
        one.saver.save()
    pieces = bucket.writes
    bucket.before_put = lambda name: None
    one.saver.save()
    assert bucket.writes == pieces + 2, "the part and the manifest"


@pytest.mark.parametrize("harm", ["gone", "shorter", "other", "part gone", "part other", "manifest"])
def test_a_damaged_copy_is_left_for_the_older_one(host: Hosts, bucket: Bucket, said: list[str], harm: str) -> None:
    one = host()
    one.checkpoint(10, weights="ten")
    one.saver.save()
    one.checkpoint(20, weights="twenty")
    one.saver.save()
    (piece,) = [name for name, (_, text) in bucket.objects.items() if text == b"twenty"]
    part = bucket.manifest.copies[0].parts[0][0]
    name = part if "part" in harm else piece
    if harm == "manifest":
        broken = json.loads(bucket.objects[f"{TOP}manifest.json"][1])
        broken["copies"][0]["parts"][0][1] = "0" * 64
        bucket.objects[f"{TOP}manifest.json"] = (99, json.dumps(broken).encode())
    elif harm.endswith("gone"):
        del bucket.objects[name]
    else:
        bucket.objects[name] = (99, {"shorter": b"twen", "other": b"TWENTY"}.get(harm, b"{}"))
    assert host(attempt=2).restore()["artifacts/weights"] == "ten"
    assert "a copy of the saved work cannot be used" in said[-2] and "saved work of step 10 from gs://b" in said[-1]


def test_without_any_copy_that_can_be_used_the_job_begins_anew(host: Hosts, bucket: Bucket, said: list[str]) -> None:
    one = host()
    one.checkpoint(10)
    one.saver.save()
    for name in bucket.names - {f"{TOP}manifest.json"}:
        del bucket.objects[name]
    assert host(attempt=2).restore() == {}
    assert said[-1] == "no copy of the saved work can be used: the job begins anew"


def test_all_workers_choose_the_same_copy_though_only_one_of_them_lacks_a_file(host: Hosts, bucket: Bucket) -> None:
    pair = [host(worker=index, workers=2) for index in range(2)]
    for step in (10, 20):
        for one in reversed(pair):
            one.checkpoint(step, weights=f"{one.worker} at {step}")
            one.saver.save()
    (lost,) = [name for name, (_, text) in bucket.objects.items() if text == b"1 at 20"]
    del bucket.objects[lost]
    found = [host(attempt=2, worker=index, workers=2).restore()["artifacts/weights"] for index in range(2)]
    assert found == ["0 at 10", "1 at 10"]


def test_a_file_of_several_workers_with_another_content_ends_the_attempt_and_the_next_has_the_older_copy(
    host: Hosts, bucket: Bucket
) -> None:
    """The others may have begun with that copy."""
    pair = [host(worker=index, workers=2) for index in range(2)]
    for step in (10, 20):
        for one in reversed(pair):
            one.checkpoint(step, weights=f"{one.worker} at {step}")
            one.saver.save()
    (harmed,) = [name for name, (_, text) in bucket.objects.items() if text == b"1 at 20"]
    bucket.objects[harmed] = (99, b"2 at 20")
    with pytest.raises(SystemExit):
        host(attempt=2, worker=1, workers=2).restore()
    found = [host(attempt=3, worker=index, workers=2).restore()["artifacts/weights"] for index in range(2)]
    assert found == ["0 at 10", "1 at 10"]


def test_workers_at_different_steps_have_no_copy_together_until_both_have_the_same(host: Hosts, bucket: Bucket) -> None:
    first, second = (host(worker=index, workers=2) for index in range(2))
    second.checkpoint(10)
    second.saver.save()
    first.saved.write()
    assert bucket.steps() == []
    first.checkpoint(20)
    first.saver.save()
    assert bucket.steps() == [], "steps 20 and 10"
    second.checkpoint(20)
    second.saver.save()
    second.checkpoint(30)
    second.saver.save()
    first.saver.save()
    assert bucket.steps() == [20], "of worker 1 the part before its last"
    found = [host(attempt=2, worker=index, workers=2).restore()["artifacts/checkpoint.json"] for index in range(2)]
    assert found == ['{"step": 20}'] * 2


def test_a_worker_without_a_step_goes_with_any_and_one_without_files_too(host: Hosts, bucket: Bucket) -> None:
    first, second = (host(worker=index, workers=2) for index in range(2))
    second.saver.save()
    first.checkpoint(20)
    first.saver.save()
    assert [(copy.step, copy.files) for copy in bucket.manifest.copies] == [(20, 1)]


def stopped(host: Host) -> None:
    """Let the saver of a job that is stopped make its last copy."""
    (host.run / "main" / "stop.json").write_text(json.dumps({"grace_s": HANG_S}))
    host.saver.stopping.set()
    host.saver.run(1.0)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_last_copy_has_the_last_part_of_each_worker_in_whatever_order_they_are_stopped(
    host: Hosts, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, order: tuple[int, int]
) -> None:
    monkeypatch.setattr(save_work, "LEAST_S", 0.0)  # the other one is stopped much later
    hosts = [host(worker=index, workers=2) for index in range(2)]
    for each in reversed(hosts):
        each.write("work/count", "early")
        each.saver.save()
    for index in order:
        hosts[index].write("work/count", f"late {index}")
        stopped(hosts[index])
    assert all(name.endswith("000003.last.json") for name, _ in bucket.manifest.copies[0].parts)
    found = [host(attempt=2, worker=index, workers=2).restore()["work/count"] for index in range(2)]
    assert found == ["late 0", "late 1"]


def test_worker_0_waits_a_little_for_those_that_are_stopped_with_it(host: Hosts, bucket: Bucket) -> None:
    first, second, gone = (host(worker=index, workers=3) for index in range(3))
    gone.saver.save()
    other = threading.Timer(0.5, stopped, (second,))
    other.start()
    stopped(first)
    other.join()
    names = [name.rpartition("/")[2] for name, _ in bucket.manifest.copies[0].parts]
    assert names == ["000002.last.json", "000002.last.json", "000001.json"]


def test_the_last_to_save_joins_nothing_but_last_parts(
    host: Hosts, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know which others are there. What has no step would fit any."""
    monkeypatch.setattr(save_work, "LEAST_S", 0.0)
    first, second = (host(worker=index, workers=2) for index in range(2))
    for step in (None, 100):
        for each in (second, first):
            each.write("work/count", f"at {step}") if step is None else each.checkpoint(step)
            each.saver.save()
    first.checkpoint(103)  # the other one waits for it, and is at 100
    stopped(first)
    stopped(second)
    assert bucket.steps()[0] == 100
    assert [host(attempt=2, worker=index, workers=2).restore()["artifacts/checkpoint.json"] for index in range(2)] == [
        json.dumps({"step": 100})
    ] * 2


def test_a_part_that_arrived_without_an_answer_is_not_the_last_one(host: Hosts, bucket: Bucket) -> None:
    first, second = (host(worker=index, workers=2) for index in range(2))
    second.write("work/count", "early")
    second.saver.save()

    def put(name: str, content: bytes, generation: str | None) -> str | None:
        if name.endswith(".last.json"):
            first.write("work/count", "more")
            first.saver.save()  # joins, and tidies, before the last part is there
        Bucket.put(bucket, name, content, generation)
        return "the answer was lost" if name.endswith("worker1/000002.json") else None

    bucket.put = put  # type: ignore[method-assign]
    second.write("work/count", "middle")
    with pytest.raises(Failed, match="the answer was lost"):
        second.saver.save()
    first.saver.save()
    second.write("work/count", "late")
    stopped(second)
    first.saver.save()
    assert host(attempt=2, worker=1, workers=2).restore()["work/count"] == "late"


def test_a_copy_of_older_parts_does_not_take_the_place_of_a_newer_one_of_its_attempt() -> None:
    older, newer, other = (
        Copy(0.0, None, None, 0, 0, False, tuple((f"s/{at}-n/worker{each}/00000{number}.json", "") for each in (0, 1)))
        for at, number in ((10, 1), (10, 2), (9, 5))
    )
    before = Manifest(10, "n", (newer, other))
    assert manifest.written(before, 10, "n", older) == before
    assert manifest.written(Manifest(9, "n", (other,)), 10, "n", older).copies == (older, other)


def test_an_older_attempt_that_still_writes_changes_nothing_for_a_newer_one(host: Hosts, bucket: Bucket) -> None:
    old = host()
    old.checkpoint(10, weights="ten")
    old.saver.save()
    new = host(attempt=2, node="another")
    assert new.restore()["artifacts/weights"] == "ten"
    old.checkpoint(20, weights="twenty of the dead")
    with pytest.raises(Superseded, match="attempt 2 of this run has begun, on another"):
        old.saver.save()
    assert bucket.steps() == [10]
    new.checkpoint(15, weights="fifteen")
    new.saver.save()
    assert host(attempt=3).restore()["artifacts/weights"] == "fifteen"


def test_a_write_of_an_older_attempt_between_read_and_write_of_a_newer_one_is_seen(host: Hosts, bucket: Bucket) -> None:
    old, new = host(), host(attempt=2, node="another")
    old.checkpoint(10, weights="ten")
    old.saver.save()
    old.checkpoint(20, weights="twenty")
    meanwhile = iter([old.saver.save])

    def late(name: str) -> None:
        if name.endswith("manifest.json"):
            next(meanwhile, lambda: None)()

    bucket.before_put = late
    assert new.restore()["artifacts/weights"] == "twenty"
    assert bucket.manifest.attempt == 2


def test_two_attempts_of_one_number_do_not_both_write(host: Hosts) -> None:
    host(attempt=2, node="one").saved.write()
    with pytest.raises(Superseded, match="on one"):
        host(attempt=2, node="other").saved.write()


def test_the_answer_to_a_write_that_was_lost_is_found_in_the_bucket(host: Hosts, bucket: Bucket) -> None:
    one = host()
    one.checkpoint(10)
    real, lost = bucket.put, iter([True])

    def put(name: str, content: bytes, generation: str | None) -> str | None:
        said = real(name, content, generation)
        if name.endswith("manifest.json") and next(lost, False):
            return real(name, content, generation)  # tried again
        return said

    bucket.put = put  # type: ignore[method-assign]
    one.saver.save()
    assert bucket.steps() == [10]


def test_what_takes_the_place_of_a_file_while_it_is_sent_does_not_tear_the_copy(host: Hosts, bucket: Bucket) -> None:
    one = host()
    one.checkpoint(10, weights="ten")

    def meanwhile(name: str) -> None:
        if name.endswith(".0"):
            one.checkpoint(20, weights="twenty")
            one.write("artifacts/log", "grown")

    bucket.before_put = meanwhile
    one.saver.save()
    bucket.before_put = lambda name: None
    assert host(attempt=2).restore() == {"artifacts/weights": "ten", "artifacts/checkpoint.json": '{"step": 10}'}


def test_a_file_that_is_written_to_in_its_place_stays_in_its_last_state(
    host: Hosts, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = host()
    one.checkpoint(10, weights="ten")
    one.saver.save()
    one.checkpoint(20, weights="20!")
    content = save_work.pack.content
    monkeypatch.setattr(
        save_work.pack, "content", lambda *file: [piece.replace(b"20!", b"XX!") for piece in content(*file)]
    )
    for _ in range(save_work.MOST_TORN):
        one.saver.save()
        assert bucket.steps() == [10], "it may come whole the next time"
    one.saver.save()
    assert bucket.steps() == [20, 10]
    assert host(attempt=2).restore()["artifacts/weights"] == "ten"


def test_a_step_counts_only_for_the_very_checkpoint_that_is_saved(host: Hosts, bucket: Bucket) -> None:
    one = host()
    one.write("artifacts/checkpoint.pt", "weights")
    one.write("artifacts/checkpoint.json", json.dumps({"step": 7, "file": "checkpoint.pt", "sha256": "0" * 64}))
    one.write("artifacts/metrics.jsonl", '{"step": 5}\n{"step": 8, "lo')
    one.saver.save()
    copy = bucket.manifest.copies[0]
    assert (copy.step, copy.metrics_step, copy.has_checkpoint, copy.files) == (None, 5, True, 3)


def test_a_large_file_comes_in_pieces(host: Hosts, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_work, "PIECE_BYTES", 4)
    monkeypatch.setattr("orchestrator.vm.files.pack.PIECE_BYTES", 2)
    one = host()
    one.write("artifacts/large", "0123456789")
    one.write("artifacts/empty", "")
    one.saver.save()
    assert {text for name, (_, text) in bucket.objects.items() if "/000001/" in name} == {b"0123", b"4567", b"89", b""}
    assert host(attempt=2).restore() == {"artifacts/large": "0123456789", "artifacts/empty": ""}


@pytest.mark.parametrize("path", ["/etc/x", "artifacts/../../x", "home/x", "artifacts", "work//x", "above/x"])
def test_no_file_is_written_elsewhere(host: Hosts, bucket: Bucket, path: str, said: list[str]) -> None:
    part = Part(1, 0.0, None, None, (File(path, 0, "", ()),))
    name = f"{TOP}1-node/worker0/000001.json"
    bucket.put(name, part.text(), None)
    bucket.put(f"{TOP}manifest.json", Manifest(1, "node", (Copy.of([(name, part)]),)).text(), None)
    assert host(attempt=2).restore() == {}
    assert "is no path of saved work" in said[0]


@pytest.mark.parametrize("text", [
    b"", b"[]", b"{}", b"null", b'{"schema": 2}', b'{"schema": 1, "attempt": 1, "node": "n", "copies": [{}]}',
    b'{"schema": 1, "attempt": "x", "node": "n", "copies": []}', b"[" * 100_000,
])  # fmt: skip
def test_a_manifest_that_is_none_is_an_error_that_is_said(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Manifest.of_text(text)


def test_what_is_being_made_or_of_another_place_is_kept_as_it_should(host: Hosts) -> None:
    place = f"{TOP}2-n/"
    part = Part(2, 0.0, None, None, (File("work/a", 1, "x", (f"{TOP}1-m/worker0/000009/a.0",)),))
    names = [f"{place}worker0/000003/b.0", f"{place}worker0/000001/b.0", f"{place}worker0/000002.json",
        f"{TOP}1-m/worker0/000009/a.0", f"{TOP}1-m/worker0/000009.json", f"{TOP}manifest.json", f"{TOP}of-someone"]  # fmt: skip
    unneeded = manifest.unneeded(names, {}, {f"{place}worker0/000002.json": part}, place)
    assert unneeded == [f"{place}worker0/000001/b.0", f"{TOP}1-m/worker0/000009.json", f"{TOP}of-someone"]
