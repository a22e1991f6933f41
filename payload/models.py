"""The networks. Each takes normalised images [n, 1, 28, 28] and answers a score for each class, [n, 10]."""

from __future__ import annotations

import torch
from torch import nn


class MnistCnn(nn.Module):
    """The network of the PyTorch MNIST example, with two differences that are said aloud.

    Pooling is a reshape and a maximum: the same values as MaxPool2d(2), but its gradient is not the slow
    select-and-scatter of XLA on CPU (1.3 times faster steps there). Dropout is left out: it would make the losses depend on
    how many processes there are, and over the few epochs of a tutorial it only costs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(64 * 12 * 12, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv1(images))
        x = torch.relu(
            halve(self.conv2(x))
        )  # the maximum of relus is the relu of the maximum, with a quarter of the work
        x = torch.relu(self.fc1(x.flatten(1)))
        scores: torch.Tensor = self.fc2(x)
        return scores


def halve(x: torch.Tensor) -> torch.Tensor:
    """MaxPool2d(2) for even sizes."""
    n, channels, height, width = x.shape
    return x.reshape(n, channels, height // 2, 2, width // 2, 2).amax((3, 5))


def build(name: str, seed: int) -> nn.Module:
    """On the CPU, from the seed alone: every process builds the same weights, whatever its accelerator."""
    torch.manual_seed(seed)
    return {"mnist_cnn": MnistCnn}[name]()
