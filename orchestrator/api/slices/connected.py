"""The workers of a slice that another machine made: what runs there, and what it wrote."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, cast

from orchestrator import traits
from orchestrator.api.session import lookup
from orchestrator.api.session.events import LogLines
from orchestrator.api.session.session import Session
from orchestrator.api.slices import elsewhere, shell
from orchestrator.errors import RemoteError, UnknownRun, UserError, WrongState
from orchestrator.places.preparation.records import read_record
from orchestrator.promise.effects.cloud import Workers
from orchestrator.promise.effects.retry import until
from orchestrator.promise.lease.lease import Lease, Purpose
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.text.terminal import LineSplitter

if TYPE_CHECKING:
    from orchestrator.hosts.fleet.crew import FleetStatus, FoundCrew, Sink
    from orchestrator.promise.lease.cloud_api import WorkerAddress

CONNECT_S = 120.0  # the key of this machine takes seconds to arrive
WAIT_S = 0.5
QUIET_S = 10.0  # without a byte of a log, which is then all there is, whatever a worker says of its size
PODS_QUIET_S = 3.0  # of pods, which say nothing of it
NO_PODS = "they may not run yet, or not any more: `tpujob status` shows its state"


def is_known(session: Session, text: str) -> bool:
    """Return whether the ledger has a run or a sweep of this id or name."""
    found = lookup.meant(session, text)
    return bool(found.runs or found.sweeps)


def known_slices(session: Session, text: str, owner: str | None) -> list[Lease]:
    """Return the slices of this run that another machine made, and the ledger has: their log was read here, say."""
    found = lookup.meant(session, text).leases
    return [each for each in found if each.purpose is Purpose.ELSEWHERE and lookup.is_of(session, each, owner)]


def slice_of_run(session: Session, text: str, owner: str | None, *, detached: bool = False) -> Lease | None:
    """Return the slice of a run of another machine, in the ledger from now on; None: there is none.

    A slice that the ledger has may be that of another run by now. `detached`: only one whose job runs on its own counts.
    Raises what `elsewhere.find` raises; UserError for several.
    """
    for each in known_slices(session, text, owner):
        elsewhere.as_labels_say(session, each)
    known = lookup.one_of(known_slices(session, text, owner))
    if known is not None:
        return known if known.runs_detached or not detached else None
    passed_on = [each for each in session.open_leases() if each.purpose is Purpose.ELSEWHERE and each.run is not None]
    for each in passed_on:  # such a slice goes from run to run
        elsewhere.as_labels_say(session, each)
    known = lookup.one_of(known_slices(session, text, owner)) if passed_on else None
    return known or elsewhere.find(session, text, owner, detached=detached, of_run=True)


class Connected:
    """The workers of a slice that another machine made."""

    def __init__(self, session: Session, lease: Lease) -> None:
        """Connect, as soon as the key of this machine has arrived. Raises Unreachable, HostKeyMismatch."""
        self.session, self.lease = session, lease
        has_vms = traits.traits_of(lease.cloud).vms
        self.fleet: FoundCrew = shell.open_lease(session, lease).fleet if has_vms else _pods(session, lease)
        self.where = f"worker 0 of {lease.name.node}" if has_vms else lease.name.node
        say = lambda text: session.reporter.progress("connect", text)  # noqa: E731
        self.fleet.connect(CONNECT_S, say)

    def close(self) -> None:
        """Close the connections."""
        self.fleet.cancel()

    def attempt(self) -> tuple[RunRecord, Attempt]:
        """Return the run of the slice, and its last attempt there. Raises UserError if worker 0 has no record of it."""
        lease, found = self.lease, []
        if lease.run is None:
            raise UserError(f"{lease.handle} ({lease.name.node}) is a slice of `tpujob up`, and not that of one run")
        for each in self.fleet.attempts(lease.run):
            pair = read_record(each.record, each.attempt, lease, self.session.runs_directory)
            if pair is not None:
                found.append(pair)
        if not found:
            whose = f", as {lease.route.user} sees it" if lease.route.os_login else ""
            hint = "an older tpujob started it, or nothing runs there yet: only its own machine can follow it"
            if lease.route.os_login:
                hint = "with OS Login each account has a home of its own: sign in as the one that started the run"
            raise UserError(f"{self.where} has no record of run {lease.run}{whose}", hint=hint)
        return max(found, key=lambda pair: (len(pair[1].id), pair[1].id))

    def end(self, attempt: str, sink: Sink, metrics: Sink) -> FleetStatus:
        """Fetch the logs of a job that has ended, and return how it ended. Raises RemoteError if it has not."""
        self.fleet.attach(attempt, "main")
        self.fleet.follow(sink, metrics)
        give_up_at, size = time.monotonic() + CONNECT_S, -1
        while not (status := self.fleet.wait(WAIT_S)).ended:
            if status.log_bytes != size:  # the log still comes
                give_up_at, size = time.monotonic() + CONNECT_S, status.log_bytes
            if time.monotonic() > give_up_at:
                raise RemoteError(f"not all workers of {self.lease.name.node} say how the job ended")
        return status

    def lines(
        self, *, follow: bool, takes: Callable[[int], bool], check_workers: Callable[[int], None]
    ) -> Iterator[LogLines]:
        """Yield the lines of the workers as they are there; with `follow`, until the job has ended."""
        _, attempt = self.attempt()
        sizes = self.fleet.log_sizes(attempt.id)
        if not sizes:
            raise UserError(f"no pod of {self.lease.handle} ({self.lease.name.node}) is there", hint=NO_PODS)
        check_workers(len(sizes))
        left = {index: size for index, size in sizes.items() if takes(index)}
        quiet_s = QUIET_S if traits.traits_of(self.lease.cloud).vms else PODS_QUIET_S
        quiet_at = time.monotonic() + quiet_s
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
                quiet_at = time.monotonic() + quiet_s
                if lines := splitters[index].feed(piece):
                    yield LogLines(index, tuple(lines))
            all_there = all(size <= 0 for size in left.values()) or time.monotonic() > quiet_at
            if ended or (all_there and not follow):
                break
        for index, splitter in splitters.items():
            if lines := splitter.flush():
                yield LogLines(index, tuple(lines))


def _pods(session: Session, lease: Lease) -> FoundCrew:
    """Return those pods of a job that are there."""
    workers: tuple[WorkerAddress, ...] = ()
    now = partial(session.now, lease.cloud)
    with suppress(WrongState):
        workers = session.run(until(now() + shell.ASK_S, Workers(lease.name)), lease.cloud)
    notice = partial(session.reporter.notice, traits.traits_of(lease.cloud).reached)
    return cast("FoundCrew", session.world(lease.cloud).reach.fleet(lease, workers, notice, now))


def _next(pieces: SimpleQueue[tuple[int, bytes]]) -> tuple[int, bytes] | None:
    try:
        return pieces.get_nowait()
    except Empty:
        return None


def read_logs(
    session: Session,
    text: str,
    owner: str | None,
    *,
    follow: bool,
    takes: Callable[[int], bool],
    check_workers: Callable[[int], None],
) -> Iterator[LogLines]:
    """Return the lines of a run that the ledger does not have, from its workers.

    `check_workers` gets their number, and raises for one that is not there. Raises UnknownRun where there is no such run.
    """
    lease = slice_of_run(session, text, owner)
    if lease is None:
        lookup.run(session, text)  # raises, with the nearest names
        raise UnknownRun(f"{owner} has no run {text!r}", hint="`tpujob status` lists what is alive")
    return lines_of(session, lease, follow=follow, takes=takes, check_workers=check_workers)


def lines_of(session: Session, lease: Lease, **how: Any) -> Iterator[LogLines]:
    """Yield the lines of the run on this slice, from its workers; see `Connected.lines`."""
    with closing(Connected(session, lease)) as connected:
        yield from connected.lines(**how)
