"""Read and write the IDX files of the MNIST family, plain or gzip-compressed.

A file that is truncated, too long, or of another type or shape raises DataError with its name, so that no training uses wrong
images. Pixels stay uint8; the accelerator converts them.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from payload.failures import DataError

FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
CLASSES = 10  # of the MNIST family
_BYTES = 0x08  # the IDX type code of unsigned bytes, the only type in this family


@dataclass(frozen=True)
class Dataset:
    train_images: NDArray[np.uint8]  # [count, rows, columns]
    train_labels: NDArray[np.uint8]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]
    classes: int = CLASSES


def locate(directory: Path) -> dict[str, Path] | None:
    """Return the paths of the four files, each plain or .gz; None if one is missing or ambiguous.

    A prefix before the usual name, as in EMNIST (`emnist-letters-test-images-idx3-ubyte`), is accepted if only one file
    matches.
    """
    found = {}
    for part, name in FILES.items():
        paths = [path for path in (directory / name, directory / f"{name}.gz") if path.is_file()]
        if not paths:
            endings = {f"{ending}{gz}" for ending in (name, name.replace("t10k", "test")) for gz in ("", ".gz")}
            paths = [path for ending in endings for path in directory.glob(f"*{ending}") if path.is_file()]
            if len(paths) != 1:
                return None
        found[part] = paths[0]
    return found


def read_dataset(
    paths: dict[str, Path], examples: int | None = None, test_examples: int | None = None, classes: int | None = CLASSES
) -> Dataset:
    """Return the first `examples` and `test_examples` images with labels; None: all.

    `classes` None: one more than the highest label. Raises DataError for a damaged file or a label out of range.
    """
    train = _read_pair(paths["train_images"], paths["train_labels"])
    test = _read_pair(paths["test_images"], paths["test_labels"])
    if classes is None:
        classes = int(max(train[1].max(), test[1].max())) + 1
    for labels, part in ((train[1], "train_labels"), (test[1], "test_labels")):
        if labels.max() >= classes:
            raise DataError(f"{paths[part]}: label {labels.max()} is not below {classes}")
    if train[0].shape[1:] != test[0].shape[1:]:
        raise DataError(f"{paths['test_images']}: its images have another size than the training images")
    return Dataset(train[0][:examples], train[1][:examples], test[0][:test_examples], test[1][:test_examples], classes)


def count(paths: dict[str, Path]) -> int:
    """Return the number of training images, by the label file. Raises DataError."""
    return len(read_array(paths["train_labels"], dimensions=1))


def _read_pair(images_path: Path, labels_path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images, labels = read_array(images_path, dimensions=3), read_array(labels_path, dimensions=1)
    if len(images) != len(labels):
        raise DataError(f"{labels_path}: has {len(labels):,} labels for {len(images):,} images")
    if len(labels) == 0:
        raise DataError(f"{images_path}: holds no images")
    return images, labels


def read_array(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """Return the contents of one IDX file, read-only. Raises DataError."""
    content = _content(path)
    header_bytes = 4 + 4 * dimensions
    if len(content) < header_bytes:
        raise DataError(f"{path}: truncated: {len(content)} bytes are less than an IDX header")
    zero, kind, rank = struct.unpack(">HBB", content[:4])
    if zero != 0 or kind != _BYTES or rank != dimensions:
        raise DataError(f"{path}: not an IDX file of bytes with {dimensions} dimensions (starts {content[:4].hex()})")
    shape = struct.unpack(f">{dimensions}I", content[4:header_bytes])
    expected, actual = int(np.prod(shape, dtype=object)), len(content) - header_bytes
    if actual != expected:
        what = "truncated" if actual < expected else "too long"
        raise DataError(f"{path}: {what}: {actual:,} bytes, but its header declares {expected:,}")
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)


def _content(path: Path) -> bytes:
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        with gzip.open(path) as file:
            return file.read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: broken gzip file: {error}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def write_array(path: Path, array: NDArray[np.uint8]) -> None:
    """Write `array` as a plain IDX file."""
    header = struct.pack(f">HBB{array.ndim}I", 0, _BYTES, array.ndim, *array.shape)
    path.write_bytes(header + np.ascontiguousarray(array).tobytes())
