"""Read the logs of a run: the lines of its workers, as far as they arrived on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.client.events import LogLines
from orchestrator.core.text.terminal import LineSplitter
from orchestrator.errors import UnknownRun
from orchestrator.report.files.log_files import log_directory

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.core.lease.run_and_attempt import Attempt, RunRecord

POLL_S = 0.2
PIECE_BYTES = 1 << 20


def read_logs(
    session: Session, run: str | None, *, follow: bool = False, worker: int | None = None
) -> Iterator[LogLines]:
    """Yield the lines of the run of this id or name, None for the newest one: of all workers, or of one.

    With `follow`, go on until the run has ended. Raises UnknownRun, also at the end when there was no log at all.
    """
    session.recover()
    found, attempt = session.ledger.newest_run() if run is None else session.ledger.find_run(run)
    return _some_lines(session, found, attempt, follow=follow, worker=worker)


def _some_lines(
    session: Session, found: RunRecord, attempt: Attempt, *, follow: bool, worker: int | None
) -> Iterator[LogLines]:
    yield from stored_lines(session, found, attempt, follow=follow, worker=worker)
    if not any(_files(found, worker)):
        which = f"worker {worker}" if worker is not None else "any worker"
        raise UnknownRun(f"run {found.id} has no log of {which}", hint=f"its state is {attempt.state}")


def stored_lines(
    session: Session, found: RunRecord, attempt: Attempt, *, follow: bool, worker: int | None = None
) -> Iterator[LogLines]:
    """Yield what is in the local log files; with `follow`, also what comes until no process writes them any more."""
    splitters: dict[int, LineSplitter] = {}
    offsets: dict[int, int] = {}
    while True:
        # Asked before the files are read: what was written until then is in them.
        ended = attempt.state.ended or not session.locks.is_locked(attempt.id)
        for index, path in _files(found, worker):
            splitter = splitters.setdefault(index, LineSplitter(session.reporter.secrets.hide))
            with path.open("rb") as file:
                file.seek(offsets.get(index, 0))
                while data := file.read(PIECE_BYTES):
                    if lines := splitter.feed(data):
                        yield LogLines(index, tuple(lines))
                offsets[index] = file.tell()
            if (ended or not follow) and (lines := splitter.flush()):
                yield LogLines(index, tuple(lines))
        if ended or not follow:
            return
        time.sleep(POLL_S)
        _, attempt = session.ledger.find_run(found.id)


def _files(found: RunRecord, worker: int | None) -> Iterator[tuple[int, Path]]:
    """Yield the log file of every worker, or of one, with the worker's index."""
    paths = log_directory(Path(found.directory)).glob("worker*.log")
    for index, path in sorted((int(path.stem.removeprefix("worker")), path) for path in paths):
        if worker in (None, index):
            yield index, path
