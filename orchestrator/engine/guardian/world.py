"""The world of a guardian that is awake: the ledger, the locks, the clock, and a recovery in a process of its own.

It is loaded once the process that the guardian waits for has ended: until then the guardian stays small.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.core.lease.lease import Lease
from orchestrator.core.text.redaction import Redactor
from orchestrator.engine.effects.base import Program, Report, Sleep
from orchestrator.engine.runtime.locks import FileLocks
from orchestrator.ledger.clocks import Clocks
from orchestrator.ledger.file import LedgerUnavailable
from orchestrator.ledger.ledger import Ledger

CHILD_CRASH_AT = "TPUJOB_RECOVERY_CRASH_AT"


def drive(program: Program[None], world: GuardianWorld) -> None:
    """Perform a program's effects one after the other, in this thread: a guardian is never interrupted."""
    answer: Any = None
    error: Exception | None = None
    while True:
        try:
            effect = program.send(answer) if error is None else program.throw(error)
        except StopIteration:
            return
        answer, error = None, None
        try:
            if isinstance(effect, Sleep):
                time.sleep(effect.seconds)
            else:
                answer = effect.perform(world)  # type: ignore[arg-type]
        except Exception as failed:  # the program decides what it means
            error = failed


@dataclass(slots=True)
class GuardianWorld:
    """The part of the world that `loop` needs. The ledger is opened for each question: it may be moved aside meanwhile."""

    directory: Path
    crash_point: Callable[[str], None]
    locks: FileLocks = field(init=False)
    _guardians: FileLocks = field(init=False)  # the lock of all guardians of this state directory
    _child_crashes_at: str | None = field(default_factory=lambda: os.environ.get(CHILD_CRASH_AT))

    def __post_init__(self) -> None:
        self.locks, self._guardians = FileLocks(self.directory / "locks"), FileLocks(self.directory)

    @property
    def ledger(self) -> GuardianWorld:
        return self

    def open_leases(self) -> list[Lease]:
        path = self.directory / "ledger.sqlite3"
        if not path.exists():
            return []
        with contextlib.closing(Ledger(path)) as ledger:
            return ledger.open_leases()

    def now(self, cloud: str | None = None) -> float:
        """Return the ledger's time of this cloud, in unix seconds. Raises LedgerUnavailable when the ledger is gone."""
        assert cloud is not None, "a guardian has the leases of every cloud"
        path = self.directory / "ledger.sqlite3"
        if not path.exists():
            raise LedgerUnavailable(f"the ledger {path} was moved away")
        with contextlib.closing(Ledger(path)) as ledger:
            return Clocks(ledger).now(cloud)

    def report(self, report: Report) -> None:
        text = Redactor().hide(report.text)  # it may quote an API, and the log is kept
        print(f"{report.stage} {text}", file=sys.stderr, flush=True)

    def recover(self) -> None:
        """Run the recovery in a process of its own, to its end."""
        self.crash_point("before_recovery")
        environment = {name: value for name, value in os.environ.items() if name != CHILD_CRASH_AT}
        if self._child_crashes_at is not None:  # only the first one: the next is to finish what that one left
            environment["TPUJOB_CRASH_AT"], self._child_crashes_at = self._child_crashes_at, None
        argv = [sys.executable, "-m", "orchestrator.client.guarantee.recovery", str(self.directory)]
        try:
            subprocess.run(argv, env=environment, check=False)
        except OSError as error:
            self._complain("the recovery cannot be started", error)  # no memory, no process: that may pass
        self.crash_point("after_recovery")

    def take_lock(self) -> bool:
        """Return whether this is the guardian that waits for what is not due yet; it stays so until it ends."""
        try:
            locked = self._guardians.lock("guardian")
        except OSError as error:
            self._complain("the guardians' lock cannot be opened", error)
            return True  # two that wait are better than none
        if locked:
            self.crash_point("locked")
        return locked

    @staticmethod
    def _complain(what: str, error: OSError) -> None:
        print(f"{what}: {error.strerror}", file=sys.stderr, flush=True)
