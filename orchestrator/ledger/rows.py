"""The rows of the ledger as values, and back: leases, runs, attempts, gc runs and sweeps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from orchestrator.core.lease.access import route_of
from orchestrator.core.lease.cloud_api import SliceName
from orchestrator.core.lease.lease import HeldFor, Lease, LeaseState, Purpose
from orchestrator.core.lease.run_and_attempt import Attempt, AttemptState, RunRecord

_NAME_COLUMNS = ("project", "zone", "node", "queued")
LEASE_COLUMNS = (*(field.name for field in fields(Lease) if field.name != "name"), *_NAME_COLUMNS)


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


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """One execution of a sweep. `variants`: number, name, label, parameters and key of each, as JSON values."""

    id: str
    name: str
    job_path: str
    created_at: float
    variants: list[dict[str, Any]]


def lease_row(lease: Lease) -> list[Any]:
    """Return the values of LEASE_COLUMNS."""
    row = {column: getattr(lease.name if column in _NAME_COLUMNS else lease, column) for column in LEASE_COLUMNS}
    return [*(row | {"route": json.dumps(lease.route.as_values())}).values()]


def lease_of(row: tuple[Any, ...]) -> Lease:
    """Return the lease of a row with LEASE_COLUMNS."""
    data = dict(zip(LEASE_COLUMNS, row, strict=True))
    project, zone, node, queued = (data.pop(column) for column in _NAME_COLUMNS)
    name = SliceName(project, zone, node, bool(queued))
    data |= {"purpose": Purpose(data["purpose"]), "state": LeaseState(data["state"])}
    data |= {"spot": bool(data["spot"]), "settled": bool(data["settled"])}
    data["route"] = route_of(json.loads(data["route"]))
    data["held_for"] = HeldFor(data["held_for"]) if data["held_for"] else None
    return Lease(name=name, **data)


def run_of(row: tuple[Any, ...]) -> RunRecord:
    """Return the run of a row with all columns of its table."""
    identity, name, job_path, cloud, created_at, directory, spec = row
    return RunRecord(identity, name, job_path, cloud, created_at, directory, json.loads(spec))


def marks(values: Sequence[object]) -> str:
    """Return a question mark for each value, with commas."""
    return ", ".join("?" * len(values))


def attempt_of(row: tuple[Any, ...]) -> Attempt:
    """Return the attempt of a row with all columns of its table."""
    data = dict(zip((field.name for field in fields(Attempt)), row, strict=True))
    return Attempt(**data | {"state": AttemptState(data["state"])})
