"""Directories and files that only this user can read, whatever the umask: those of runs, and what tpujob keeps."""

import errno
import os
from pathlib import Path
from typing import IO, Any

DIRECTORY_MODE, FILE_MODE = 0o700, 0o600


def make_directory(path: Path, *, exist_ok: bool = True) -> None:
    """Create the directory, and those above it that are missing. One that exists stays as it is. Raises OSError."""
    if not path.parent.is_dir():
        make_directory(path.parent)
    try:
        path.mkdir(DIRECTORY_MODE, exist_ok=exist_ok)
    except FileExistsError as error:
        if path.is_dir():
            raise
        why = "a file has this name" if path.exists() else "it is a link that leads nowhere"
        raise NotADirectoryError(errno.ENOTDIR, why, str(path)) from error


def open_file(path: Path, mode: str, **options: Any) -> IO[Any]:
    """Open as `open` does; a file that this creates is private. Raises OSError."""
    return open(path, mode, opener=_opener, **options)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)
