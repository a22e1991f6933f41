"""Read what a page shows of one run: its report, every event and slice, curves, step times, the end of its log, provenance."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.lease.lease import Lease
from orchestrator.core.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.core.text.terminal import clean
from orchestrator.ledger.ledger import Ledger
from orchestrator.report import results, worker_ends
from orchestrator.report.files import device, metrics, timing_file
from orchestrator.report.files.artifact_files import log_path, open_regular, read_object
from orchestrator.report.files.device import TpuUse
from orchestrator.report.files.metrics import Curve
from orchestrator.report.files.timing import Timing
from orchestrator.report.results import RunReport

LOG_BYTES = 32 << 10  # of the end of the first log; of each other one a fourth
LOG_WORKERS = 8

LedgerEvent = tuple[float, str, dict[str, Any]]  # when, what kind, its fields


@dataclass(frozen=True, slots=True)
class LogTail:
    """The end of what a worker printed. `left_out`: bytes before it."""

    worker: int
    lines: tuple[str, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class RunData:
    """Everything of a run that a page may show. `now`: when it was read, in unix seconds of the ledger.

    `events`: by the id of an attempt. `leases`: every slice that the run asked for or used, by its id.
    """

    report: RunReport
    now: float
    events: Mapping[str, tuple[LedgerEvent, ...]]
    attempts: tuple[Attempt, ...]
    leases: Mapping[str, Lease]
    curves: Mapping[str, Curve]
    timing: Timing | None
    tpu_use: TpuUse | None
    arrivals: tuple[tuple[int, float], ...]  # when which step was reported, in unix seconds
    logs: tuple[LogTail, ...]
    provenance: Mapping[str, Any]


def read(ledger: Ledger, run: RunRecord, attempt: Attempt, now: float) -> RunData:
    """Return what is known of a run, of which this is the last attempt. Raises LedgerUnavailable.

    `now`: the ledger's time of the run's cloud.
    """
    directory = Path(run.directory)
    report = results.report(ledger, run, attempt, now)
    attempts = ledger.attempts_of(run.id)
    leases = {lease.id: lease for lease in ledger.leases_of(run.id)}
    for each in attempts:
        if each.lease_id is not None and each.lease_id not in leases:
            leases[each.lease_id] = ledger.lease(each.lease_id)
    return RunData(
        report=report,
        now=now,
        events={each.id: tuple(ledger.events(each.id)) for each in attempts},
        attempts=tuple(attempts),
        leases=leases,
        curves=metrics.curves(directory),
        timing=timing_file.read_run(directory),
        tpu_use=device.read_run(directory),
        arrivals=tuple(metrics.arrivals(directory)),
        logs=_logs(directory, worker_ends.first_failures(report.workers)),
        provenance=read_object(directory / "worker0" / "artifacts" / "provenance.json"),
    )


def _logs(directory: Path, first: Sequence[int]) -> tuple[LogTail, ...]:
    """Return the ends of the logs of these workers and then of the first ones, LOG_WORKERS at most."""
    found: list[LogTail] = []
    for worker in [*first, *(index for index in range(LOG_WORKERS) if index not in first)][:LOG_WORKERS]:
        file = open_regular(log_path(directory, worker))
        if file is None:
            continue
        with file:
            size = os.fstat(file.fileno()).st_size
            begin = max(size - (LOG_BYTES // 4 if found else LOG_BYTES), 0)
            file.seek(begin)
            text = file.read(size - begin)
        if begin:
            cut = text.find(b"\n") + 1
            begin, text = begin + cut, text[cut:]
        found.append(LogTail(worker, tuple(map(clean, text.rstrip(b"\n").split(b"\n"))), begin))
    return tuple(found)
