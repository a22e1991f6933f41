"""`python -m orchestrator.notify.sender DIRECTORY`: read what is new in the ledger, and deliver what waits; then end.

Commands start it, the guardian's recovery and the timer, and no command waits for it. One works at a time. A message is held
until nothing new has come for QUIET_S, at most MOST_S, so that a storm is one message. What fails is tried again here for a
minute, and then by the next pass. SIGKILL at any moment loses nothing; it may send what was being sent twice.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from orchestrator import settings
from orchestrator.errors import ConfigError, TpujobError
from orchestrator.notify import events, receivers
from orchestrator.notify.delivery import Delivery, deliver
from orchestrator.notify.messages import Message
from orchestrator.notify.notifier import LOCK, is_in_ci
from orchestrator.notify.outbox import KINDS, Outbox, Waiting
from orchestrator.promise.effects.locks import FileLocks
from orchestrator.promise.lease.run_spec import NotifyWish
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.text.redaction import Redactor

QUIET_S, MOST_S = 6.0, 60.0  # twelve runs that end within a minute are one message
CI_QUIET_S = 0.0  # a CI job ends what it started when it ends
LINGER_S = 45.0  # a try that is due so soon is waited for
LOOK_S = 0.25
LATEST_S = 2 * 3600.0  # longer than any pause
AT_ONCE = 200  # events of the ledger

Deliver = Callable[[receivers.Receiver, tuple[Message, ...], Redactor], Delivery]


@dataclass(frozen=True, slots=True)
class Pass:
    """One look at the ledger and the outbox. `now` and `deliver` are for tests."""

    directory: Path
    ledger: Ledger
    environ: Mapping[str, str]
    now: Callable[[], float] = time.time
    deliver: Deliver = deliver

    @property
    def outbox(self) -> Outbox:
        return Outbox(self.directory)

    def own(self) -> NotifyWish | None:
        """Return who is told by the settings. Raises ConfigError."""
        wish: NotifyWish | None = settings.read_settings(settings.settings_path(self.environ), self.environ).get(
            "notify"
        )
        return wish

    def read(self) -> None:
        """Put the messages of what is new in the ledger into the outbox. Raises ConfigError: then nothing counts as read."""
        own, seen = self.own(), self.seen()
        while new := self.ledger.events_after(seen, KINDS, AT_ONCE):
            told = [each for event in new for each in events.messages_of(self.ledger, event)]
            keys = [receivers.receiver_of(each.run, own, each.message.event) for each in told]
            found = [(key, each.message) for key, each in zip(keys, told, strict=True) if key is not None]
            seen = new[-1].seq
            self.outbox.put(found, self.now(), seen=seen)

    def seen(self) -> int:
        """Return up to which event of the ledger its messages are in the outbox."""
        if (seen := self.outbox.seen()) is None:  # it was left unfinished
            self.outbox.make(self.ledger.last_event())
            return self.seen()
        return seen

    def send(self, quiet_s: float = QUIET_S) -> float | None:
        """Deliver what is due. Return the seconds until something else is; None: nothing waits."""
        now = self.now()
        due: list[Waiting] = []
        later_s: list[float] = []
        for each in self.outbox.waiting():
            ready_at = each.next_at if each.tries else min(each.until + quiet_s, each.since + MOST_S)
            ready_at = max(ready_at, each.next_at)
            if ready_at <= now or ready_at - now > LATEST_S:  # the wall clock was set back
                due.append(each)
            else:
                later_s.append(ready_at - now)
        if due:
            with ThreadPoolExecutor(len(due)) as threads:  # one that does not answer delays none of the others
                list(threads.map(self._send, due))
            return 0.0
        return min(later_s, default=None)

    def _send(self, waiting: Waiting) -> None:
        ids = [each.id for each in waiting.messages]
        try:
            receiver = receivers.find(waiting.receiver, self.own(), self.environ)
        except ConfigError as error:  # another pass may find it
            self.outbox.failed(ids, self.now(), error.message)
            return
        done = self.deliver(receiver, waiting.messages, self._secrets(receiver, waiting))
        if done.ok:
            self.outbox.delivered(ids, self.now())
        else:
            self.outbox.failed(ids, self.now(), done.said, final=done.final, again_s=done.again_s)
        print(f"{len(ids)} messages: {done.said}", file=sys.stderr, flush=True)

    def _secrets(self, receiver: receivers.Receiver, waiting: Waiting) -> Redactor:
        """Return what is hidden in these messages: the address itself, and what this process knows of the jobs' secrets."""
        secrets = Redactor([receiver.url] if receiver.url else [])
        for run in {each.run for each in waiting.messages if each.run is not None}:
            try:
                names = self.ledger.run(run)[0].spec.secret_sources
            except TpujobError:
                continue
            secrets.add(*(self.environ.get(name, "") for name in names))
        return secrets


def work(made: Pass, *, quiet_s: float = QUIET_S, linger_s: float = LINGER_S) -> None:
    """Make passes until nothing waits that is due soon. Another process that does the same ends this at once."""
    locks = FileLocks(made.directory / "locks")
    while locks.lock(LOCK):
        try:
            while True:
                made.read()
                later_s = made.send(quiet_s)
                if later_s is None or later_s > linger_s:
                    break
                time.sleep(min(later_s, LOOK_S))
        finally:
            locks.unlock(LOCK)
        # What was recorded while this let go of the lock: who recorded it may have taken this process for its sender.
        if not made.ledger.events_after(made.seen(), KINDS, 1):
            return


def main() -> None:
    directory = Path(sys.argv[1])
    ledger = Ledger(directory / "ledger.sqlite3")
    try:
        work(Pass(directory, ledger, os.environ), quiet_s=CI_QUIET_S if is_in_ci(os.environ) else QUIET_S)
    except (TpujobError, sqlite3.Error) as error:  # the next pass goes on
        print(f"not delivered yet: {error}", file=sys.stderr, flush=True)
    sys.stderr.flush()
    os._exit(0)  # a receiver that never answers must not keep the process


if __name__ == "__main__":
    main()
