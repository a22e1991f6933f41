"""The sample of MNIST that is shipped with the payload: real digits where there is no network.

`mnist_sample/LICENSE.txt` tells which images these are, and under which license.
"""

from __future__ import annotations

from pathlib import Path

from payload.data import idx

NAME = "mnist-sample"  # the data set's name in the log and in every artifact
DIRECTORY = Path(__file__).parent / "mnist_sample"
TRAIN_COUNT, TEST_COUNT = 6_000, 2_000
ORIGIN = "shipped with tpujob: the first 6,000 training images of MNIST, and every fifth of its 10,000 test images"


def files() -> dict[str, Path] | None:
    """Return the paths of the four files; None where the payload was shipped without them."""
    return idx.locate(DIRECTORY)
