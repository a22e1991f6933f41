"""End a sweep from another process: `cancel` of its name.

The ledger begins no run of it from that moment on, so that nothing has to be told to its process, which may be dead, hang, or
be about to start the next variant. Its runs are ended as by `cancel` of each, and their slices are released together.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator import places
from orchestrator.client import lookup
from orchestrator.client.jobs import ending
from orchestrator.client.jobs.ending import Canceled
from orchestrator.client.jobs.results import tell_saved
from orchestrator.client.session import Session
from orchestrator.client.slices.down import SliceRelease
from orchestrator.client.sweeps import progress
from orchestrator.client.sweeps.progress import VariantState
from orchestrator.core.lease.lease import Lease
from orchestrator.core.lease.run_and_attempt import AttemptState
from orchestrator.errors import TpujobError
from orchestrator.ledger.rows import SweepRecord
from orchestrator.report.messages import lease_outcome

NOT_COLLECTED = "what the job wrote is not collected (`cancel` does not wait for that), and goes with its slice"


@dataclass(frozen=True, slots=True)
class CanceledSweep:
    """What became of a sweep that was to be canceled. `slices`: what it still had; proven absent while `released` is true."""

    sweep: str
    name: str
    had_ended: bool  # its process, before
    released: bool
    variants: tuple[VariantState, ...]
    slices: tuple[SliceRelease, ...]
    line: str  # for a terminal

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "line"}


def cancel(session: Session, text: str) -> Canceled | CanceledSweep:
    """End the sweep or the run of this id or name, with its slices, proven; see `ending.cancel` for a run.

    What goes on is meant, rather than what has ended. Raises UnknownRun; UserError where several that go on have this name.
    """
    before = session.ledger.open_leases()
    session.recover(look=True)
    record = lookup.live_sweep(session, text)
    if record is None:
        found, attempt = lookup.live_run(session, text)
        canceled = ending.cancel(session, found, attempt)
        if canceled.slices and attempt.state is AttemptState.RUNNING and not places.traits_of(found.cloud).results_stay:
            session.reporter.notice("lost", NOT_COLLECTED)
            tell_saved(session, Path(found.directory))
        return canceled
    return _cancel(session, record, progress.is_living(session, record), before)


def _cancel(session: Session, record: SweepRecord, living: bool, before: list[Lease]) -> CanceledSweep:
    """`before`: the open leases of the time before the recovery."""
    session.ledger.cancel_sweep(record.id, session.now())
    # These are all: from here on, the ledger begins no run of the sweep.
    runs = [pair for pair in session.ledger.runs() if pair[0].spec.sweep.id == record.id]
    live = [pair for pair in runs if not pair[1].state.ended]
    had = [(run, ending.record_end(session, run, attempt)) for run, attempt in live]
    # All at once and after the last record: meanwhile a slice may have gone from run to run.
    ids, live_ids = {run.id for run, _ in runs}, {run.id for run, _ in live}
    found = [lease for lease in session.ledger.open_leases() if lease.run in ids]
    kept = [
        lease for lease in found if lease.hold_until is not None and lease.down_at is None and lease.run not in live_ids
    ]
    owed = {lease.id: lease for lease in found if lease not in kept}
    owed |= {lease.id: lease for run, lease in had if lease is not None and ending.is_its_own(lease, run)}
    for lease in kept:
        session.reporter.notice("note", lease_outcome(lease))
    running = [run for run, attempt in live if attempt.state is AttemptState.RUNNING]
    if owed and not all(places.traits_of(run.cloud).results_stay for run in running):
        session.reporter.notice("lost", NOT_COLLECTED)
    for cloud in {lease.cloud for lease in owed.values()}:
        ending.release(session, [lease for lease in owed.values() if lease.cloud == cloud])
    if not session.unproven and living:
        _wait(session, record, needed=any(lease is None or not ending.is_its_own(lease, run) for run, lease in had))
    owed |= {lease.id: lease for lease in before if lease.run in ids and lease not in kept}
    return _outcome(session, record, living, kept, list(owed))


def _wait(session: Session, record: SweepRecord, *, needed: bool) -> None:
    """Wait for the end of the sweep's process. `needed`: only it stops a job, on this machine or on a slice of `tpujob up`."""
    try:
        ending.wait_for_process(session, progress.lock_of(record), record.name)
    except TpujobError as error:
        if needed:
            raise
        session.reporter.notice("note", error.message)


def _outcome(
    session: Session, record: SweepRecord, living: bool, kept: list[Lease], released: list[str]
) -> CanceledSweep:
    """`released`: the ids of the leases that were to be."""
    leases = [session.ledger.lease(lease) for lease in released]
    state = progress.of(session, record)
    parts = [lease_outcome(lease) for lease in leases] or ([] if kept else ["it has no slice"])
    told = state.counts.replace("queued", "not started")
    return CanceledSweep(
        record.id,
        record.name,
        had_ended=not living,
        released=not session.unproven and not kept,
        variants=state.variants,
        slices=tuple(
            SliceRelease(
                lease.handle,
                lease.name.node,
                lease.name.zone,
                lease.gone_at is not None,
                lease.gone_at or session.now(lease.cloud),
            )
            for lease in leases
        ),
        line="; ".join([f"{record.name} {'canceled' if living else 'has ended already'}: {told}", *parts]),
    )
