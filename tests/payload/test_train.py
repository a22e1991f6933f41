"""The loop's own promises: the examples of each process, and checkpoints that are whole or absent."""

from __future__ import annotations

import hashlib
import json
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from payload import artifacts
from payload.clock import Clock
from payload.config import Config
from payload.data.idx import Dataset
from payload.data.sources import DataSource
from payload.failures import BadConfig, CannotSave, Diverged, WorldError
from payload.job import TrainingJob
from payload.launch.placement import Placement

if TYPE_CHECKING:
    from payload.backends.native import Cpu
    from payload.checkpoints import Checkpoints, Interval
    from payload.run import TrainingRun


np = pytest.importorskip("numpy")


pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("torch")]


def job_in(directory: Path, config: Config = Config()) -> TrainingJob:  # noqa: B008
    placement = Placement("cpu", worker=0, workers=1, processes=1, artifacts=str(directory))
    source = DataSource("synthetic", "synthetic", "", {}, 0, 0, {})
    return TrainingJob(config, placement, source, "cpu", "", 0.0, 0.0, 0.0, directory)


def alone(tmp_path: Path) -> Cpu:
    from payload.backends.native import Cpu

    return Cpu(job_in(tmp_path))


def run_in(directory: Path, backend: Cpu, config: Config = Config()) -> TrainingRun:  # noqa: B008
    from payload.checkpoints import Checkpoints
    from payload.run import TrainingRun

    checkpoints = Checkpoints(directory, {}, print)
    return TrainingRun(job_in(directory, config), Clock(0.0), print, checkpoints, backend)


def always_three(torch: Any) -> Any:
    """A network whose answer is always the digit three."""

    class AlwaysThree(torch.nn.Module):  # type: ignore[misc]
        def forward(self, images: Any) -> Any:
            return torch.nn.functional.one_hot(torch.full((len(images),), 3), 10).float()

    return AlwaysThree()


@pytest.mark.parametrize("examples", [1, 7, 499, 501, 1003])
def test_accuracy_is_over_all_test_examples_however_they_fall_into_batches(
    torch: Any, tmp_path: Path, examples: int
) -> None:
    from payload import train
    from payload.data.images import Images, Shape

    labels = (np.arange(examples) % 4).astype(np.uint8)
    images = np.zeros((examples, 28, 28), np.uint8)
    backend, data = alone(tmp_path), Dataset(images, labels, images, labels)
    split = Images(images, labels, Shape(Config(), data), backend)
    tested = train.evaluate(backend, always_three(torch), split, run_in(tmp_path, backend))
    expected = int((labels == 3).sum())
    assert (tested["test_correct"], tested["test_examples"]) == (expected, examples)
    assert tested["test_accuracy"] == pytest.approx(expected / examples)


def test_pooling_by_reshape_is_max_pooling(torch: Any) -> None:
    from payload.models import halve_by_reshape

    images = torch.randn(2, 3, 24, 24)
    assert torch.equal(halve_by_reshape(images), torch.nn.functional.max_pool2d(images, 2))
    odd = torch.randn(2, 3, 7, 9)
    assert torch.equal(halve_by_reshape(odd), torch.nn.functional.max_pool2d(odd, 2))


def test_the_network_is_that_of_the_pytorch_example_in_size() -> None:
    from payload.models import MnistCnn

    assert sum(p.numel() for p in MnistCnn().parameters()) == 1_199_882


def test_alexnet_has_as_many_weights_as_torchvisions_and_they_have_the_same_names() -> None:
    from payload.models import AlexNet

    model = AlexNet(classes=1000)
    assert sum(p.numel() for p in model.parameters()) == 61_100_840
    names = [name for name in model.state_dict() if name.endswith("weight")]
    assert names == [f"features.{n}.weight" for n in (0, 3, 6, 8, 10)] + [f"classifier.{n}.weight" for n in (1, 4, 6)]


def test_a_network_that_needs_larger_images_is_refused() -> None:
    from payload.models import build

    with pytest.raises(BadConfig, match="alexnet needs images of at least 63 pixels a side, not 28"):
        build("alexnet", 1, side=28)


@pytest.mark.parametrize("side", [28, 64, 224])
def test_images_are_normalised_and_resized_as_pytorch_would_do_it(torch: Any, tmp_path: Path, side: int) -> None:
    from payload.data.images import Images, Shape

    backend = alone(tmp_path)
    array = np.random.default_rng(1).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    labels = np.arange(5, dtype=np.uint8)
    config = Config(model="alexnet", dataset="fashion-mnist", image_size=side)
    split = Images(array, labels, Shape(config, Dataset(array, labels, array, labels)), backend)
    x, y = split.pick(torch.tensor([4, 0]))
    assert (tuple(x.shape), y.tolist()) == ((2, 3, side, side), [4, 0])
    normalised = (torch.from_numpy(array[[4, 0]]).unsqueeze(1) / 255 - 0.2860) / 0.3530
    expected = torch.nn.functional.interpolate(normalised, size=(side, side), mode="bilinear")
    assert torch.allclose(x, expected.expand(-1, 3, -1, -1), atol=1e-5)


def test_images_of_an_unknown_set_are_normalised_by_their_own_mean_and_spread(torch: Any, tmp_path: Path) -> None:
    from payload.data.images import Images, Shape

    array = np.random.default_rng(1).integers(0, 256, (50, 9, 9), dtype=np.uint8)
    labels = np.zeros(50, np.uint8)
    shape = Shape(Config(model="mlp", dataset="idx", data_dir="x"), Dataset(array, labels, array, labels, classes=3))
    x, _ = Images(array, labels, shape, alone(tmp_path)).pick(torch.arange(50))
    assert (shape.side, shape.classes) == (9, 3)
    assert float(x.mean()) == pytest.approx(0, abs=1e-5) and float(x.std()) == pytest.approx(1, abs=1e-3)


def test_each_step_of_each_process_has_random_numbers_of_its_own() -> None:
    from payload.run import seed_of

    seeds = {seed_of(1, epoch, step, rank) for epoch in (1, 2) for step in range(50) for rank in range(4)}
    assert len(seeds) == 400
    assert seed_of(1, 2, 3, 0) == seed_of(1, 2, 3, 0) != seed_of(2, 2, 3, 0)


def test_the_rate_rises_for_a_fifth_of_the_run_then_falls_and_is_never_zero() -> None:
    from payload import train

    shares = [train.share_of_rate(step, 100) for step in range(100)]
    assert max(shares) == pytest.approx(1.0) and shares.index(max(shares)) in (19, 20)
    assert shares[:19] == sorted(shares[:19]) and shares[20:] == sorted(shares[20:], reverse=True)
    assert min(shares) > 0
    assert 0 < train.share_of_rate(0, 1) <= 1


def test_a_loss_that_is_no_number_stops_the_training(tmp_path: Path) -> None:
    import torch

    from payload.train import Curve

    backend = alone(tmp_path)
    for loss in (float("nan"), float("inf")):
        curve = Curve(backend)
        curve.add(torch.tensor([0.5, 1.0]))
        assert curve.read(1) == [[0.5, 1.0]]
        curve.add(torch.tensor([loss, 1.0]))
        with pytest.raises(Diverged, match="in epoch 2: training diverged"):
            curve.read(2)


def test_a_world_that_silently_reduces_nothing_is_found_out(tmp_path: Path) -> None:
    """As XLA:CPU does with several processes: each all-reduce answers what it was given."""
    from payload.backends import check_world

    backend = alone(tmp_path)
    check_world(backend)
    backend.world = 2
    with pytest.raises(WorldError, match=r"gave \[1.0, 0.0\] instead of \[2.0, 1.0\]"):
        check_world(backend)


pytest.importorskip("numpy")


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


@pytest.mark.parametrize("examples", [64, 67, 100])
def test_worlds_of_one_two_and_four_see_the_same_examples_at_the_same_step(examples: int) -> None:
    from payload.data.batches import train_batches

    def steps(world: int) -> list[set[int]]:
        ranks = [train_batches(examples, 16, rank=rank, world=world, seed=5, epoch=2) for rank in range(world)]
        assert {len(batch) for rank in ranks for batch in rank} == {16 // world}
        return [set(chain.from_iterable(batch.tolist() for batch in step)) for step in zip(*ranks, strict=True)]

    alone = steps(1)
    assert len(alone) == examples // 16 and all(len(step) == 16 for step in alone)
    assert steps(2) == alone and steps(4) == alone


def test_an_epoch_shuffles_anew_and_a_seed_repeats_itself(torch: Any) -> None:
    from payload.data.batches import train_batches

    def order(seed: int, epoch: int) -> list[int]:
        return torch.cat(train_batches(64, 16, rank=0, world=1, seed=seed, epoch=epoch)).tolist()

    assert sorted(order(1, 1)) == list(range(64))
    assert order(1, 1) == order(1, 1)
    assert order(1, 1) != order(1, 2) != order(2, 2)


@pytest.mark.parametrize(("examples", "world", "most"), [(10, 1, 4), (10, 3, 2), (7, 2, 500), (1, 4, 3), (1000, 8, 50)])
def test_every_test_example_weighs_one_in_exactly_one_process(examples: int, world: int, most: int) -> None:
    from payload.data.batches import eval_batches

    seen: list[int] = []
    shapes = set()
    for rank in range(world):
        for numbers, weights in eval_batches(examples, rank=rank, world=world, most=most):
            shapes.add((len(numbers), len(weights)))
            seen += [number for number, weight in zip(numbers.tolist(), weights.tolist(), strict=True) if weight == 1]
            assert set(weights.tolist()) <= {0.0, 1.0} and numbers.max() < examples
    assert sorted(seen) == list(range(examples))
    assert len(shapes) == 1, "another shape would be another program to compile"
