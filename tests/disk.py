"""What lies on the disk while others write and delete there."""

import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def on_disk(directory: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file with its bytes. Unlike rglob it bears that files of a deleted VM go meanwhile; no link is followed."""
    for place, _, names in os.walk(directory):
        for path in (Path(place, name) for name in names):
            if path.is_file() and not path.is_symlink():
                with suppress(FileNotFoundError):
                    yield path, path.read_bytes()


@contextmanager
def calls_of_depth(levels: int) -> Iterator[None]:
    """Functions nest no deeper from here: a tree of a thousand directories, which Python and pytest fail at, in small."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + levels)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def holding(directory: Path, secret: bytes) -> list[Path]:
    """The files that hold it."""
    return [path for path, data in on_disk(directory) if secret in data]
