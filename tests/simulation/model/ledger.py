"""The ledger of a simulated machine: the production transitions on dictionaries instead of SQLite.

`test_ledger.py` checks that both behave alike. Faults: a full disk refuses every write; a lost ledger is a new one.
"""

from collections.abc import Callable

from orchestrator.core.lease import lease as leases
from orchestrator.core.lease import run_and_attempt as attempts
from orchestrator.core.lease.lease import Intent, Lease, LeaseEvent
from orchestrator.core.lease.run_and_attempt import Attempt, AttemptEvent, Began, RunCanceled
from orchestrator.errors import UnknownLease, UnknownRun
from orchestrator.ledger.clocks import Anchor
from orchestrator.ledger.file import LedgerUnavailable

Heard = Callable[[LeaseEvent, Lease | None, Lease], None]


class InMemoryLedger:
    """A `Ledger` in memory. It calls `on_change` with each committed change of a lease: event, lease before, lease after."""

    def __init__(self, heard: Heard | None = None) -> None:
        self.leases: dict[str, Lease] = {}
        self.attempts: dict[str, Attempt] = {}
        self.runs: set[str] = set()
        self.anchors: dict[str, Anchor] = {}
        self.heard = heard
        self.full = False  # is the disk full?

    def record(self, *events: LeaseEvent | AttemptEvent) -> None:
        if self.full:
            raise LedgerUnavailable("the ledger cannot be used: database or disk is full")
        new_runs: set[str] = set()
        new_leases: dict[str, Lease] = {}
        new_attempts: dict[str, Attempt] = {}
        changes: list[tuple[LeaseEvent, Lease | None, Lease]] = []
        queue = list(events)
        while queue:
            event = queue.pop(0)
            match event:
                case Intent(lease=lease):
                    attempts.check_not_canceled(self._last_attempt(lease.run, new_attempts), event)
                    if lease.id in self.leases or lease.id in new_leases:
                        raise LedgerUnavailable("the ledger cannot be used: UNIQUE constraint failed: lease.id")
                    new_leases[lease.id] = lease
                    changes.append((event, None, lease))
                case Began(run=run, attempt=attempt):
                    attempts.check_not_canceled(self._last_attempt(run.id, new_attempts), event)
                    new_runs.add(run.id)
                    new_attempts[attempt.id] = attempt
                case RunCanceled(run_id=run_id):
                    last = self._last_attempt(run_id, new_attempts)
                    if last is None:
                        raise UnknownRun(f"there is no run {run_id!r}")
                    every = {**self.leases, **new_leases}.values()
                    of_run = sorted((a for a in every if a.open and a.run == run_id), key=lambda a: a.created_at)
                    queue[:0] = attempts.events_of_cancel(event, last, of_run)
                case attempts.AttemptChange():
                    before_attempt = new_attempts.get(event.attempt_id) or self.attempt(event.attempt_id)
                    after_attempt = new_attempts[event.attempt_id] = attempts.apply(before_attempt, event)
                    if after_attempt.lease_id not in {None, *self.leases, *new_leases}:
                        raise LedgerUnavailable("the ledger cannot be used: FOREIGN KEY constraint failed")
                case _:
                    before = new_leases.get(event.lease_id) or self.lease(event.lease_id)
                    after = new_leases[event.lease_id] = leases.apply(before, event)
                    changes.append((event, before, after))
        self.leases |= new_leases
        self.runs |= new_runs
        self.attempts |= new_attempts
        if self.heard is not None:
            for change in changes:
                self.heard(*change)

    def anchor(self, cloud: str, change: Callable[[Anchor | None, list[Lease]], Anchor]) -> Anchor:
        before = self.anchors.get(cloud)
        after = change(before, [lease for lease in self.open_leases() if lease.cloud == cloud])
        if not self.full:
            self.anchors[cloud] = after
        return after

    def lease(self, lease_id: str) -> Lease:
        try:
            return self.leases[lease_id]
        except KeyError:
            raise UnknownLease(f"there is no lease {lease_id!r}") from None

    def _last_attempt(self, run: str | None, new: dict[str, Attempt]) -> Attempt | None:
        return next((each for each in reversed(list({**self.attempts, **new}.values())) if each.run_id == run), None)

    def attempt(self, attempt_id: str) -> Attempt:
        try:
            return self.attempts[attempt_id]
        except KeyError:
            raise UnknownRun(f"there is no attempt {attempt_id!r}") from None

    def open_leases(self) -> list[Lease]:
        return sorted((lease for lease in self.leases.values() if lease.open), key=lambda lease: lease.created_at)

    def attempts_open(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts.values() if not attempt.state.ended]
