"""What a session has of `notify:`: it hears what is recorded in its ledger, and wakes the process that tells of it.

Nothing here waits, nothing here raises: no run may fail or be later because somebody is to be told of it.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import orchestrator
from orchestrator.notify.outbox import KINDS, NAME, Outbox
from orchestrator.promise.effects.locks import FileLocks
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.system import private_files
from orchestrator.system.lazy import Later

if TYPE_CHECKING:
    import subprocess

    from orchestrator.notify import events, receivers
    from orchestrator.promise.effects import base
    from orchestrator.promise.effects.base import Report
    from orchestrator.promise.lease import changes
    from orchestrator.promise.lease.absence import Released
    from orchestrator.promise.lease.lease import Lease
    from orchestrator.promise.lease.run_and_attempt import RunRecord
    from orchestrator.promise.lease.run_spec import NotifyWish
    from orchestrator.text.redaction import Redactor
else:  # for those who have a receiver
    subprocess = Later("subprocess")
    base = Later("orchestrator.promise.effects.base")
    changes = Later("orchestrator.promise.lease.changes")
    events, receivers = Later("orchestrator.notify.events"), Later("orchestrator.notify.receivers")

LOG, LOCK = "notify.log", "notify"
LEAVE_S = 2.0  # that the end of a command in a CI job may wait
FINISH_S = 120.0  # and that of a timer's, at which nobody looks


class Notifier:
    """`directory`: that of the ledger and the outbox. `own`: the receiver of the settings, whose address `secrets` hides."""

    def __init__(self, directory: Path, own: NotifyWish | None, secrets: Redactor) -> None:
        self._directory, self._own = directory, own
        if own is not None:
            secrets.add(*receivers.addresses(own, os.environ))
        self._sender: subprocess.Popen[bytes] | None = None

    def open_ledger(self) -> HeardLedger:
        """Return the ledger, of which this hears what is recorded."""
        return HeardLedger(self._directory / "ledger.sqlite3", self)

    @property
    def has_outbox(self) -> bool:
        """Whether there is one: since somebody was to be told of something."""
        return (self._directory / NAME).exists()

    def hears(self, ledger: Ledger, recorded: Sequence[object]) -> bool:
        """Return whether somebody is to be told of what is about to be recorded. Before the first of it there is an outbox."""
        with suppress(Exception):  # whatever is wrong here, a run goes on to its end
            told = [each for each in recorded if self._is_told(ledger, each)]
            if told:
                Outbox(self._directory).make(ledger.last_event())
            return any(not (isinstance(each, changes.Began) and each.at is None) for each in told)
        return False

    def _is_told(self, ledger: Ledger, event: object) -> bool:
        match event:
            case changes.Began(run=run):
                return self._has_receiver(run)
            case changes.AttemptEnded(attempt_id=attempt) | changes.Moved(attempt_id=attempt, state="running"):
                return self._has_receiver(ledger.run(ledger.attempt(attempt).run_id)[0])
            case changes.HeldUntil(lease_id=lease):
                run_id = ledger.lease(lease).run
                return run_id is not None and self._has_receiver(ledger.run(run_id)[0])
        return False

    def _has_receiver(self, run: RunRecord) -> bool:
        own, asked = self._own, run.spec.notify
        return any(wish is not None and wish.receives for wish in (own, asked)) and (asked is None or asked.on != ())

    def reporting(self, report: Callable[[Report], None], ledger: Ledger) -> Callable[[Report], None]:
        """Return `report`, with which it is also told that the budget of a run will soon end its job."""

        def both(told: Report) -> None:
            report(told)
            if isinstance(near := told.about, base.MoneyNear):
                self._put(ledger, lambda: events.cost_near(ledger, near))

        return both

    def unproven(self, ledger: Ledger, released: Released, now: float) -> None:
        """Tell of a slice that is not proven gone."""

        def told() -> events.Told:
            lease = released.lease
            run = ledger.run(lease.run)[0] if lease.run is not None else None
            why = f"{released.verdict.last_seen}; missing for the proof: {'; '.join(released.verdict.missing)}"
            return events.unproven(lease, run, now, why)

        self._put(ledger, told)

    def left(self, ledger: Ledger, node: str, alert: str, now: float) -> None:
        """Tell of a slice, of whichever machine, that gc could not prove gone."""
        self._put(ledger, lambda: events.left_by_gc(node, alert, now))

    def _put(self, ledger: Ledger, make: Callable[[], events.Told]) -> None:
        if self._own is None and not self.has_outbox:
            return  # no run here has a receiver of its own, either
        with suppress(Exception):  # the alert itself must not fail
            told = make()
            receiver = receivers.receiver_of(told.run, self._own, told.message.event)
            if receiver is not None:
                box = Outbox(self._directory)
                box.make(ledger.last_event())
                box.put([(receiver, told.message)], time.time())
                self.wake()

    def attend(self, ledger: Ledger) -> None:
        """Wake the sender if an earlier process left something to send."""
        if not self.has_outbox:
            return
        with suppress(Exception):  # every command comes by here
            box, now = Outbox(self._directory), time.time()
            seen = box.seen()
            if seen is None or ledger.events_after(seen, KINDS, 1) or any(w.next_at <= now for w in box.waiting()):
                self.wake()

    def hurry(self) -> None:
        """Let what waits for its next try be tried now."""
        if self.has_outbox:
            with suppress(sqlite3.Error):
                Outbox(self._directory).hurry()
                self.wake()

    def wake(self) -> None:
        """Start a sender. One that has nothing to do, because another one is at it, ends at once."""
        if FileLocks(self._directory / "locks").is_locked(LOCK):
            return  # that one looks again when it lets go
        with suppress(OSError), private_files.open_file(self._directory / LOG, "ab") as log:
            self._sender = subprocess.Popen(
                [sys.executable, "-P", "-m", "orchestrator.notify.sender", str(self._directory.absolute())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=orchestrator.ROOT,
                env={name: value for name, value in os.environ.items() if name != "TPUJOB_CRASH_AT"},
                start_new_session=True,
            )

    def close(self) -> None:
        """In a CI job, whose end takes the sender along, wait for it for a moment."""
        if is_in_ci(os.environ):
            self.finish(LEAVE_S)

    def finish(self, within_s: float = FINISH_S) -> None:
        """Wait for the sender that this has started, if any: with the end of a timer's command systemd ends it, too."""
        if self._sender is not None:
            with suppress(subprocess.TimeoutExpired):
                self._sender.wait(within_s)


def is_in_ci(environ: Mapping[str, str]) -> bool:
    """Return whether this is a CI job, whose end takes along what it has started."""
    return bool(environ.get("CI") or environ.get("RUNNER_TRACKING_ID"))


class HeardLedger(Ledger):
    """A ledger whose notifier hears of what is recorded, before and after."""

    def __init__(self, path: Path, notifier: Notifier) -> None:
        super().__init__(path)
        self._notifier = notifier
        # Of a queue: what has to be done before a create call of this lease is recorded. What it raises stops the call.
        self.before_create: Callable[[Lease], None] | None = None

    def record(self, *recorded: changes.LeaseEvent | changes.AttemptEvent) -> None:
        if self.before_create is not None:
            for each in recorded:
                if isinstance(each, changes.CreateSent):
                    self.before_create(self.lease(each.lease_id))
        heard = self._notifier.hears(self, recorded)
        super().record(*recorded)
        if heard:
            self._notifier.wake()
