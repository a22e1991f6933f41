"""The loop's own promises, in this process and without an accelerator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

np = pytest.importorskip("numpy")

from payload.clock import Clock  # noqa: E402
from payload.config import Config  # noqa: E402
from payload.data.idx import Dataset  # noqa: E402
from payload.data.sources import DataSource  # noqa: E402
from payload.failures import BadConfig, Diverged, WorldError  # noqa: E402
from payload.job import TrainingJob  # noqa: E402
from payload.launch.placement import Placement  # noqa: E402

if TYPE_CHECKING:
    from payload.backends.native import Cpu
    from payload.run import TrainingRun

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
