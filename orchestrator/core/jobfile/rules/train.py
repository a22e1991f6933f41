"""The rules of `train:`, and of the environment that it has. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.core.jobfile.yaml_source import Path

BATCH_SIZE, MNIST_EXAMPLES = 128, 60_000  # the default; the size of every data set that is downloaded or synthetic


def train_problems(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield what is wrong with the training of a job file, and with its Python."""
    train = data.get("train")
    if "train" in data:
        yield from _environment(data, train if isinstance(train, Mapping) else {})
    if isinstance(train, Mapping):
        yield from _batch(train)
        yield from _fallback(train)
        yield from _backend(train)
        yield from _profile(train)


def _batch(train: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """A batch that the data cannot fill must not be noticed first on a TPU that is billed."""
    size, emulated = train.get("batch_size", BATCH_SIZE), train.get("emulated")
    if train.get("entry") is not None or not isinstance(size, int):
        return
    counts: dict[Path, Any] = {
        ("train", "examples"): train.get("examples"),
        ("train", "emulated", "examples"): emulated.get("examples") if isinstance(emulated, Mapping) else None,
    }
    for path, count in counts.items():
        if isinstance(count, int) and 1 <= count < size:
            yield path, f"is less than the batch_size of {size:,}, so there would be no step"
    if size > MNIST_EXAMPLES and train.get("data_dir") is None:
        yield ("train", "batch_size"), f"is more than the {MNIST_EXAMPLES:,} training examples"


def _environment(data: Mapping[str, Any], train: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    backend = train.get("backend")
    least = "3.11" if backend == "tpu" else "3.10"
    if data.get("python") in ("3.8", "3.9", "3.10") and data["python"] != least:
        yield ("python",), f"`train:` needs Python {least} or newer"


def _fallback(train: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    if train.get("fallback") == "sample" and train.get("dataset") == "fashion-mnist":
        yield ("train", "fallback"), "the sample is of mnist, and there is none of fashion-mnist; write synthetic"


def _backend(train: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    if train.get("backend") == "none" and train.get("entry") is None:
        yield ("train", "backend"), "the built-in training needs PyTorch; `none` is for an `entry:` of your own"


def _profile(train: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    if train.get("profile") is None:
        return
    if train.get("entry") is not None:
        yield ("train", "profile"), "is of the built-in training; an `entry:` traces its own steps (docs/reports.md)"
    if train.get("backend") == "tpu":
        yield ("train", "profile"), "is not available with backend tpu; backend xla traces on the same TPU"
