"""The networks. Each maps normalised images [n, channels, side, side] to class scores [n, classes]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from payload.failures import BadConfig


class MnistCnn(nn.Module):
    """The network of the PyTorch MNIST example, with two differences.

    Under XLA, pooling is a reshape and a maximum: the values of MaxPool2d(2), but without the slow select-and-scatter in its
    gradient (steps are 1.4 times faster on XLA's CPU device). There is no dropout: it would make the losses depend on the
    number of processes, and it does not help within the few epochs of a tutorial.
    """

    def __init__(self, channels: int = 1, side: int = 28, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(64 * ((side - 4) // 2) ** 2, 128)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv1(images))
        # relu after pooling: the same values with a quarter of the work.
        x = torch.relu(halve(self.conv2(x)))
        x = torch.relu(self.fc1(x.flatten(1)))
        scores: torch.Tensor = self.fc2(x)
        return scores


def halve(x: torch.Tensor) -> torch.Tensor:
    """Return MaxPool2d(2) of `x`, by reshaping on XLA only: elsewhere the gradient of max_pool2d is faster."""
    return halve_by_reshape(x) if x.device.type == "xla" else functional.max_pool2d(x, 2)


def halve_by_reshape(x: torch.Tensor) -> torch.Tensor:
    """Return the maximum over pairs of rows, then of columns. An unpaired last row or column is dropped."""
    n, channels, height, width = x.shape
    rows = x[:, :, : height // 2 * 2, : width // 2 * 2].reshape(n, channels, height // 2, 2, -1)
    x = torch.maximum(rows[:, :, :, 0], rows[:, :, :, 1])
    columns = x.reshape(n, channels, height // 2, width // 2, 2)
    return torch.maximum(columns[..., 0], columns[..., 1])


class AlexNet(nn.Module):
    """torchvision's AlexNet with dropout; its weights have the same names."""

    def __init__(self, channels: int = 3, side: int = 224, classes: int = 10) -> None:
        super().__init__()
        relu, pool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)
        self.features = nn.Sequential(
            *(nn.Conv2d(channels, 64, 11, 4, 2), relu, pool),
            *(nn.Conv2d(64, 192, 5, 1, 2), relu, pool),
            *(nn.Conv2d(192, 384, 3, 1, 1), relu),
            *(nn.Conv2d(384, 256, 3, 1, 1), relu),
            *(nn.Conv2d(256, 256, 3, 1, 1), relu, pool),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = nn.Sequential(
            *(nn.Dropout(0.5), nn.Linear(256 * 6 * 6, 4096), relu),
            *(nn.Dropout(0.5), nn.Linear(4096, 4096), relu),
            nn.Linear(4096, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.classifier(self.avgpool(self.features(images)).flatten(1))
        return scores


class Mlp(nn.Sequential):
    """A network so small that the Python loop, not the device, takes the time: for benchmarks of loops."""

    def __init__(self, channels: int = 1, side: int = 28, classes: int = 10) -> None:
        super().__init__(
            *(nn.Flatten(), nn.Linear(channels * side * side, 128), nn.ReLU()),
            *(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, classes)),
        )


@dataclass(frozen=True)
class Design:
    network: Callable[[int, int, int], nn.Module]  # of channels, side, classes
    channels: int
    side: int | None  # pixels; None: the side of the images
    least_side: int


DESIGNS = {
    "mnist_cnn": Design(MnistCnn, channels=1, side=None, least_side=6),
    "alexnet": Design(AlexNet, channels=3, side=224, least_side=63),
    "mlp": Design(Mlp, channels=1, side=None, least_side=1),
}


def build(name: str, seed: int, *, side: int = 28, classes: int = 10) -> nn.Module:
    """Return the network on the CPU, with the same weights in every process: they depend only on the seed.

    Raises BadConfig if `side` is too small for the network.
    """
    design = DESIGNS[name]
    if side < design.least_side:
        raise BadConfig(f"image_size: {name} needs images of at least {design.least_side} pixels a side, not {side}")
    torch.manual_seed(seed)
    return design.network(design.channels, side, classes)
