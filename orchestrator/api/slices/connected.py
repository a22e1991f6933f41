"""The workers of a slice that another machine made: what runs there, and what it wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from orchestrator.api.session import lookup
from orchestrator.api.session.events import LogLines
from orchestrator.api.session.session import Session
from orchestrator.api.slices import elsewhere, shell
from orchestrator.errors import RemoteError, UnknownRun, UserError
from orchestrator.places.preparation.records import read_record
from orchestrator.promise.lease.lease import Lease, Purpose
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.text.terminal import LineSplitter

if TYPE_CHECKING:
    from orchestrator.hosts.fleet.crew import FleetStatus, Sink
    from orchestrator.hosts.fleet.fleet import Fleet

CONNECT_S = 120.0  # the key of this machine takes seconds to arrive
WAIT_S = 0.5


def is_known(session: Session, text: str) -> bool:
    """Return whether the ledger has a run or a sweep of this id or name."""
    found = lookup.meant(session, text)
    return bool(found.runs or found.sweeps)


def known_slices(session: Session, text: str) -> list[Lease]:
    """Return the slices of this run that another machine made, and the ledger has: their log was read here, say."""
    return [lease for lease in lookup.meant(session, text).leases if lease.purpose is Purpose.ELSEWHERE]


def slice_of_run(session: Session, text: str, owner: str | None) -> Lease | None:
    """Return the slice of a run of another machine, in the ledger from now on; None: there is none.

    Raises what `elsewhere.find` raises.
    """
    known = known_slices(session, text)
    if known and owner in (None, known[0].owner):
        return elsewhere.as_labels_say(session, known[0])
    return elsewhere.find(session, text, owner)


class Connected:
    """The workers of a slice that another machine made."""

    def __init__(self, session: Session, lease: Lease) -> None:
        """Connect, as soon as the key of this machine has arrived. Raises Unreachable, HostKeyMismatch."""
        self.session, self.lease = session, lease
        self.fleet: Fleet = shell.open_lease(session, lease).fleet
        say = lambda text: session.reporter.progress("connect", text)  # noqa: E731
        self.fleet.connect(CONNECT_S, say)

    def close(self) -> None:
        """Close the connections."""
        self.fleet.cancel()

    def attempt(self) -> tuple[RunRecord, Attempt]:
        """Return the run of the slice, and its last attempt there. Raises UserError if worker 0 has no record of it."""
        found = []
        for each in self.fleet.attempts():
            pair = read_record(each.record, self.session.runs_directory)
            if pair is not None and self.lease.run in (None, pair[0].id):
                found.append(pair)
        if not found:
            raise UserError(
                f"worker 0 of {self.lease.name.node} has no record of a run",
                hint="only the machine that started it can follow it: an older tpujob did, or nothing runs there yet",
            )
        return max(found, key=lambda pair: (pair[0].created_at, len(pair[1].id), pair[1].id))

    def end(self, attempt: str, sink: Sink, metrics: Sink) -> FleetStatus:
        """Fetch the logs of a job that has ended, and return how it ended. Raises RemoteError if it has not."""
        self.fleet.attach(attempt, "main")
        self.fleet.follow(sink, metrics)
        status = self.fleet.wait(WAIT_S)
        while not status.ended:
            if status.silent_s(self.session.now(self.lease.cloud)) > CONNECT_S:
                raise RemoteError(f"not all workers of {self.lease.name.node} say how the job ended")
            status = self.fleet.wait(WAIT_S)
        return status

    def lines(self, *, follow: bool, takes: Callable[[int], bool]) -> Iterator[LogLines]:
        """Yield the lines of the workers as they are there; with `follow`, until the job has ended."""
        _, attempt = self.attempt()
        left = {index: size for index, size in self.fleet.log_sizes(attempt.id).items() if takes(index)}
        splitters = {index: LineSplitter(self.session.reporter.secrets.hide) for index in left}
        pieces: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
        self.fleet.attach(attempt.id, "main")
        self.fleet.follow(lambda index, piece: pieces.put((index, piece)))
        while True:
            ended = self.fleet.wait(WAIT_S).ended  # before the last look at what came
            while (came := _next(pieces)) is not None:
                index, piece = came
                if index not in left:
                    continue
                left[index] -= getattr(piece, "size_bytes", 0) or len(piece)
                if lines := splitters[index].feed(piece):
                    yield LogLines(index, tuple(lines))
            if ended or (not follow and all(size <= 0 for size in left.values())):
                break
        for index, splitter in splitters.items():
            if lines := splitter.flush():
                yield LogLines(index, tuple(lines))


def _next(pieces: SimpleQueue[tuple[int, bytes]]) -> tuple[int, bytes] | None:
    try:
        return pieces.get_nowait()
    except Empty:
        return None


def read_logs(
    session: Session, text: str, owner: str | None, *, follow: bool, takes: Callable[[int], bool]
) -> Iterator[LogLines]:
    """Return the lines of a run that the ledger does not have, from its workers. Raises UnknownRun where there is none."""
    lease = slice_of_run(session, text, owner)
    if lease is None:
        raise UnknownRun(f"there is no run {text!r}, here or in the API", hint="`tpujob status` lists what is alive")
    return _lines(session, lease, follow=follow, takes=takes)


def _lines(session: Session, lease: Lease, *, follow: bool, takes: Callable[[int], bool]) -> Iterator[LogLines]:
    with closing(Connected(session, lease)) as connected:
        yield from connected.lines(follow=follow, takes=takes)
