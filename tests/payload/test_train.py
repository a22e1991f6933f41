"""The loop's own promises, in this process and without an accelerator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
pytestmark = pytest.mark.torch

from payload import train  # noqa: E402
from payload.backends import check_world  # noqa: E402
from payload.backends.cpu import Cpu  # noqa: E402
from payload.clock import Clock  # noqa: E402
from payload.config import Config  # noqa: E402
from payload.failures import Diverged, WorldError  # noqa: E402
from payload.job import Job  # noqa: E402
from payload.models import MnistCnn, halve  # noqa: E402
from payload.placement import Placement  # noqa: E402
from payload.sources import Source  # noqa: E402


def alone(tmp_path: Path) -> Cpu:
    placement = Placement("cpu", worker=0, workers=1, processes=1, artifacts=str(tmp_path))
    source = Source("synthetic", "synthetic", "", {}, 0, 0, {})
    return Cpu(Job(Config(), placement, source, "cpu", "", 0.0, 0.0, 0.0, tmp_path))


class AlwaysThree(torch.nn.Module):
    """A network whose answer is always the digit three."""

    def forward(self, images: Any) -> Any:
        return torch.nn.functional.one_hot(torch.full((len(images),), 3), 10).float()


@pytest.mark.parametrize("examples", [1, 7, 499, 501, 1003])
def test_accuracy_is_over_all_test_examples_however_they_fall_into_batches(tmp_path: Path, examples: int) -> None:
    labels = (np.arange(examples) % 4).astype(np.uint8)
    images = np.zeros((examples, 28, 28), np.uint8)
    tested = train.evaluate(alone(tmp_path), AlwaysThree(), images, labels, Clock(0.0))
    expected = int((labels == 3).sum())
    assert (tested["test_correct"], tested["test_examples"]) == (expected, examples)
    assert tested["test_accuracy"] == pytest.approx(expected / examples)


def test_pooling_by_reshape_is_max_pooling() -> None:
    images = torch.randn(2, 3, 24, 24)
    assert torch.equal(halve(images), torch.nn.functional.max_pool2d(images, 2))


def test_the_network_is_that_of_the_pytorch_example_in_size() -> None:
    assert sum(p.numel() for p in MnistCnn().parameters()) == 1_199_882


def test_the_rate_rises_for_a_fifth_of_the_run_then_falls_and_is_never_zero() -> None:
    shares = [train.share_of_rate(step, 100) for step in range(100)]
    assert max(shares) == pytest.approx(1.0) and shares.index(max(shares)) in (19, 20)
    assert shares[:19] == sorted(shares[:19]) and shares[20:] == sorted(shares[20:], reverse=True)
    assert min(shares) > 0
    assert 0 < train.share_of_rate(0, 1) <= 1


def test_a_loss_that_is_no_number_stops_the_training() -> None:
    assert train.check_loss(0.5, 1) == 0.5
    for loss in (float("nan"), float("inf")):
        with pytest.raises(Diverged, match="in epoch 2: training diverged"):
            train.check_loss(loss, 2)


def test_a_world_that_silently_reduces_nothing_is_found_out(tmp_path: Path) -> None:
    """As XLA:CPU does with several processes: each all-reduce answers what it was given."""
    backend = alone(tmp_path)
    check_world(backend)
    backend.world = 2
    with pytest.raises(WorldError, match=r"gave \[1.0, 0.0\] instead of \[2.0, 1.0\]"):
        check_world(backend)
