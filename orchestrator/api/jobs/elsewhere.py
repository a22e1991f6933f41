"""Runs that this machine's ledger does not have: their slice is found by its labels, their record is on its worker 0.

What is found is recorded in the ledger, and from then on every command finds it there. A job that runs detached, and results
that wait on a held slice, are taken over by who follows or collects them. Of a run that a living process follows elsewhere,
only the log can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from orchestrator.api.jobs.log_output import JobOutput, make_directory
from orchestrator.api.session import lookup
from orchestrator.api.session.events import LogLines
from orchestrator.api.session.session import Session
from orchestrator.api.slices import elsewhere, shell
from orchestrator.errors import RemoteError, TpujobError, UnknownRun, UserError
from orchestrator.places.preparation.records import read_record
from orchestrator.promise.lease.changes import AttemptChange, AttemptEnded, Began, Leased, Moved
from orchestrator.promise.lease.lease import Lease, Mode, Purpose
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.run.monitor import payload_failed
from orchestrator.text.terminal import LineSplitter

if TYPE_CHECKING:
    from orchestrator.hosts.fleet.fleet import Fleet

CONNECT_S = 120.0  # the key of this machine takes seconds to arrive
WAIT_S = 0.5


def look_for_run(session: Session, text: str, owner: str | None = None) -> None:
    """See to it that the ledger has the run that this id or name means, if a slice of it is there.

    Nothing changes where the ledger has a run of this id, or one of this name that goes on. Raises what
    `slices.elsewhere.find` raises; UserError for a run that a process elsewhere follows, or of which worker 0 has no record.
    """
    if owner is None and _goes_on(session, text):
        return
    try:
        lease = _slice_of_run(session, text, owner)
    except TpujobError as error:
        if isinstance(error, UserError) or not _is_known(session, text):
            raise
        return  # an API that does not answer hides nothing that is known here
    if lease is not None:
        _record(session, lease)


def _is_known(session: Session, text: str) -> bool:
    found = lookup.meant(session, text)
    return bool(found.runs or found.sweeps)


def _goes_on(session: Session, text: str) -> bool:
    """Return whether the ledger has what is meant, so that the API need not be asked: of a name, one that has not ended."""
    found = lookup.meant(session, text)
    runs = [session.ledger.run(each) for each in found.runs]
    by_name = all(run.name == text for run, _ in runs)
    return bool(found.sweeps) or any(not (by_name and attempt.state.ended) for _, attempt in runs)


def _slice_of_run(session: Session, text: str, owner: str | None) -> Lease | None:
    """Return the slice, which the ledger may have already: its log was read, say, or a shell was opened there."""
    known = [lease for lease in lookup.meant(session, text).leases if lease.purpose is Purpose.ELSEWHERE]
    if known and owner in (None, known[0].owner):
        return elsewhere.as_labels_say(session, known[0])
    return elsewhere.find(session, text, owner)


def leases_to_cancel(session: Session, text: str, owner: str | None = None) -> list[Lease]:
    """Return the slice of a run that the ledger does not have, now in the ledger to be deleted.

    None where the ledger has the run, or the API shows no such slice. Raises what `slices.elsewhere.release_by_name` raises.
    """
    if owner is None and _goes_on(session, text):
        return []
    known = [lease for lease in lookup.meant(session, text).leases if lease.purpose is Purpose.ELSEWHERE]
    return known or elsewhere.release_by_name(session, text, owner)


def _record(session: Session, lease: Lease) -> None:
    """Write the run of a slice into the ledger, as it is now."""
    if lease.mode is Mode.RUN:
        raise UserError(
            f"{lease.handle} ({lease.run}) is followed by the process that started it, on another machine",
            hint=f"`tpujob logs {lease.run} --follow` shows its log here, `tpujob cancel {lease.run}` ends it",
        )
    with closing(Connected(session, lease)) as connected:
        run, attempt = connected.attempt()
        now = session.now(lease.cloud)
        began: list[Began | AttemptChange] = [
            Began(run, attempt),
            Leased(attempt.id, now, lease.id),
            Moved(attempt.id, now, AttemptState.RUNNING),
        ]
        if not Path(run.directory).is_dir():  # it is there where only the ledger was lost
            make_directory(Path(run.directory))
        if lease.hold_until is not None:
            began.append(connected.end(run, attempt))
        for event in began:
            session.ledger.record(event)


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

    def end(self, run: RunRecord, attempt: Attempt) -> AttemptEnded:
        """Fetch the logs of a job that has ended, and return how it ended. Raises RemoteError if it has not."""
        with closing(JobOutput(Path(run.directory), self.session.reporter, run.spec, anew=True)) as output:
            self.fleet.attach(attempt.id, "main")
            self.fleet.follow(output, output.metrics)
            status = self.fleet.wait(WAIT_S)
            while not status.ended:
                if status.silent_s(self.session.now(self.lease.cloud)) > CONNECT_S:
                    raise RemoteError(f"not all workers of {self.lease.name.node} say how the job ended")
                status = self.fleet.wait(WAIT_S)
        error = payload_failed(status, "main", run.id) if status.failed else None
        state = AttemptState.SUCCEEDED if error is None else AttemptState.FAILED
        more = {} if error is None else {"rc": error.rc, "workers": error.workers}
        return AttemptEnded.by(attempt.id, self.session.now(self.lease.cloud), state, error, **more)

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
) -> Iterator[LogLines] | None:
    """Return the lines of a run that the ledger does not have, from its workers; None: the ledger has it.

    Raises UnknownRun where there is none.
    """
    if owner is None and _is_known(session, text):
        return None
    lease = _slice_of_run(session, text, owner)
    if lease is None:
        raise UnknownRun(f"there is no run {text!r}, here or in the API", hint="`tpujob status` lists what is alive")
    return _lines(session, lease, follow=follow, takes=takes)


def _lines(session: Session, lease: Lease, *, follow: bool, takes: Callable[[int], bool]) -> Iterator[LogLines]:
    with closing(Connected(session, lease)) as connected:
        yield from connected.lines(follow=follow, takes=takes)
