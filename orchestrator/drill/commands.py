"""`tpujob` commands in processes of their own, and what the transcript of their calls to the API tells."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GRACE_S = 180.0  # after Ctrl-C, for a command to delete its slice and prove it; then its guardian and `down` go on
NO_REASON = ("hint:", "do now", "run      ")  # advice, and where the results of a run are
_ZONE = re.compile(r"/locations/([a-z0-9-]+)/")
_CREATED = re.compile(r"[?&](?:nodeId|queuedResourceId)=([A-Za-z0-9-]+)")


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """Return the last thing that it said about how it went."""
        lines = [line.strip() for line in f"{self.out}\n{self.err}".splitlines()]
        said = [line for line in lines if line and not line.startswith(NO_REASON)]
        return said[-1] if said else "nothing"


@dataclass(frozen=True, slots=True)
class Running:
    """A command that was started; what it says goes to two files."""

    process: subprocess.Popen[bytes]
    files: tuple[Path, Path]

    @classmethod
    def start(cls, words: Sequence[str], stem: Path, environ: Mapping[str, str]) -> Running:
        """Start it in a session of its own: Ctrl-C in the terminal is for the process that waits for it."""
        files = stem.with_suffix(".out"), stem.with_suffix(".err")
        argv = [sys.executable, "-P", "-m", "orchestrator.cli", *words]
        with files[0].open("wb") as out, files[1].open("wb") as err:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=stem.parent,
                env=environ,
                start_new_session=True,
            )
        return cls(process, files)

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def wait(self, limit_s: float) -> Done:
        """Return how it ended. Raises TimeoutExpired."""
        code = self.process.wait(limit_s)
        return Done(code, *(file.read_text(errors="replace") for file in self.files))

    def stop(self) -> None:
        """Press Ctrl-C, as it were, unless it has ended: a command deletes its slice then, and proves it."""
        if not self.has_ended:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(GRACE_S)
            except subprocess.TimeoutExpired:  # its guardian goes on, and what is left is looked for at the end
                self.process.kill()
                self.process.wait()


def id_of(node: str) -> str:
    """Return the id at the end of a node's name."""
    return node.rpartition("-")[2]


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of a transcript that is being written."""

    file: Path

    def rows(self) -> list[Mapping[str, Any]]:
        """Return them, without a line that is not whole yet."""
        rows = []
        for line in self.file.read_text().splitlines() if self.file.exists() else ():
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))
        return [row for row in rows if "method" in row]

    def made(self) -> set[str]:
        """Return every slice that was asked for, by its id: the transcript has no owners."""
        posts = (_CREATED.search(row["path"]) for row in self.rows() if row["method"] == "POST")
        return {id_of(found[1]) for found in posts if found}

    def zones(self) -> set[str]:
        """Return every zone in which a slice was asked for."""
        posts = (row["path"] for row in self.rows() if row["method"] == "POST" and _CREATED.search(row["path"]))
        return {found[1] for path in posts if (found := _ZONE.search(path))}

    def queued(self, ids: Collection[str]) -> set[str]:
        """Return those of these slices that the API has shown in its queue."""
        seen = (row["path"] for row in self.rows() if row["method"] == "GET" and row["status"] == 200)
        return {id_of(path.partition("?")[0].rpartition("/queuedResources/")[2]) for path in seen}.intersection(ids)

    def deletes(self, node: str) -> int:
        """Return how many deletes of it were sent."""
        return sum(row["method"] == "DELETE" and id_of(node) in row["path"] for row in self.rows())
