"""The source of the images: a directory of the job, the cache, a public mirror, or what the job allows in their place.

`resolve` is called once per host, before any training process starts, so that processes do not download concurrently. What
replaces a download has a name of its own in the log and in every artifact: "mnist-sample" or "synthetic".
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from payload.artifacts import sha256
from payload.config import Config
from payload.data import idx, sample, synthetic
from payload.data.download import PUBLISHED, DownloadFailed, PublishedFile, download
from payload.failures import DataError

Say = Callable[[str], None]


@dataclass(frozen=True)
class DataSource:
    name: str  # the data set in use: "mnist-sample" or "synthetic" after a fallback
    requested: str  # `dataset` of the configuration
    origin: str
    paths: dict[str, Path]  # the four parts of idx.FILES
    of: int  # training examples in the full data set
    train_examples: int  # training examples in these files
    sha256: dict[str, str]  # by file name

    @property
    def is_synthetic(self) -> bool:
        return self.name == "synthetic"

    def described(self) -> dict[str, Any]:
        """Return the `dataset` of provenance.json."""
        return {
            "name": self.name,
            "requested": self.requested,
            "synthetic": self.is_synthetic,
            "origin": self.origin,
            "of": self.of,
            "sha256": self.sha256,
        }


def cache_directory() -> Path:
    """Return the directory of downloaded and generated data sets; it may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tpujob" / "data"


def resolve(
    config: Config,
    say: Say,
    *,
    emulated: bool = False,
    cache: Path | None = None,
    published: PublishedFile | None = None,
) -> DataSource:
    """Return the files to train on, downloaded or generated if needed.

    `fallback` replaces a failed download, never a `data_dir`. Without it, an emulated TPU trains on the sample of MNIST, and
    a real one does not train. Raises DataError.
    """
    cache = cache or cache_directory()
    if config.data_dir is not None:
        return _from_directory(config, Path(config.data_dir).expanduser())
    if config.dataset == "synthetic":
        return _generated(config, cache, say)
    published = published or PUBLISHED[config.dataset]  # "idx" always has a data_dir: config.py requires it
    directory = cache / config.dataset
    try:
        origin = download(config.dataset, published, directory, say)
    except DownloadFailed as error:
        return _instead(config, config.fallback or ("sample" if emulated else None), cache, say, error)
    paths = idx.locate(directory)
    assert paths is not None, "a finished download is complete"
    return _source(config, config.dataset, origin, paths)


def _instead(config: Config, allowed: str | None, cache: Path, say: Say, error: DownloadFailed) -> DataSource:
    """Return what is allowed in place of a failed download. Raises DataError if nothing is.

    The sample precedes generated digits where it has as many images as the job asks for.
    """
    shipped = sample.files() if config.dataset == "mnist" else None
    is_enough = config.examples is not None and config.examples <= sample.TRAIN_COUNT
    if shipped is not None and (allowed == "sample" or (allowed == "synthetic" and is_enough)):
        say(f"{error}")
        say(
            f"instead of mnist, training on the mnist sample: {sample.TRAIN_COUNT:,} real images, "
            f"tested on {sample.TEST_COUNT:,}, shipped with tpujob"
        )
        fewer = replace(config, examples=min(config.examples or sample.TRAIN_COUNT, sample.TRAIN_COUNT))
        return _source(fewer, sample.NAME, sample.ORIGIN, shipped, synthetic.TRAIN_COUNT)
    if allowed == "synthetic":
        say(f"{error}")
        say(f"instead of {config.dataset}, training on synthetic images: generated digits, not real ones")
        return _generated(config, cache, say)
    known = "sample (6,000 real images) or synthetic" if config.dataset == "mnist" else "synthetic"
    raise DataError(f"{error}; set data_dir to a directory with the IDX files, or fallback: {known}")


def _from_directory(config: Config, directory: Path) -> DataSource:
    paths = idx.locate(directory)
    if paths is None:
        names = ", ".join(idx.FILES.values())
        raise DataError(f"data_dir {directory}: must hold {names}, each plain or .gz, with any prefix")
    return _source(config, config.dataset, f"directory {directory.name}", paths)


def _generated(config: Config, cache: Path, say: Say) -> DataSource:
    count, tests = config.examples or synthetic.TRAIN_COUNT, config.test_examples or synthetic.TEST_COUNT
    directory = cache / f"synthetic-{synthetic.VERSION}-{count}-{tests}"
    if not directory.is_dir():
        began = time.monotonic()
        _generate(directory, count, tests)
        say(f"synthetic: {count:,} training and {tests:,} test images generated in {time.monotonic() - began:.1f} s")
    paths = idx.locate(directory)
    if paths is None:
        raise DataError(f"{directory}: incomplete; delete it to generate it again")
    return _source(config, "synthetic", "generated", paths, max(count, synthetic.TRAIN_COUNT))


def _generate(directory: Path, count: int, tests: int) -> None:
    """Generate in a temporary directory, then rename, so that killed or concurrent runs leave no incomplete data set."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".drawing-") as scratch:
            whole = Path(scratch) / "whole"
            whole.mkdir()
            for split, size in (("train", count), ("test", tests)):
                images, labels = synthetic.draw(split, size)
                idx.write_array(whole / idx.FILES[f"{split}_images"], images)
                idx.write_array(whole / idx.FILES[f"{split}_labels"], labels)
            try:
                whole.rename(directory)
            except OSError:
                if not directory.is_dir():  # a concurrent run was first, with the same bytes
                    raise
    except OSError as error:
        raise DataError(
            f"{directory}: cannot be written: {error.strerror or error}; set XDG_CACHE_HOME to another directory"
        ) from None


def _source(config: Config, name: str, origin: str, paths: dict[str, Path], of: int | None = None) -> DataSource:
    count = idx.count(paths)
    if config.examples is not None and config.examples > count:
        raise DataError(f"examples: {config.examples:,} requested, but {name} ({origin}) has {count:,}")
    hashes = {path.name: sha256(path) for path in paths.values()}
    return DataSource(name, config.dataset, origin, paths, of or count, count, hashes)
