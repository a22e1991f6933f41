"""How far sweeps are, and which runs are theirs: read from the ledger, for `status`, `list` and `compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.api.session.session import Session
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord, job_file
from orchestrator.promise.ledger.rows import SweepRecord

QUEUED = "queued"
_STOPPED = (AttemptState.INTERRUPTED, AttemptState.CANCELED)  # before they were done; to be run again


@dataclass(frozen=True, slots=True)
class VariantState:
    """One job of a sweep. `state`: that of its run, or `queued`."""

    number: int
    variant: str
    name: str
    params: Mapping[str, Any]
    state: str
    run: str | None


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """A sweep with its variants. `started_at`: unix seconds of the ledger."""

    sweep: str
    name: str
    job: str | None  #: its file
    started_at: float
    variants: tuple[VariantState, ...]

    @property
    def counts(self) -> str:
        """Return how far it is; see `counts_of`."""
        return counts_of([each.state for each in self.variants])

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def counts_of(states: Sequence[str]) -> str:
    """Return how many variants are in which of these states: `3 of 6 done (1 failed), 2 running, 1 queued`."""
    begun = [AttemptState(state) for state in states if state != QUEUED]
    done = [state for state in begun if state.ended and state not in _STOPPED]
    failed = sum(state is not AttemptState.SUCCEEDED for state in done)
    counts = {str(state): begun.count(state) for state in _STOPPED} | {
        "running": sum(not state.ended for state in begun),
        "queued": len(states) - len(begun),
    }
    text = f"{len(done)} of {len(states)} done{f' ({failed} failed)' if failed else ''}"
    return ", ".join([text, *(f"{count} {word}" for word, count in counts.items() if count)])


def living(session: Session) -> tuple[SweepProgress, ...]:
    """Return the sweeps whose process is alive, newest first. One that was killed is none."""
    records = living_records(session)
    runs = session.ledger.runs() if records else []
    return tuple(_progress(record, runs) for record in records)


def of(session: Session, record: SweepRecord) -> SweepProgress:
    """Return how far this sweep is, or was when it ended."""
    return _progress(record, session.ledger.runs())


def queued(session: Session) -> list[VariantState]:
    """Return the variants that wait for their turn in a sweep whose process is alive, the last one first."""
    return [each for sweep in living(session) for each in reversed(sweep.variants) if each.state == QUEUED]


def living_records(session: Session) -> list[SweepRecord]:
    """Return the records of the sweeps whose process is alive, newest first."""
    return [record for record in session.ledger.sweeps() if is_living(session, record)]


def is_living(session: Session, record: SweepRecord) -> bool:
    """Return whether the process of the sweep goes on."""
    return session.locks.is_locked(lock_of(record))


def lock_of(record: SweepRecord) -> str:
    """Return the name of the lock that the process of a sweep holds."""
    return f"sweep {record.id}"


def runs_of(session: Session, record: SweepRecord) -> list[str]:
    """Return the newest run of each variant of a sweep, in their order."""
    newest: dict[Any, str] = {}
    for run, _ in session.ledger.runs():
        newest.setdefault(run.spec.sweep.key, run.id)
    return [newest[row.key] for row in record.variants if row.key in newest]


def _progress(record: SweepRecord, runs: list[tuple[RunRecord, Attempt]]) -> SweepProgress:
    states: dict[int, tuple[str, str]] = {}
    for run, attempt in reversed(runs):  # the newest one counts
        if (part := run.spec.sweep).id == record.id and part.number is not None:
            states[part.number] = (str(attempt.state), run.id)
    variants = []
    for row in record.variants:
        before = (str(AttemptState.SUCCEEDED), row.run) if row.run else (QUEUED, None)
        state, run_id = states.get(row.number, before)
        variants.append(VariantState(row.number, row.variant, row.name, row.params, state, run_id))
    return SweepProgress(record.id, record.name, job_file(record.job_path), record.created_at, tuple(variants))
