"""The rows of the ledger as values, and back: leases, runs, attempts, gc runs and sweeps."""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeVar

from orchestrator.promise.lease.access import Route
from orchestrator.promise.lease.lease import HeldFor, Lease, LeaseState, Purpose, SliceName
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.promise.lease.run_spec import RunSpec, read

T = TypeVar("T", bound=StrEnum)

_NAME_COLUMNS = ("project", "zone", "node", "queued")
RUN_COLUMNS = tuple(each.name for each in fields(RunRecord))
ATTEMPT_COLUMNS = tuple(each.name for each in fields(Attempt))
LEASE_COLUMNS = (*(each.name for each in fields(Lease) if each.name not in ("name", "understood")), *_NAME_COLUMNS)


@dataclass(frozen=True, slots=True)
class LedgerEvent:
    """An event as the ledger has it. `subject`: id of a lease, an attempt or a sweep."""

    seq: int
    at: float
    subject: str
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class GcRun:
    """One gc run on this machine. `scope` is `local` (what this ledger owes), `all`, or zones with commas."""

    at: float
    cloud: str
    project: str
    scope: str
    complete: bool
    found: int
    deleted: int


GC_COLUMNS = tuple(each.name for each in fields(GcRun))


@dataclass(frozen=True, slots=True)
class VariantRecord:
    """One job of a sweep. `run`: the one of an earlier sweep that counts for it; None: it gets its own."""

    number: int = 0
    name: str = ""
    variant: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    key: str = ""
    run: str | None = None


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """One execution of a sweep."""

    id: str
    name: str
    job_path: str
    created_at: float
    variants: tuple[VariantRecord, ...] = ()


SWEEP_COLUMNS = tuple(each.name for each in fields(SweepRecord))


def lease_row(lease: Lease) -> dict[str, Any]:
    """Return the values of LEASE_COLUMNS."""
    row = {column: getattr(lease.name if column in _NAME_COLUMNS else lease, column) for column in LEASE_COLUMNS}
    return row | {"route": json.dumps(asdict(lease.route))}


def lease_of(data: dict[str, Any]) -> Lease:
    """Return the lease of a row with LEASE_COLUMNS."""
    project, zone, node, queued = (data.pop(column) for column in _NAME_COLUMNS)
    name = SliceName(project, zone, node, bool(queued))
    # A word of a newer tpujob reads as what may be billed, and is not to be touched but by the user.
    words = {"purpose": Purpose.HOLD, "state": LeaseState.READY, "held_for": HeldFor.USER if data["held_for"] else None}
    read_as = {column: otherwise and _word(data[column], otherwise) for column, otherwise in words.items()}
    understood = data["state"] == LeaseState.DOWN or all(data[column] == word for column, word in read_as.items())
    data |= read_as | {"spot": bool(data["spot"]), "settled": bool(data["settled"])}
    data["route"] = read(Route, _values(data["route"]))
    return Lease(name=name, understood=understood, **data)


def run_of(data: dict[str, Any]) -> RunRecord:
    """Return the run of a row with RUN_COLUMNS."""
    return RunRecord(**data | {"spec": RunSpec.of(_values(data["spec"]))})


def run_row(run: RunRecord) -> dict[str, Any]:
    """Return the values of RUN_COLUMNS."""
    return {column: getattr(run, column) for column in RUN_COLUMNS} | {"spec": json.dumps(run.spec.values)}


def gc_run_of(data: dict[str, Any]) -> GcRun:
    """Return the gc run of a row with GC_COLUMNS."""
    return GcRun(**data | {"complete": bool(data["complete"])})


def sweep_of(data: dict[str, Any]) -> SweepRecord:
    """Return the sweep of a row with SWEEP_COLUMNS."""
    return read(SweepRecord, data | {"variants": _values(data["variants"])})


def marks(values: Collection[object]) -> str:
    """Return a question mark for each value, with commas."""
    return ", ".join("?" * len(values))


def attempt_of(data: dict[str, Any]) -> Attempt:
    """Return the attempt of a row with ATTEMPT_COLUMNS."""
    return Attempt(**data | {"state": _word(data["state"], AttemptState.RUNNING)})


def _word(text: str, otherwise: T) -> T:
    kind = type(otherwise)
    return kind(text) if text in [*kind] else otherwise


def _values(text: str) -> object:
    """Return the JSON values of a column; nothing for a text that is none: the other columns still count."""
    try:
        return json.loads(text)
    except ValueError:
        return {}
