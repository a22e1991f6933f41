"""What a place may ask of the command that plans a job there: the settings, the ledger, what this machine knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from orchestrator.promise.lease.lease import Lease
from orchestrator.settings import Target

if TYPE_CHECKING:
    from orchestrator.promise.effects.base import Program
    from orchestrator.promise.effects.locks import FileLocks
    from orchestrator.promise.lease.cloud_api import Cloud
    from orchestrator.promise.lease.run_and_attempt import RunRecord
    from orchestrator.promise.ledger.ledger import Ledger
    from orchestrator.text.redaction import Redactor

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Emulator:
    """Where the emulator of this cloud answers, and the file with its token."""

    url: str  # http://127.0.0.1:PORT
    token_file: Path


class Address(NamedTuple):
    """Where a cloud answers. `url` and `token` None: as `target` says."""

    target: Target
    url: str | None = None
    token: str | None = None


class Teller(Protocol):
    """Says something to the user. `secrets` hides values in all of it."""

    secrets: Redactor

    def notice(self, stage: str, text: str) -> None:
        """Say a line that stays."""

    def progress(self, stage: str, text: str) -> None:
        """Say a line that the next one may replace."""


class Desk(Protocol):
    """The session of a command, as far as a place sees it. Nothing of it connects to a cloud, but `run` and `recover`."""

    locks: FileLocks
    directory: Path  # the state directory
    target: Target

    @property
    def ledger(self) -> Ledger:
        """The ledger of this machine."""

    @property
    def reporter(self) -> Teller:
        """Where lines for the user go."""

    @property
    def runs_directory(self) -> Path:
        """The directory below which every run gets its own."""

    @property
    def owner(self) -> str:
        """Who owns what this user makes, as in labels and in the names of nodes."""

    def now(self, cloud: str | None = None) -> float:
        """Return the ledger's time of the command's cloud, or of another one, in unix seconds."""

    def certain_now(self) -> float:
        """Return the same, for the start of a claim. Raises CloudUnavailable while it is not known."""

    def open_leases(self) -> Sequence[Lease]:
        """Return the open leases of the command's cloud."""

    def lease_directory(self, lease_id: str) -> Path:
        """Return the private directory of a lease. Raises ConfigError."""

    def check_machine(self, workers: int = 0, files_each: int = 1) -> None:
        """Raise ConfigError for what would end a run on so many workers once its slice is billed: locks, files, memory."""

    def announce(self) -> None:
        """Say which cloud this is, once."""

    def recover(self, *, look: bool = False) -> None:
        """Finish what earlier commands left."""

    def forget_drafts(self, made: Iterable[str]) -> None:
        """Delete the keys of leases that are not asked for."""

    keys_left: set[str]  # leases whose key may still be in the OS Login profile

    def emulator(self, cloud: str) -> Emulator | None:
        """Return where an emulated cloud answers, which is started if need be; None: the cloud is Google's."""

    def cloud(self, cloud: str) -> Cloud:
        """Return the client of a cloud, which is opened with its first use."""

    def run_of(self, lease: Lease) -> RunRecord | None:
        """Return the run of a lease."""

    def run(self, program: Program[T], cloud: str | None = None) -> T:
        """Run a program on a cloud."""


class Lines(Protocol):
    """How a command reaches the clouds."""

    light: bool  # it creates nothing

    def address(self, cloud: str) -> Address:
        """Return where this cloud answers; an embedded emulator is started if need be. Raises CloudError, ConfigError."""
