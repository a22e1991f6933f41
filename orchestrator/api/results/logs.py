"""Read the logs of a run: the lines of its workers, as far as they arrived on this machine."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import catalog, traits
from orchestrator.api.session import lookup
from orchestrator.api.session.events import Bar, LogLines
from orchestrator.api.session.session import Session
from orchestrator.api.session.shown_logs import Choice, announcement, check, is_shown
from orchestrator.errors import UnknownRun
from orchestrator.promise.lease.lease import Lease, Purpose
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.report.files.artifact_files import log_directory
from orchestrator.system.lazy import Later
from orchestrator.text.terminal import LineSplitter

if TYPE_CHECKING:
    from orchestrator.api.slices import connected
else:  # for a run that this machine does not know
    connected = Later("orchestrator.api.slices.connected")

POLL_S = 0.2
ALONE_POLLS = 50  # a collector that has just been started is there by then
BAR_S = 1.0  # between two states of a progress bar
PIECE_BYTES = 1 << 20
LAST_BYTES = 1 << 16  # of a file that was shortened, shown again: they may not have been shown yet
SHORTENED = "tpujob: the log was shortened here (limits.max_log); some of it may be missing or follow twice"


def read_logs(
    session: Session,
    run: str | None,
    *,
    follow: bool = False,
    workers: Choice = "all",
    option: str = "",
    owner: str | None = None,
) -> Iterator[LogLines]:
    """Yield the lines of the run of this id or name, None for the newest one: of all workers, or of these.

    With `follow`, go on until the run has ended. `option`: of the command that shows the lines; what is left out is reported.
    Raises UserError for a worker that the run does not have; UnknownRun, also at the end when there was no log at all.
    """
    session.recover()
    if run is not None:
        takes = lambda worker: is_shown(workers, worker, None)  # noqa: E731
        if owner is not None or not _is_known(session, run):
            there = lambda count: check(option or "worker", workers, count)  # noqa: E731
            return connected.read_logs(session, run, owner, follow=follow, takes=takes, check_workers=there)
    found, attempt = lookup.run(session, run)
    session.know_secrets(found)
    count = worker_count(session, found, attempt)
    if count is not None:
        check(option or "worker", workers, count)
    logs = log_directory(Path(found.directory))
    if option and workers is None and count is not None and (text := announcement(workers, count, logs, option)):
        session.reporter.notice("logs", text)
    takes = lambda worker: is_shown(workers, worker, count)  # noqa: E731
    lease = lookup.lease_of_run(session, found.id)
    if lease is not None and lease.purpose is Purpose.QUEUE and _is_alone(session, lease, attempt):
        return connected.lines_of(session, lease, follow=follow, takes=takes, check_workers=lambda count: None)
    return _some_lines(session, found, attempt, follow=follow, takes=takes)


def _is_alone(session: Session, lease: Lease, attempt: Attempt) -> bool:
    """Return whether no process here follows the job, which runs on its own: its log is on its workers."""
    return lease.runs_detached and not (attempt.state.ended or session.locks.is_locked(attempt.id))


def _is_known(session: Session, run: str) -> bool:
    found = lookup.meant(session, run)
    return bool(found.runs or found.sweeps)


def worker_count(session: Session, found: RunRecord, attempt: Attempt) -> int | None:
    """Return how many workers the run has, by its pods, the type of its slice or its log files; None before it has either."""
    if (pods := found.spec.cluster.pods) is not None:
        return pods
    lease = session.ledger.lease(attempt.lease_id) if attempt.lease_id else None
    kind = catalog.lookup(lease.accelerator_type) if lease is not None else None
    counts = [index + 1 for index, _ in _files(found)] + ([kind.hosts] if kind is not None else [])
    return max(counts, default=None if traits.traits_of(found.cloud).billed else 1)


def _some_lines(
    session: Session, found: RunRecord, attempt: Attempt, *, follow: bool, takes: Callable[[int], bool]
) -> Iterator[LogLines]:
    yield from stored_lines(session, found, attempt, follow=follow, takes=takes, alone=True)
    files = [index for index, _ in _files(found)]
    if not any(map(takes, files)):
        which = "these workers" if files else "any worker"
        raise UnknownRun(f"run {found.id} has no log of {which}", hint=f"its state is {attempt.state}")


def stored_lines(
    session: Session,
    found: RunRecord,
    attempt: Attempt,
    *,
    follow: bool,
    takes: Callable[[int], bool] | None = None,
    alone: bool = False,
) -> Iterator[LogLines]:
    """Yield what is in the local log files; with `follow`, also what comes until no process writes them any more, and then
    progress bars are events.

    `takes` says of which workers, by their indexes; None: of all. `alone`: go on also while no process follows a detached job.
    """
    splitters: dict[int, LineSplitter] = {}
    offsets: dict[int, int] = {}
    bars_at, polls = 0.0, 0
    while True:
        # Asked before the files are read: what was written until then is in them. And the lock before the ledger: the process
        # of an attempt gives it back once the next one has begun.
        before, locked = attempt.id, session.locks.is_locked(attempt.id)
        _, attempt = session.ledger.run(found.id)
        is_alone = alone and not locked and _is_detached(session, found)
        ended = attempt.state.ended or not (locked or is_alone or attempt.id != before)
        polls = polls + 1 if is_alone else 0
        if follow and not ended and polls == ALONE_POLLS:
            session.reporter.notice("logs", f"no process here fetches the log; `tpujob attach {found.id}` does")
        for index, path in _files(found, takes):
            splitter = splitters.setdefault(index, LineSplitter(session.reporter.secrets.hide))
            with path.open("rb") as file:
                if file.seek(offsets.get(index, 0)) > (size := os.fstat(file.fileno()).st_size):
                    file.seek(max(size - LAST_BYTES, 0))  # its middle went meanwhile
                    yield LogLines(index, (*splitter.flush(), SHORTENED))
                while data := file.read(PIECE_BYTES):
                    if lines := splitter.feed(data):
                        yield LogLines(index, tuple(lines))
                offsets[index] = file.tell()
            if (ended or not follow) and (lines := splitter.flush()):
                yield LogLines(index, tuple(lines))
        if ended or not follow:
            return
        if time.monotonic() - bars_at >= BAR_S:
            bars_at = time.monotonic()
            for index, splitter in splitters.items():
                if splitter.is_bar:
                    session.reporter.emit(Bar(index, splitter.bar()))
        time.sleep(POLL_S)


def _is_detached(session: Session, found: RunRecord) -> bool:
    lease = lookup.lease_of_run(session, found.id)
    return lease is not None and lease.runs_detached and session.now(lease.cloud) < lease.deadline


def _files(found: RunRecord, takes: Callable[[int], bool] | None = None) -> Iterator[tuple[int, Path]]:
    """Yield the log files of workers, in the order of their indexes, each with its worker's index."""
    paths = log_directory(Path(found.directory)).glob("worker*.log")
    for index, path in sorted((int(path.stem.removeprefix("worker")), path) for path in paths):
        if takes is None or takes(index):
            yield index, path
