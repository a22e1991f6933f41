"""The data set on the device, and its conversion to the input of a network: resize, normalise, expand to its channels.

The data set is copied to the device once, as bytes; an epoch then transfers only example indices. Resizing is two small
matrix products, equal to PyTorch's bilinear interpolation and fast on any accelerator.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from payload import models
from payload.backends import Backend
from payload.config import Config
from payload.data import idx

# Mean and standard deviation of the pixels of the full training sets, as fractions of white. Generated digits resemble MNIST.
NORMAL = {"mnist": (0.1307, 0.3081), "fashion-mnist": (0.2860, 0.3530), "synthetic": (0.1307, 0.3081)}


class Images:
    """All images of one split on the device, and their labels."""

    def __init__(self, images: Any, labels: Any, shape: Shape, backend: Backend) -> None:
        self.shape = shape
        self.bytes = torch.from_numpy(images.copy()).to(backend.device)  # a copy, because the array is read-only
        self.labels = torch.from_numpy(labels.copy()).to(backend.device)
        self._rows, self._columns = (
            None if size == shape.side else _interpolation(size, shape.side).to(backend.device)
            for size in images.shape[1:]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def pick(self, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return normalised images [n, channels, side, side] and labels [n] of the examples with these indices."""
        pixels = self.bytes.index_select(0, numbers).float() / 255
        pixels = (pixels - self.shape.mean) / self.shape.spread
        if self._rows is not None:
            pixels = self._rows @ pixels
        if self._columns is not None:
            pixels = pixels @ self._columns.T
        x = pixels.unsqueeze(1)
        if self.shape.channels > 1:
            x = x.expand(-1, self.shape.channels, -1, -1)
        return x, self.labels.index_select(0, numbers).long()


class Shape:
    """The input shape of the network, and the normalisation of its pixels."""

    def __init__(self, config: Config, data: idx.Dataset) -> None:
        design = models.DESIGNS[config.model]
        self.channels = design.channels
        self.side = config.image_size or design.side or max(data.train_images.shape[1:])
        self.classes = data.classes
        self.mean, self.spread = NORMAL.get(config.dataset) or _measured(data.train_images)


def _measured(images: Any) -> tuple[float, float]:
    """Return mean and standard deviation of the pixels, from a histogram: no floating-point copy of the images."""
    counts = np.bincount(images.reshape(-1), minlength=256) / images.size
    levels = np.arange(256) / 255
    mean = float(counts @ levels)
    return mean, max(float(counts @ (levels - mean) ** 2) ** 0.5, 1e-3)


def _interpolation(size: int, side: int) -> torch.Tensor:
    """Return the matrix [side, size] that resizes a column of `size` pixels to `side`."""
    one_hot = torch.eye(size).reshape(1, size, size)  # [batch, channels: one for each pixel, its column]
    return functional.interpolate(one_hot, size=side, mode="linear").squeeze(0).T.contiguous()
