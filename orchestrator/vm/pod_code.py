"""The code of a job, into the working directory of its pod: from the ConfigMap, or from Cloud Storage where it is larger.

What comes is checked against its hash before anything of it is unpacked. Files, directories and relative links inside are
taken; anything else in the archive is a reason to refuse all of it.
"""

# Paths are text, as in `phase`.
# ruff: noqa: PTH101, PTH103, PTH104, PTH108, PTH118, PTH120, PTH123, PTH211
from __future__ import annotations

import hashlib
import os
import posixpath
import shutil
import tarfile
from typing import Any

from .cloud_storage import Storage, split

PIECE_BYTES = 1 << 20


class CodeRefused(Exception):
    """Why there is no code."""


def unpack(inside: str, request: dict[str, Any], into: str, storage: Storage) -> None:
    """Make `into`, the working directory, with the code of the request. Raises CodeRefused, and OSError for a full disk."""
    draft = f"{into}.draft"
    shutil.rmtree(draft, ignore_errors=True)
    os.makedirs(draft)
    expected = request.get("code_sha256")
    if expected is not None:
        archive = f"{inside}/code.tar.gz"
        if request.get("code_object") is not None:
            archive = f"{into}.tar.gz"
            _fetch(request["code_object"], archive, storage)
        if _sha256(archive) != expected:
            raise CodeRefused("the code arrived with another content than its hash says")
        try:
            with tarfile.open(archive, "r:gz") as packed:
                _extract(packed, draft)
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise CodeRefused(f"the archive of the code is damaged: {error}") from error
        if request.get("code_object") is not None:
            os.unlink(archive)
    os.rename(draft, into)


def _fetch(url: str, archive: str, storage: Storage) -> None:
    from pathlib import Path

    problem = storage.fetch(*split(url), Path(archive))
    if problem is not None:
        raise CodeRefused(f"the code cannot be read from {url}: {problem}")


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for piece in iter(lambda: file.read(PIECE_BYTES), b""):
                digest.update(piece)
    except OSError as error:
        raise CodeRefused(f"there is no code: {error.strerror or error}") from error
    return digest.hexdigest()


def _extract(packed: tarfile.TarFile, into: str) -> None:
    linked: set[str] = set()  # nothing is written through a link
    for member in packed:
        name = posixpath.normpath(member.name)
        above = name.split("/")
        if name.startswith("/") or ".." in above:
            raise CodeRefused(f"{member.name} leads out of the code")
        if any("/".join(above[:end]) in linked for end in range(1, len(above) + 1)):
            raise CodeRefused(f"{member.name} is behind a link")
        target = os.path.join(into, name)
        if member.isdir():
            os.makedirs(target, mode=0o755, exist_ok=True)
            continue
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        if member.issym():
            leads_to = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
            if member.linkname.startswith("/") or leads_to.split("/")[0] == "..":
                raise CodeRefused(f"{member.name} is a link that leads out of the code")
            os.symlink(member.linkname, target)
            linked.add(name)
        elif member.isreg():
            source = packed.extractfile(member)
            assert source is not None, "a regular file has contents"
            with source, open(target, "xb") as file:
                shutil.copyfileobj(source, file, PIECE_BYTES)
            os.chmod(target, 0o755 if member.mode & 0o100 else 0o644)
        else:
            raise CodeRefused(f"{member.name} is neither a file nor a directory nor a link")
