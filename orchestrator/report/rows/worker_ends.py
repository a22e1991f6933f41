"""How a job that failed ended on each of its workers; those that failed alike are said once.

The exit codes are in the ledger, the last lines in the log files. Both may be from a hostile or broken worker.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.promise.lease.run_and_attempt import Attempt, WorkerEnd
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.report.files.artifact_files import last_line, log_path
from orchestrator.text.terminal import grouped, masked, worker_names

LINE_CHARS = 200  # of a last line, in a text
MOST_GROUPS = 6


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """How the job ended on one worker, and the last line that it printed there."""

    worker: int
    exit_code: int | None  #: None: its supervisor was gone, and the code is unknown
    stopped: bool  #: it ended because it was asked to, after the failure of another worker
    last_line: str

    @property
    def failed(self) -> bool:
        """Whether it ended by a failure of its own."""
        return not self.stopped and self.exit_code != 0


def reports(ends: Iterable[WorkerEnd], directory: Path) -> tuple[WorkerReport, ...]:
    """Return the ends with the last lines of the log files of the run in this directory."""
    return tuple(
        WorkerReport(end.worker, end.exit_code, end.stopped, last_line(log_path(directory, end.worker))) for end in ends
    )


def recorded(ledger: Ledger, attempt: Attempt, directory: Path) -> tuple[WorkerReport, ...]:
    """Return how the attempt ended on its workers, as the ledger has it; empty unless its job failed."""
    found = [data for _, kind, data in ledger.events(attempt.id) if kind == "attempt_ended"]
    rows: Sequence[Mapping[str, Any]] = found[0].get("workers", ()) if found else ()
    return reports((WorkerEnd(row["worker"], row["exit_code"], row["stopped"]) for row in rows), directory)


def lines(workers: Sequence[WorkerReport]) -> list[str]:
    """Return a line for each group of workers that ended alike, failures first; none for a job on one worker."""
    if len(workers) < 2:
        return []
    groups = grouped(sorted(workers, key=_rank), _likeness)
    told = [_line(group, len(workers)) for group in groups[:MOST_GROUPS]]
    if rest := groups[MOST_GROUPS:]:
        told.append(f"{sum(map(len, rest))} more ended in {len(rest)} other ways: `show --json` has them all")
    return told


def first_failures(workers: Sequence[WorkerReport]) -> list[int]:
    """Return the first worker of each group that failed alike."""
    return [group[0].worker for group in grouped([each for each in workers if each.failed], _likeness)]


def _rank(worker: WorkerReport) -> tuple[int, int]:
    return (0 if worker.failed else 1 if worker.stopped else 2), worker.worker


def _likeness(worker: WorkerReport) -> Hashable:
    return (worker.exit_code, masked(worker.last_line)) if worker.failed else worker.stopped


def _line(group: Sequence[WorkerReport], count: int) -> str:
    first, several = group[0], len(group) > 1
    who = f"{count} workers" if len(group) == count else worker_names(worker.worker for worker in group)
    if first.stopped:
        return f"{who} {'were' if several else 'was'} stopped"
    if first.exit_code == 0:
        return f"{who} succeeded"
    how = "ended with an unknown code" if first.exit_code is None else f"ended with {first.exit_code}"
    last = first.last_line[:LINE_CHARS] + "…" * (len(first.last_line) > LINE_CHARS)
    return f"{who} {how}{', alike' if several else ''}{f': {last}' if last else ', without output'}"
