"""The code and data of a job as one archive whose bytes depend only on their content.

The same sources give the same archive on every machine, so its hash is its name, and a worker that has a file of that name
has the content. Surprising sources are refused here: a home directory, a link that leads out of the tree, a FIFO, more
than a gigabyte.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from orchestrator.errors import UserError
from orchestrator.remote.transfer.ignore import Ignore

MAX_BYTES = 1 << 30
LEVEL = 6  # of gzip


@dataclass(frozen=True, slots=True)
class Bundle:
    path: Path
    sha256: str
    size_bytes: int  # of the archive
    files: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One member: `content` is a file to read, the bytes themselves, the target of a link, or None for a directory."""

    name: str
    content: Path | bytes | str | None
    size_bytes: int = 0
    executable: bool = False


def make_bundle(sources: Mapping[str, Path | bytes], directory: Path, *, max_bytes: int = MAX_BYTES) -> Bundle:
    """Write `directory/<sha256>.tar.gz` and return it. Raises UserError for sources that are refused.

    `sources` maps a name in the archive to a file, a directory or bytes; "." puts a directory's content at the top.
    """
    entries = _entries(sources)
    _check_size(entries, max_bytes)
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".bundle-", delete=False) as draft:
        try:
            size_bytes, sha256 = _write(entries, cast(IO[bytes], draft))
            path = directory / f"{sha256}.tar.gz"
            Path(draft.name).replace(path)
        except BaseException:
            Path(draft.name).unlink()
            raise
    files = sum(entry.content is not None for entry in entries.values())
    return Bundle(path, sha256, size_bytes, files)


def _entries(sources: Mapping[str, Path | bytes]) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for top, source in sources.items():
        name = _member_name(top)
        members = [Entry(name, source, len(source))] if isinstance(source, bytes) else _from_disk(name, source)
        for entry in members:
            if found.setdefault(entry.name, entry).content != entry.content:
                raise UserError(f"two sources of the bundle both contain {entry.name}")
    return found


def _member_name(top: str) -> str:
    path = PurePosixPath(top)
    if path.is_absolute() or ".." in path.parts:
        raise UserError(f"{top!r} is not a name inside a bundle")
    return "" if top == "." else path.as_posix()


def _from_disk(name: str, source: Path) -> Iterator[Entry]:
    if not source.exists():
        raise UserError(f"{source} does not exist", hint="paths in a job file are relative to that file")
    root = source.resolve()
    home = Path.home().resolve()
    if root in (home, *home.parents):
        what = "the home directory" if root == home else "a directory above the home directory"
        raise UserError(f"{source} is {what}; it is not shipped", hint="put the job's code in a directory of its own")
    if root.is_dir():
        yield from _walk(root, root, PurePosixPath(name), Ignore.read(root))
    else:
        yield _entry(root, root.parent, name)


def _walk(directory: Path, root: Path, name: PurePosixPath, ignore: Ignore) -> Iterator[Entry]:
    try:
        children = sorted(directory.iterdir())
    except OSError as error:
        raise UserError(f"{directory} cannot be read: {error.strerror}", hint="or name it in .tpujobignore") from error
    if name.parts:
        yield Entry(name.as_posix(), None)
    for child in children:
        is_directory = child.is_dir() and not child.is_symlink()
        if ignore.matches(child.relative_to(root), is_directory=is_directory):
            continue
        if is_directory:
            yield from _walk(child, root, name / child.name, ignore)
        else:
            yield _entry(child, root, (name / child.name).as_posix())


def _entry(path: Path, root: Path, name: str) -> Entry:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return Entry(name, _link_within(path, root))
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path} is neither a file nor a directory", hint="remove it, or name it in .tpujobignore")
    if not os.access(path, os.R_OK):
        raise UserError(f"{path} cannot be read", hint="change its permissions, or name it in .tpujobignore")
    return Entry(name, path, status.st_size, executable=bool(status.st_mode & 0o100))


def _link_within(path: Path, root: Path) -> str:
    """Return the link's target, relative, so that it leads to the same place on the worker. Raises UserError."""
    try:
        target = path.resolve()
    except (OSError, RuntimeError) as error:  # a loop
        raise UserError(f"{path} is a broken link", hint="remove it, or name it in .tpujobignore") from error
    if root not in target.parents:
        hint = "copy the file there, or name the link in .tpujobignore"
        raise UserError(f"{path} is a link out of {root}, to {target}", hint=hint)
    return os.path.relpath(target, path.parent.resolve())


def _check_size(entries: Mapping[str, Entry], max_bytes: int) -> None:
    total = sum(entry.size_bytes for entry in entries.values())
    if total <= max_bytes:
        return
    biggest = sorted(entries.values(), key=lambda entry: -entry.size_bytes)[:3]
    names = ", ".join(f"{entry.name} ({entry.size_bytes / 1e6:,.1f} MB)" for entry in biggest)
    raise UserError(
        f"the job's code and data are {total / 1e6:,.1f} MB, more than {max_bytes / 1e6:,.1f} MB; the biggest: {names}",
        hint="name what the job does not need in .tpujobignore, and keep data in a bucket",
    )


def _write(entries: Mapping[str, Entry], file: IO[bytes]) -> tuple[int, str]:
    out = _Hashing(file)
    with (
        gzip.GzipFile(filename="", fileobj=out, mode="wb", compresslevel=LEVEL, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for _, entry in sorted(entries.items()):
            _add(tar, entry)
    file.flush()
    return out.size_bytes, out.digest.hexdigest()


def _add(tar: tarfile.TarFile, entry: Entry) -> None:
    member = tarfile.TarInfo(entry.name)  # time 0, owner 0
    if entry.content is None:
        member.type, member.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(member)
    elif isinstance(entry.content, str):
        member.type, member.linkname, member.mode = tarfile.SYMTYPE, entry.content, 0o777
        tar.addfile(member)
    else:
        member.mode = 0o755 if entry.executable else 0o644
        try:
            with io.BytesIO(entry.content) if isinstance(entry.content, bytes) else entry.content.open("rb") as content:
                member.size = entry.size_bytes
                tar.addfile(member, content)
        except OSError as error:  # also when the file became shorter than it was a moment ago
            raise UserError(f"{entry.name} cannot be read: {error.strerror or error}") from error


class _Hashing(io.RawIOBase):
    """Passes bytes on, and computes their hash and size."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.digest, self.size_bytes = file, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.digest.update(data)
        self.size_bytes += len(data)
        return self.file.write(data)
