"""What is saved of a run in the bucket of its job, as its workers read and write it. The layout is in `manifest`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..files.phases import PhaseFiles
from . import manifest
from .cloud_storage import split
from .data_objects import Changed, Failed, Source, check
from .manifest import Copy, Manifest, Part

CONFLICTS = 100  # of writes of the manifest: every worker may be one
LOG = 3  # the descriptor of the job's log
RESTORED_PART = ".draft.part.json"  # in the directory of the attempt: what came from the bucket


def phase_of_job() -> PhaseFiles:
    """Return the main phase of the job that this program runs in, or for."""
    artifacts = Path(os.environ["TPUJOB_ARTIFACTS"])
    return PhaseFiles(os.environ["TPUJOB_ATTEMPT"], "main", str(artifacts.parent.parent))


def number_of(phase: PhaseFiles) -> int:
    """Return which attempt of its run it is, from 1."""
    return int(phase.attempt.rpartition("-")[2])


class Damaged(Exception):
    """Why a copy cannot be used."""


class Saved:
    """What is saved of a run, for one attempt on one node. `url`: gs://BUCKET/PREFIX/RUN/saved."""

    def __init__(self, url: str, attempt: int, node: str, worker: int, workers: int, source: Source) -> None:
        self.url, self.attempt, self.node, self.worker, self.workers = url, attempt, node, worker, workers
        self.source = source
        self.bucket, prefix = split(url)
        self.top = f"{prefix}/"
        self.place = f"{self.top}{attempt}-{node}/"  # of this attempt

    def read(self) -> tuple[Manifest | None, str]:
        """Return the manifest, None if there is none, and its generation. Raises Failed."""
        name = self.top + manifest.NAME
        for _ in range(CONFLICTS):
            row = self.source.row(self.bucket, name)
            if row is None:
                return None, "0"
            try:
                return Manifest.of_text(self.source.content(self.bucket, name, row["generation"])), row["generation"]
            except Changed:  # by another worker, in between
                continue
            except ValueError as error:
                raise Failed(f"the manifest there cannot be read: {error}") from error
        raise Failed("the manifest there changes all the time")

    def write(self, copy: Copy | None = None, damaged: Copy | None = None) -> Manifest:
        """Take the manifest over, add a copy, or leave one out; return it. Raises Superseded and Failed."""
        for _ in range(CONFLICTS):
            before, generation = self.read()
            if before is not None and copy is not None and before.copies[:1] == (copy,):
                return before  # the answer to an earlier try was lost
            after = manifest.written(before, self.attempt, self.node, copy, damaged)
            if after == before:
                return after
            try:
                check(self.source.put(self.bucket, self.top + manifest.NAME, after.text(), generation))
                return after
            except Changed:
                continue
        raise Failed("the manifest there changes all the time")

    def part(self, name: str, sha256: str | None = None) -> Part:
        """Return the part of this name. Raises Damaged if it is gone, or is another one than that with this hash; Failed."""
        try:
            text = self.source.content(self.bucket, name)
            if sha256 is not None and hashlib.sha256(text).hexdigest() != sha256:
                raise Damaged(f"{name} has another content than it had")
            return Part.of_text(text)
        except Changed:
            raise Damaged(f"{name} is gone") from None
        except ValueError as error:
            raise Damaged(f"{name}: {error}") from error

    def usable(self, copies: Sequence[Copy]) -> Iterator[tuple[Copy, Part | None]]:
        """Yield each copy of which every part of every worker is there, with that of this worker, if it has one.

        All workers look at all parts, so all of them choose the same copy.
        """
        sizes = {row["name"]: int(row["size"]) for row in self.source.rows(self.bucket, self.top)}
        for copy in copies:
            try:
                parts = [self.part(*each) for each in copy.parts]
                for file in (file for part in parts for file in part.files):
                    if sum(sizes.get(piece, -1) for piece in file.pieces) != file.size_bytes:
                        raise Damaged(f"not all of {file.path} is there")
                yield copy, (parts[self.worker] if self.worker < len(parts) else None)
            except Damaged as error:
                say(f"a copy of the saved work cannot be used: {error}")

    def fetch(self, part: Part, draft: Path) -> None:
        """Write the files of a part below `draft`. Raises Damaged, Failed, and OSError for this disk."""
        for file in part.files:
            names = file.path.split("/")
            if names[0] not in ("artifacts", "work") or len(names) < 2 or {"", ".", ".."} & set(names):
                raise Damaged(f"{file.path!r} is no path of saved work")
            target = draft / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            digest = hashlib.sha256()
            with target.open("wb") as out:
                for piece in file.pieces:
                    try:
                        content = self.source.content(self.bucket, piece)
                    except Changed:
                        raise Damaged(f"{piece} is gone") from None
                    digest.update(content)
                    out.write(content)
            if digest.hexdigest() != file.sha256:
                raise Damaged(f"{file.path} has another content than its hash says")


def explained(saved: Saved, error: Exception) -> str:
    """Return why it failed, with what the user can do."""
    why = f"{error.strerror} ({error.filename})" if isinstance(error, OSError) else str(error) or type(error).__name__
    if not why.startswith(("HTTP 401", "HTTP 403")):
        return why
    account = saved.source.account()
    grant = f"gcloud storage buckets add-iam-policy-binding gs://{saved.bucket} --member=serviceAccount:{account}"
    hint = f"; `{grant} --role=roles/storage.objectUser` lets it" if "@" in account else ""
    return f"{account or 'the account of this worker'} may not read and write there{hint} ({why})"


def say(text: str) -> None:
    """Say it in the log of the job."""
    line = f"tpujob: {text}\n".encode(errors="backslashreplace")
    try:
        os.write(LOG, line)
    except OSError:
        os.write(1, line)
