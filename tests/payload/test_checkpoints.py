"""Checkpoints as files: whole or absent, checked by their contents, so many and no more."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("numpy")

from payload import artifacts
from payload.failures import BadConfig, CannotSave, Diverged

if TYPE_CHECKING:
    from payload.checkpoints import Checkpoints, Interval

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("torch")]


class Alone:
    """A world of one process."""

    rank = 0

    def broadcast(self, content: bytes) -> bytes:
        return content


def place(directory: Path, printed: list[str] | None = None, *, keep: int = 1, **identity: Any) -> Checkpoints:
    from payload.checkpoints import Checkpoints

    return Checkpoints(directory, identity, (printed if printed is not None else []).append, keep=keep)


def state(number: float) -> dict[str, Any]:
    import torch

    return {"model": {"w": torch.full((3,), number), "b": torch.tensor(number)}, "rates": (0.1, number), "done": None}


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != "checkpoint.json")


def load(directory: Path, **identity: Any) -> Any:
    return place(directory, **identity).load(Alone())  # type: ignore[arg-type]


def test_what_was_saved_comes_back(torch: Any, tmp_path: Path) -> None:
    assert load(tmp_path) is None
    place(tmp_path).save(7, state(1.5))
    found = load(tmp_path)
    assert (found["step"], found["rates"], found["done"]) == (7, [0.1, 1.5], None)
    assert torch.equal(found["model"]["w"], torch.full((3,), 1.5))
    assert names(tmp_path) == ["checkpoint.pt"]


def test_the_step_of_the_newest_is_told_beside_it_with_its_hash(tmp_path: Path) -> None:
    checkpoints = place(tmp_path, keep=2)
    for step in (20, 40):
        checkpoints.save(step, state(step))
    told = json.loads((tmp_path / "checkpoint.json").read_text())
    sha256 = hashlib.sha256((tmp_path / "checkpoint.pt").read_bytes()).hexdigest()
    assert told == {"step": 40, "file": "checkpoint.pt", "sha256": sha256}


def test_the_newest_so_many_are_kept(tmp_path: Path) -> None:
    checkpoints = place(tmp_path, keep=3)
    for step in (10, 20, 30, 40, 50):
        checkpoints.save(step, state(step))
    assert names(tmp_path) == ["checkpoint-000000030.pt", "checkpoint-000000040.pt", "checkpoint.pt"]
    assert load(tmp_path)["step"] == 50


def test_what_is_kept_is_the_same_after_a_resume(tmp_path: Path) -> None:
    place(tmp_path, keep=2).save(10, state(1))
    again = place(tmp_path, keep=2)
    again.load(Alone())  # type: ignore[arg-type]
    again.save(20, state(2))
    assert names(tmp_path) == ["checkpoint-000000010.pt", "checkpoint.pt"]


@pytest.mark.parametrize("damage", ["shorter", "one bit", "empty", "other text"])
def test_a_damaged_one_is_skipped_with_a_line_in_the_log(torch: Any, tmp_path: Path, damage: str) -> None:
    checkpoints = place(tmp_path, keep=2)
    checkpoints.save(10, state(1.0))
    checkpoints.save(20, state(2.0))
    newest = tmp_path / "checkpoint.pt"
    content = bytearray(newest.read_bytes())
    at = content.find(torch.full((3,), 2.0).numpy().tobytes())
    assert at > 0
    content[at] ^= 1
    newest.write_bytes(
        {"shorter": newest.read_bytes()[:-10], "one bit": bytes(content), "empty": b"", "other text": b"hello"}[damage]
    )
    printed: list[str] = []
    found = place(tmp_path, printed).load(Alone())  # type: ignore[arg-type]
    assert found is not None and found["step"] == 10
    assert len(printed) == 1 and printed[0].startswith("checkpoint.pt is damaged and is skipped: ")


def test_one_of_another_training_is_refused(tmp_path: Path) -> None:
    place(tmp_path, lr=0.1, seed=1).save(10, state(1))
    assert load(tmp_path, lr=0.1, seed=1)["step"] == 10
    with pytest.raises(BadConfig, match=r"of another training \(seed was 1, now it is 2\)"):
        load(tmp_path, lr=0.1, seed=2)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_never_replace_good_ones(tmp_path: Path, number: float) -> None:
    checkpoints = place(tmp_path)
    checkpoints.save(10, state(1))
    with pytest.raises(Diverged, match="the weights after step 11 are not finite; the checkpoint of step 10 is intact"):
        checkpoints.save(11, state(number))
    assert load(tmp_path)["step"] == 10


def test_a_full_disk_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = place(tmp_path)
    checkpoints.save(10, state(1))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artifacts.os, "fsync", full)
    with pytest.raises(CannotSave, match=r"\(No space left on device\); the checkpoint of step 10 is intact"):
        checkpoints.save(20, state(2))
    monkeypatch.undo()
    assert names(tmp_path) == ["checkpoint.pt"] and load(tmp_path)["step"] == 10


def test_the_digest_is_of_values_types_shapes_and_names(torch: Any) -> None:
    from payload.checkpoints import digest

    one = {"a": torch.tensor([1.0, 2.0]), "n": [1, None]}
    assert digest(one) == digest({"a": torch.tensor([1.0, 2.0]), "n": [1, None]})
    others = (
        {"a": torch.tensor([1.0, -2.0]), "n": [1, None]},
        {"a": torch.tensor([[1.0, 2.0]]), "n": [1, None]},
        {"a": torch.tensor([1.0, 2.0], dtype=torch.float64), "n": [1, None]},
        {"b": torch.tensor([1.0, 2.0]), "n": [1, None]},
        {"a": torch.tensor([1.0, 2.0]), "n": [1, 0]},
    )
    assert len({digest(other) for other in (one, *others)}) == 6
    digest({"half": torch.ones(3, dtype=torch.bfloat16), "yes": torch.tensor(True)})


def test_a_checkpoint_is_due_by_steps_by_epochs_or_by_seconds() -> None:
    from payload.checkpoints import Interval

    def due(interval: Interval, steps: int) -> list[int]:
        marks = [(step, (step - 1) // 5 + 1, step % 5 == 0) for step in range(1, steps + 1)]
        return [step for step, epoch, ends in marks if interval.due(step=step, epoch=epoch, ends_epoch=ends)]

    assert due(Interval((4, "steps")), 12) == [4, 8, 12]
    assert due(Interval((2, "epochs")), 25) == [10, 20]
    now = [0.0]
    interval = Interval((30, "seconds"), lambda: now[0])
    found = []
    for second in range(100):
        now[0] = float(second)
        if interval.due(step=second, epoch=1, ends_epoch=False):
            found.append(second)
            interval.saved()
    assert found == [30, 60, 90]
