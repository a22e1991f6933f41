"""From a survey to what can be sent: each file is read, and its content kept under its hash.

A shipment of code is a snapshot: the run ships the files as they were when it began, to every attempt. Saved work stays
where it is: nothing changes it while it is sent, and it may be larger than what is left of the disk.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.hosts.shipping.store import File, Manifest, Store, hashed
from orchestrator.hosts.shipping.tree import (
    MAKE_READABLE,
    Entry,
    LeftOut,
    Survey,
    check_content,
    count,
    left_out_text,
    secret_in,
)
from orchestrator.system import fork
from orchestrator.text.terminal import printable
from orchestrator.text.units import format_size

FIRST_S, EVERY_S = 1.0, 0.2  # of progress
OnProgress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, slots=True)
class PushResult:
    """What travelled to one worker."""

    files: int = 0  # of the shipment, those whose content it lacked
    size_bytes: int = 0  # of their contents


@dataclass(frozen=True)
class Shipment:
    """A manifest, and where each of its contents is on this machine."""

    manifest: Manifest
    contents: Mapping[str, Path]
    left_out: tuple[LeftOut, ...] = ()
    store: Path | None = None  # where the contents are kept; None: they are where they were found
    kept: fork.Descriptor | None = None  # as long as it is open, the contents stay in the store

    @property
    def id(self) -> str:
        return self.manifest.id

    def release(self) -> None:
        """Let the store delete what is not needed any more."""
        if self.kept is not None:
            self.kept.close()

    def forget_damaged(self, sha256: str) -> bool:
        """Remove this content from the store if it is not what its name says; return whether it was removed.

        The store trusts names and sizes, which a power failure can leave without their bytes.
        """
        if self.store is None:
            return False
        with contextlib.suppress(OSError), self.contents[sha256].open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                self.contents[sha256].unlink()
                return True
        return False

    @property
    def files(self) -> int:
        return len(self.manifest.files)

    @property
    def size_bytes(self) -> int:
        return self.manifest.size_bytes


def shipped_text(shipment: Shipment, sent: Sequence["PushResult"]) -> str:
    """Return what travelled, in words: `148 files, 1.3 MB (300 MB left out by .gitignore)`, `3 of 148 files, 12 KB changed`."""
    most = max(sent, key=lambda result: (result.files, result.size_bytes), default=None)
    left_out = left_out_text(shipment.left_out)
    rest = f" ({left_out})" if left_out else ""
    # Each content is sent once, and no empty one.
    contents = len({file.sha256 for file in shipment.manifest.files if file.size_bytes})
    if most is not None and 0 < most.files < contents:
        return f"{most.files:,} of {count(shipment.files)}, {format_size(most.size_bytes)} changed{rest}"
    there = ", nothing new" if most is not None and not most.files and shipment.size_bytes else ""
    return f"{count(shipment.files)}, {format_size(shipment.size_bytes)}{there}{rest}"


def paced(show: Callable[[str], None]) -> OnProgress:
    """Return what shows progress as text after a second, and five times a second at most."""
    shown_at = time.monotonic() + FIRST_S - EVERY_S

    def on_progress(done: int, total: int) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= EVERY_S:
            shown_at = time.monotonic()
            show(f"{format_size(done)} of {format_size(total)}")

    return on_progress


def make_shipment(found: Survey, directory: Path, on_progress: OnProgress = lambda done, total: None) -> Shipment:
    """Store what the survey found in the store of this directory. Raises UserError for what cannot be read, and for secrets."""
    store, read = Store(directory), _counted(found.size_bytes, on_progress)

    def content(entry: Entry) -> tuple[str, int]:
        if isinstance(entry.content, bytes):
            return store.add_bytes(entry.content)
        return _stored(entry, store, read)

    with store.in_use():
        try:
            manifest = _manifest(found, content)
        except UserError:
            check_content(found)  # with every other secret
            raise
        kept = store.keep(manifest)
    store.prune()
    contents = {sha256: store.content(sha256) for sha256, _ in manifest.contents}
    return Shipment(manifest, contents, tuple(found.left_out), directory, kept)


def shipment_in_place(found: Survey, on_progress: OnProgress = lambda done, total: None) -> Shipment:
    """Return a shipment whose contents are read from the files themselves."""
    places: dict[str, Path] = {}
    read = _counted(found.size_bytes, on_progress)

    def content(entry: Entry) -> tuple[str, int]:
        assert isinstance(entry.content, Path)
        sha256, size_bytes = _stored(entry, None, read)
        places[sha256] = entry.content
        return sha256, size_bytes

    manifest = _manifest(found, content)
    return Shipment(manifest, places)


def _counted(total: int, on_progress: OnProgress) -> Callable[[int], None]:
    done = 0

    def read(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        on_progress(done, total)

    return read


def _manifest(found: Survey, content: Callable[[Entry], tuple[str, int]]) -> Manifest:
    files: list[File] = []
    links: list[tuple[str, str]] = []
    directories: list[str] = []
    for path, entry in sorted(found.entries.items()):
        if entry.content is None:
            directories.append(path)
        elif isinstance(entry.content, str):
            links.append((path, entry.content))
        else:
            files.append(File(path, *content(entry), entry.executable))
    return Manifest(tuple(files), tuple(links), tuple(directories))


def _stored(entry: Entry, store: Store | None, read: Callable[[int], None]) -> tuple[str, int]:
    """Return hash and size of the file's content, which is then in the store, if there is one."""
    path = entry.content
    assert isinstance(path, Path)
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if (secret := secret_in(entry)) is not None:
                raise secret
            return store.add_file(number, read) if store is not None else hashed(number, read)
        finally:
            os.close(number)
    except OSError as error:
        message = f"{printable(str(path))} cannot be read: {error.strerror or error}"
        raise UserError(message, hint=MAKE_READABLE) from error
