"""What the VMs of a slice publish as guest attributes: of their watchdogs, and of a job that does not use their TPUs. Pure.

Every worker's watchdog publishes that it runs and reaches the API, and what becomes of a job that runs detached. The permission
to delete belongs to one service account, the same on all workers, so a few watchdogs prove it for all.

`vm.agent.chips` says how the chips are used. Of workers that train alone only all together count: one that has found another
one says nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.text import parsing
from orchestrator.text.terminal import printable, worker_names

WATCHDOG_ATTRIBUTE = "tpujob/watchdog"
# Guest attributes may be read 10 times a minute, which is one heartbeat; the VM's own writes count too.
READS_PER_HEARTBEAT, SHORTEST_INTERVAL_S = 6, 0.2


@dataclass(frozen=True, slots=True)
class WatchdogStatus:
    """One worker's watchdog. `armed`: it reaches the API, and it or another of its slice proved that it may delete."""

    worker: int
    armed: bool
    why: str = ""  # why it is not armed
    mode: str = ""  # the claim that it has read
    claimed_until: float | None = None  # unix seconds, the server's clock


UNPROVEN = "it has not been proven yet that its service account may delete the slice (tpu.nodes.delete)"


def min_read_interval_s(heartbeat_s: float) -> float:
    """Return the seconds to wait between two reads of a slice's guest attributes."""
    return max(heartbeat_s / READS_PER_HEARTBEAT, SHORTEST_INTERVAL_S)


def read_watchdogs(published: Sequence[Mapping[str, str]], workers: int) -> tuple[WatchdogStatus, ...]:
    """Return one status for each worker, in order; a watchdog that published nothing readable is not armed.

    Each record names its worker: the order in which the API lists workers, and whether it lists all, is not relied on.
    """
    records = _by_worker(published)
    unreadable = sum(WATCHDOG_ATTRIBUTE in each for each in published) > sum(map(len, records.values()))
    missing = "its watchdog has published nothing" + (" that can be read" if unreadable else "")
    statuses = tuple(_status(worker, records.get(worker, []), missing) for worker in range(workers))
    if any(status.armed for status in statuses):
        return tuple(replace(each, armed=True, why="") if each.why == UNPROVEN else each for each in statuses)
    return statuses


def problem(statuses: Sequence[WatchdogStatus]) -> str | None:
    """Return why the slice would not delete itself on its own; None when every worker's watchdog is armed."""
    for status in statuses:
        if not status.armed:
            return f"worker{status.worker}: {status.why}"
    return None if statuses else "the slice has no workers"


@dataclass(frozen=True, slots=True)
class JobReport:
    """What the watchdogs of a slice say of an attempt that runs detached, each as of its last look.

    `state`: "ended" on every worker, or on any one without exit code 0; "running"; "partial": not every worker has it, or says
    so; "none": it is no worker's newest job; "unknown": too few say anything that can be read. `metrics`: of worker 0's newest
    line, {} without.
    """

    state: str
    metrics: Mapping[str, float | str]
    succeeded: bool = False  # it has ended so, on every worker


METRICS, METRIC_CHARS = 12, 40  # at most


def read_job(published: Sequence[Mapping[str, str]], workers: int, attempt: str) -> JobReport:
    """Return what becomes of this attempt. A worker that several records claim to be counts as one that says nothing."""
    said = {
        worker: records[0]
        for worker, records in _by_worker(published).items()
        if 0 <= worker < workers and len(records) == 1 and "job" in records[0]
    }
    found = {worker: job for worker, record in said.items() if isinstance(job := record["job"], dict)}
    jobs = {worker: job for worker, job in found.items() if job.get("attempt") == attempt}
    succeeded = [job.get("rc") == 0 for job in jobs.values() if job.get("state") == "ended"]
    if not all(succeeded) or len(succeeded) == workers > 0:
        state = "ended"
    elif jobs:
        state = "running" if len(jobs) == workers else "partial"
    else:
        all_detached = sum(record.get("mode") == "detached" for record in said.values()) == workers > 0
        state = "none" if all_detached else "unknown"
    metrics = _metrics(said[0].get("metrics")) if 0 in jobs else {}
    return JobReport(state, metrics, state == "ended" and all(succeeded))


def _metrics(said: Any) -> dict[str, float | str]:
    """Return the finite numbers and the texts of what may be anything, in short."""
    found = {
        printable(name[:METRIC_CHARS]): printable(value[:METRIC_CHARS]) if isinstance(value, str) else value
        for name, value in (said.items() if isinstance(said, dict) else ())
        if isinstance(value, str) or (type(value) is float and math.isfinite(value))
    }
    return dict(list(found.items())[:METRICS])


def _by_worker(published: Sequence[Mapping[str, str]]) -> dict[int, list[Mapping[str, Any]]]:
    """Return the records that can be read, by the worker that each names."""
    records: dict[int, list[Mapping[str, Any]]] = {}
    for attributes in published:
        if (record := _parse(attributes.get(WATCHDOG_ATTRIBUTE, ""))) is not None:
            records.setdefault(int(record["worker"]), []).append(record)
    return records


def _parse(text: str) -> Mapping[str, Any] | None:
    """None: not a watchdog's record that names its worker."""
    try:
        record: Any = parsing.loads(text, parse_int=float)  # an endless integer becomes infinite instead of an error
    except ValueError:
        return None
    worker = record.get("worker") if isinstance(record, dict) else None
    return record if isinstance(worker, float) and worker.is_integer() else None


def _status(worker: int, records: Sequence[Mapping[str, Any]], missing: str) -> WatchdogStatus:
    if not records:
        return WatchdogStatus(worker, False, missing)
    if len(records) > 1:
        return WatchdogStatus(worker, False, f"{len(records)} watchdogs claim to be this worker's")
    (record,) = records
    armed, until = record.get("armed") is True, record.get("claimed_until")
    claimed_until = float(until) if isinstance(until, int | float) else None
    return WatchdogStatus(worker, armed, "" if armed else _why(record), str(record.get("mode", "")), claimed_until)


def _why(record: Mapping[str, Any]) -> str:
    if record.get("route") is not True:
        return "its watchdog has no route to the Cloud TPU API"
    if record.get("permission") is False:
        return "its service account may not delete the slice (tpu.nodes.delete)"
    return UNPROVEN if record.get("permission") is None else "its watchdog is not armed"


CHIPS_ATTRIBUTE = "tpujob/chips"
TEXT_CHARS, MOST_WORKERS = 200, 10_000
HINTS = {  # for each use that is worth a line
    "idle": "does the script train on another device? JAX needs `jax[tpu]`, PyTorch needs torch_xla or torch_tpu",
    "busy": "end that process, or take another slice",
    "alone": "call jax.distributed.initialize() or torch.distributed.init_process_group() on every worker",
}


def published(attributes: Iterable[Mapping[str, str]], attempt: str) -> dict[str, str]:
    """Return a line for each use that the workers have published for this attempt."""
    records = []
    for each in attributes:
        try:
            records.append(parsing.loads(each.get(CHIPS_ATTRIBUTE, "")))
        except ValueError:  # there is none, or none that can be read
            continue
    return lines(each for each in records if isinstance(each, dict) and each.get("attempt") == attempt)


def lines(records: Iterable[Any]) -> dict[str, str]:
    """Return a line for each use in the records of the workers of one attempt; anything may be in them."""
    said: dict[str, dict[int, str]] = {use: {} for use in HINTS}
    workers = 0
    for record in records:
        index, of = (record.get("worker"), record.get("workers")) if isinstance(record, dict) else (None, None)
        if type(index) is int and type(of) is int and 0 <= index < of <= MOST_WORKERS:
            said.get(str(record.get("use")), {})[index] = printable(str(record.get("text"))[:TEXT_CHARS])
            workers = of
    return {
        use: f"{worker_names(texts)} ({len(texts)} of {workers}): {texts[min(texts)]}"
        for use, texts in said.items()
        if texts and (use != "alone" or len(texts) == workers)
    }
