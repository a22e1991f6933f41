"""The toy place as a ground: its process, and one that forks commands."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import CloudUnavailable
from tests import ROOT
from tests.places.ground import BEGUN, GroundWithFiles, Job
from tests.places.toy.place import TRAITS, Place
from tests.waiting import until

FOREVER = 1e9
LIMIT_S, LIFE_S = 0.5, 7200.0


@dataclass
class ToyCommand:
    ground: ToyGround
    pid: int

    def until_begun(self) -> None:
        until(lambda: BEGUN in self.said or self.ground.machine("code", self.pid) is not None, BEGUN)
        assert BEGUN in self.said, self.said

    def press(self, number: int = signal.SIGINT) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.press(signal.SIGKILL)
        self.code()

    def code(self) -> int:
        return until(lambda: self.ground.machine("code", self.pid), "its end", lambda code: code is not None)

    @property
    def said(self) -> str:
        path = self.ground.directory / f"{self.pid}.said"
        return path.read_text() if path.exists() else ""


class ToyGround(GroundWithFiles):
    place, traits = "toy", TRAITS

    def __init__(self, directory: Path, table: Place, machine: Place) -> None:
        self.directory = self.state = directory
        self.table, self.machine = table, machine
        table("reset")

    def job(self, job: Job) -> None:
        made = {
            **vars(job), "files": dict(job.files), "waits": job.waits or job.is_short, "env": {"SECRET": job.secret},
            "limit_s": LIMIT_S if job.is_short else LIFE_S / 2, "life_s": LIFE_S, "release_s": 0.1 if job.gives_up else 60.0,
        }  # fmt: skip
        (self.directory / "job.json").write_text(json.dumps(made))
        self.table("set", go=False)

    def start(self, verb: str, at: str = "") -> ToyCommand:
        return ToyCommand(self, self.machine("start", self.directory, verb, at))

    def points(self) -> Iterator[str]:
        return (f"any:{number}:before" for number in itertools.count(1))  # after one is before the next one

    def left(self) -> list[str]:
        return list(self.table("list"))

    def delete_slowly(self, *, never: bool = False) -> None:
        self.table("set", looks=FOREVER if never else 6)

    def delete_again(self) -> None:
        self.table("forget_deletes")

    def let_go(self) -> None:
        self.table("set", go=True)

    def until_it_ends_by_itself(self) -> None:
        self.table("set", moved_s=LIFE_S + 1)
        assert self.left() == []

    def holding(self, secret: str) -> list[Path]:
        return [
            path for path in super().holding(secret) if path.name != "job.json"
        ]  # which has it in place of its user

    def published(self) -> str:
        return str(self.table("list"))


@contextmanager
def toy_processes() -> Iterator[tuple[Place, Place]]:
    """Start the place, and the machine that forks commands."""
    with tempfile.TemporaryDirectory(prefix="toy") as sockets:  # short names
        table, machine = Place(f"{sockets}/table"), Place(f"{sockets}/machine")
        words = (("place", table.address), ("commands", machine.address, table.address))
        started = [
            subprocess.Popen([sys.executable, "-m", f"tests.places.toy.{name}", *rest], cwd=ROOT)
            for name, *rest in words
        ]
        try:
            until(lambda: all(map(_answers, (table, machine))), "both processes")
            yield table, machine
        finally:
            for process in started:
                process.kill()
                process.wait()


def _answers(place: Place) -> bool:
    try:
        place("__str__")
    except CloudUnavailable:
        return False
    return True
