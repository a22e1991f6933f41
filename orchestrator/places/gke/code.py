"""What a job ships as one archive for its pods: the same bytes for the same files, whenever and by whomever it is packed."""

import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

from orchestrator.remote.shipping.shipment import Shipment

LEVEL = 6  # of gzip: the next ones save a percent, and take twice as long


@dataclass(frozen=True, slots=True)
class CodeArchive:
    """A .tar.gz in a file of this machine, and its hash."""

    path: Path
    sha256: str
    size_bytes: int


def pack_code(shipment: Shipment, into: Path) -> CodeArchive:
    """Write the archive to this file: sorted paths, no times, no owners, and of the modes whether a file can be executed."""
    with (
        into.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        _add(archive, shipment)
    with into.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    return CodeArchive(into, digest, into.stat().st_size)


def _add(archive: tarfile.TarFile, shipment: Shipment) -> None:
    manifest = shipment.manifest
    for path in manifest.directories:
        archive.addfile(_member(path, tarfile.DIRTYPE, 0o755))
    for each in manifest.files:
        member = _member(each.path, tarfile.REGTYPE, 0o755 if each.executable else 0o644)
        member.size = each.size_bytes
        if each.size_bytes == 0:
            archive.addfile(member, io.BytesIO())  # nothing is kept of an empty file
            continue
        with shipment.contents[each.sha256].open("rb") as content:
            archive.addfile(member, content)
    for path, leads_to in manifest.links:
        member = _member(path, tarfile.SYMTYPE, 0o777)
        member.linkname = leads_to
        archive.addfile(member)


def _member(path: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)  # owner 0, time 0
    member.type, member.mode = kind, mode
    return member
