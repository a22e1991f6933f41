"""What lies on the disk while others write and delete there, and how many files this process has open."""

import gc
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.system import open_files


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


def files_in_use() -> int:
    """Count them for a test that counts again: what earlier tests have left is closed first, and not in between."""
    gc.collect()
    return open_files.in_use()


def holding(directory: Path, secret: bytes) -> list[Path]:
    """The files that hold it."""
    return [path for path, data in on_disk(directory) if secret in data]
