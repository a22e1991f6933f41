"""What the suite asks of a ground: to play a job that is described as data, and to tell what is left of it, and where."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import psutil

from orchestrator.promise.lease.lease import LeaseState
from orchestrator.promise.lease.run_and_attempt import Attempt
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.traits import Traits
from tests.disk import holding
from tests.waiting import until

BEGUN = "begun"
KILLED = -signal.SIGKILL
CREATED = "Create:1:after"  # the effect after which something exists


@dataclass(frozen=True)
class Job:
    """A job as data: what it prints and writes, and how it ends. `$SECRET` in a line is the value of its variable SECRET."""

    lines: tuple[str, ...] = (BEGUN,)
    setup: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    code: int = 0
    setup_code: int = 0
    waits: bool = False  # once it has written everything, until `let_go`
    is_short: bool = False  # it waits, and reaches its limit
    gives_up: bool = False  # its commands wait for no proof for longer than a moment
    secret: str = "no-secret-at-all"


class Command(Protocol):
    """A command that was begun."""

    def until_begun(self) -> None:
        """Wait until the job says `begun` to it."""

    def press(self, number: int = signal.SIGINT) -> object:
        """Send a signal."""

    def kill(self) -> None:
        """Send SIGKILL: nothing of it runs any more, not even its guardian."""

    def code(self) -> int:
        """Wait for its end, and return its exit code."""

    @property
    def said(self) -> str:
        """All that it printed."""


class Ground(ABC):
    """A place, and a machine of its own from which commands reach it. Of its runs, the newest is meant."""

    place: str  # by the name of its folder
    traits: Traits
    is_quick = True  # a command dies at every effect; False: at `deaths` of them
    deaths = 20  # at how many a command dies, at least
    has_bytes = True  # False: what is simulated are claims and ends, and a job there prints and writes nothing

    @abstractmethod
    def job(self, job: Job) -> None:
        """Let this be the job of the commands that follow."""

    @abstractmethod
    def start(self, verb: str, at: str = "") -> Command:
        """Begin a command: run, submit, attach, cancel, or another one (`status`). `at`: the effect at which it is killed."""

    @abstractmethod
    def points(self) -> Iterator[str]:
        """Yield the effects at which a command is killed. The caller stops where it has ended before it came there."""

    @abstractmethod
    def left(self) -> list[str]:
        """Return what exists of the job at its place."""

    @abstractmethod
    def delete_slowly(self, *, never: bool = False) -> None:
        """From now on, what is deleted exists for a while; `never`: until `delete_again`."""

    @abstractmethod
    def until_it_ends_by_itself(self) -> None:
        """Wait, within the bound of the place, until nothing of the job costs anything."""

    def power_cut(self, command: Command) -> None:
        """End everything that runs on this machine."""
        command.kill()

    @abstractmethod
    def delete_again(self) -> None:
        """Let deletes have their effect again."""

    @abstractmethod
    def let_go(self) -> None:
        """Let the job end that waits."""

    def play(self, verb: str) -> tuple[int, str]:
        """Run a command to its end; return its exit code and all that it printed."""
        command = self.start(verb)
        return command.code(), command.said

    def next_commands(self) -> None:
        """Run commands until all is proven: each finishes first what another has left, or ends with 75 if that takes long."""
        until(lambda: self.play("status")[0], "the proof", lambda code: code == 0)

    # -- what the ledger says --------------------------------------------------------------------------------------------------

    @property
    def ledger(self) -> Any:
        raise NotImplementedError

    def asked(self) -> set[str]:
        """Return the names of all that was ever asked for."""
        return {lease.name.node for lease in self.ledger.leases()}

    def owes(self) -> bool:
        return bool(self.ledger.open_leases())

    def is_releasing(self) -> bool:
        """Return whether the proof of an absence is still to come."""
        return any(lease.state is LeaseState.DOWN for lease in self.ledger.open_leases())

    def attempt(self) -> Attempt:
        """Return the last attempt of the newest run."""
        return self.ledger.runs()[0][1]  # type: ignore[no-any-return]

    def has_runs(self) -> bool:
        return bool(self.ledger.runs())


class GroundWithFiles(Ground):
    """A ground whose commands leave files: `directory` has all of them."""

    directory: Path
    state: Path

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.state / "ledger.sqlite3")

    @property
    def run_directory(self) -> Path:
        return Path(self.ledger.runs()[0][0].directory)

    def log(self) -> str:
        return (self.run_directory / "logs" / "worker0.log").read_text()

    def results(self) -> dict[str, str]:
        """Return what was collected, by path."""
        found = self.run_directory / "worker0" / "artifacts"
        return {str(each.relative_to(found)): each.read_text() for each in found.rglob("*") if each.is_file()}

    def published(self) -> str:
        """Return what everybody may read of the job at its place: labels, metadata, manifests."""
        return ""

    def holding(self, secret: str) -> list[Path]:
        """Return the files of this machine that have it."""
        return holding(self.directory, secret.encode())

    def command_lines(self) -> list[str]:
        """Return the words of every process of this machine."""
        found = []
        for process in psutil.process_iter():
            try:
                found.append(" ".join(process.cmdline()))
            except (psutil.Error, OSError):
                continue
        return found
