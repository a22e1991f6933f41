"""End a run or a sweep (`cancel`), or collect what a run left on its slice (`collect`)."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator import places, traits
from orchestrator.api.jobs import elsewhere, results
from orchestrator.api.jobs.log_output import make_directory
from orchestrator.api.jobs.results import tell_saved
from orchestrator.api.results import pages
from orchestrator.api.session import lookup, sweep_progress
from orchestrator.api.session.events import RunResult, relative
from orchestrator.api.session.session import Session
from orchestrator.api.session.sweep_progress import VariantState
from orchestrator.api.slices.down import SliceRelease
from orchestrator.errors import ArtifactError, TpujobError, UserError
from orchestrator.hosts.transfer.collect import Beside, CollectRequest, CollectResult
from orchestrator.places.leased import STOP_GRACE_S
from orchestrator.promise.lease.absence import Released
from orchestrator.promise.lease.lease import CANCEL, HeldFor, Lease, LeaseState
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord, has_uncollected_results
from orchestrator.promise.ledger.rows import SweepRecord
from orchestrator.report.messages import lease_outcome
from orchestrator.report.results import describe
from orchestrator.report.rows import collected
from orchestrator.run import up_and_down
from orchestrator.run.collection import UncollectedRun, collect_again, end_of, progress_text, wide_lines, without
from orchestrator.text.units import clock

COLLECT_S = 60.0  # what the artifacts of a stopped local job may take


@dataclass(frozen=True, slots=True)
class Canceled:
    """What became of a run that was to be canceled."""

    run: str
    had_ended: bool  # before: nothing was done
    released: bool  # its slice is proven absent, or it has none
    state: str  # of the run now
    slices: tuple[SliceRelease, ...] = ()  # that were deleted
    line: str = ""  # for a terminal

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "line"}


def cancel_run(session: Session, found: RunRecord, attempt: Attempt) -> Canceled:
    """End a run: delete its slice and prove it. Artifacts are not collected.

    A run that waits for capacity asks for no slice any more; its process ends. A run on a held slice is stopped there, and the
    slice stays. A job with `on: local` is stopped as by Ctrl-C, and keeps its artifacts. Raises TpujobError if the process of
    the run does not stop it.
    """
    if attempt.state.ended:
        return _had_ended(session, found, attempt)
    lease = record_end(session, found, attempt)
    if not traits.traits_of(found.cloud).billed:
        wait_for_process(session, attempt.id, found.id)
        return _canceled(session, found, "none of its processes runs any more")
    if lease is not None and not is_its_own(lease, found):
        wait_for_process(session, attempt.id, found.id)
        return _canceled(session, found, lease_outcome(lease).removeprefix("no: "))
    # These are all: from here on, the ledger takes no new lease of the run.
    taken_over = [lease] if lease is not None and lease.held_for is HeldFor.FAILURE else []
    releases = release(session, taken_over or lookup.leases_of_run(session, found.id))
    if not all(released.gone for released in releases):
        return replace(_canceled(session, found, "", releases), released=False, line="")
    proofs = [f"{each.lease.name.node} absent (checked {clock(each.checked_at)})" for each in releases]
    return _canceled(session, found, "; ".join(proofs) or "it has no slice", releases)


def record_end(session: Session, found: RunRecord, attempt: Attempt) -> Lease | None:
    """Tell the run that it has been ended, in the ledger or as its supervisor looks for it; return the slice that it has."""
    lease = lookup.lease_of_run(session, found.id)
    places.place_of(found.cloud).end_run(session, found, attempt)
    return lease


def is_its_own(lease: Lease, found: RunRecord) -> bool:
    """Return whether the slice ends with the run: one that it asked for, or has taken over; not one of `tpujob up`."""
    return lease.run == found.id or lease.held_for is HeldFor.FAILURE


def _had_ended(session: Session, found: RunRecord, attempt: Attempt) -> Canceled:
    kept = lookup.lease_of_run(session, found.id)
    if kept is not None:
        session.reporter.notice("note", lease_outcome(kept).removeprefix("no: "))
    # Of a process that was killed, also those that its guardian is deleting.
    leases = [lease for lease in lookup.leases_of_run(session, found.id) if lease.state is LeaseState.DOWN]
    slices = tuple(map(SliceRelease.of, release(session, leases)))
    line = f"{found.id} has ended already: {attempt.state}"
    return Canceled(found.id, True, kept is None, str(attempt.state), slices, line)


def _canceled(session: Session, found: RunRecord, what: str, releases: Sequence[Released] = ()) -> Canceled:
    """Return that the run was canceled, and in its line what became of its slices."""
    _, attempt = session.ledger.run(found.id)
    if attempt.state.ended:
        pages.run_ended(session, found.id, Path(found.directory))
        places.place_of(found.cloud).tidy(session, found)
    line = f"{found.id} {attempt.state if attempt.state.ended else 'ends'}; {what}"
    slices = tuple(map(SliceRelease.of, releases))
    return Canceled(found.id, False, True, str(attempt.state), slices, line)


def release(session: Session, leases: Sequence[Lease]) -> list[Released]:
    """Delete these slices of one cloud until each is proven absent, or the budget is over."""
    if not leases:
        return []
    releases = session.on_cloud(partial(up_and_down.down, tuple(leases), reason=CANCEL), leases[0].cloud)
    for released in releases:
        session.note(released)
    return releases


def wait_for_process(session: Session, lock: str, name: str) -> None:
    """Wait until the process that holds this lock has stopped its job, collected what it made, and recorded how it ended."""
    give_up_at = time.monotonic() + STOP_GRACE_S + COLLECT_S
    while session.locks.is_locked(lock):
        if time.monotonic() > give_up_at:
            hint = "it was told to end; `tpujob list` shows when it has"
            raise TpujobError(f"the process of {name} has not ended", hint=hint)
        session.reporter.progress("cancel", f"waiting until the process of {name} has ended")
        time.sleep(0.1)


def collect(
    session: Session,
    run: str,
    *,
    max_results: float | None = None,
    work: str | None = None,
    to: Path | None = None,
    owner: str | None = None,
) -> RunResult:
    """Collect the results that a run left on its slice, then release the slice, proven. What is here is not sent again.

    `max_results`: bytes; None: the job's `limits.max_results`; infinity: no limit. `work`: a pattern of files beside the
    artifacts that come without limits, to the directory `to` if there is one. The result has the job's own exit code
    once everything is collected, and 65 until then; interrupted, it leaves the slice held. Raises UnknownRun, UserError
    for a run that has not ended.
    """
    session.recover(look=True)
    elsewhere.look_for_run(session, run, owner, ended=True)
    found, attempt = _run_with_results(session, run)
    _lock(session, found, attempt)
    found, attempt = session.ledger.run(found.id)  # as the last holder of the lock left it
    lease = lookup.lease_of_run(session, found.id)
    most_bytes = found.spec.limits.max_results if max_results is None else max_results
    most = None if most_bytes is None or math.isinf(most_bytes) else int(most_bytes)
    directory = Path(found.directory)
    had = {each.place: _files_of(each.place) for each in collected.read(directory) if each.kind == "fetched"}
    order = CollectRequest.of_job(
        found.spec.artifacts, attempt.id, directory, most, elsewhere=set().union(*had.values())
    )
    wide = None
    if work is not None:
        wide = CollectRequest(
            attempt.id, to or directory, None, None if to else most, beside=Beside(None, None, only=work)
        )
    there = lease is not None and _may_have_some(lease, found, attempt)
    if to is not None and (there or (found.spec.bucket and traits.traits_of(found.cloud).results_stay)):
        if str(to.resolve()) not in had and _files_of(str(to)):
            raise UserError(
                f"--to: {to} has files that are not known as this run's", hint="give --to another directory"
            )
        if not to.is_dir():
            make_directory(to, hint="give --to another directory")
        try:
            collected.fetch(directory, to)
        except OSError as error:  # the disk of the runs is full, say: `--to` is for another one
            session.reporter.notice("warning", f"{collected.NAME} cannot be written: {error.strerror or error}")
    if lease is None or not there:
        return _nothing_left(session, found, _with_stored(session, found, attempt, order, wide), lease)
    borrowed = lease.held_for is not HeldFor.RESULTS or lease.run != found.id  # results of another run are on it
    left = UncollectedRun(found, attempt, lease, order, borrowed=borrowed, wide=wide)
    outcome = session.on_cloud(lambda capabilities: collect_again(left, capabilities), lease.cloud)
    return results.finish(session, outcome, [] if left.borrowed else [lease.id])


def _with_stored(
    session: Session, found: RunRecord, attempt: Attempt, order: CollectRequest, wide: CollectRequest | None
) -> Attempt:
    """Collect what the run has left outside its slice, if anything; return the attempt as it is then. `wide`: before it."""
    if wide is not None and (came := _stored(session, found, wide)) is not None:
        for stage, text in wide_lines(wide, came):
            session.reporter.notice(stage, text)
        order = without(order, came)
    came = _stored(session, found, order)
    if came is None:
        return attempt
    if came.problems and attempt.error != ArtifactError.__name__:  # its results were complete, or no part of its end
        session.reporter.notice("warning", f"not collected: {came.problems[0]}")
        return attempt
    collected.keep(order.destination, came)
    if not came.waiting:
        session.ledger.record(end_of(attempt, came, session.now(found.cloud)))
    return session.ledger.run(found.id)[1]


def _stored(session: Session, found: RunRecord, order: CollectRequest) -> CollectResult | None:
    """Collect what the run has left outside its slice; None where there is no such place."""
    collection, began = places.place_of(found.cloud).stored(session, found, order), time.monotonic()
    if collection is None:
        return None
    while (seen := collection.wait(1.0)).result is None:
        session.reporter.progress("collect", progress_text(seen, time.monotonic() - began))
    return seen.result


def _files_of(place: str) -> set[tuple[int, str]]:
    """Return worker and path of each file that an earlier `collect --to` brought to this directory."""
    found = (file.relative_to(place).parts for file in Path(place).glob("worker*/**/*") if file.is_file())
    return {(int(worker[6:]), "/".join(path)) for worker, *path in found if worker[6:].isdecimal()}


def _run_with_results(session: Session, run: str) -> tuple[RunRecord, Attempt]:
    """Return the run of this id, or the only one of this name with results on its slice, else what `live_run` returns.

    Raises UnknownRun, UserError for a name of several.
    """
    leases = {lease.id: lease for lease in session.ledger.open_leases()}
    waiting = []
    for found, attempt in lookup.runs(session, run):
        lease = leases.get(attempt.lease_id or "")
        if lease is not None and has_uncollected_results(attempt, lease):
            waiting.append((found, attempt))
    if len(waiting) > 1:
        listed = ", ".join(found.id for found, _ in waiting)
        raise UserError(f"results of several runs named {run!r} are left: {listed}", hint="give the id of one of them")
    return waiting[0] if waiting else lookup.live_run(session, run)


def _lock(session: Session, found: RunRecord, attempt: Attempt) -> None:
    """One process collects, and only after the end."""
    if not attempt.state.ended:
        billed = traits.traits_of(found.cloud).billed
        hint = f"`tpujob attach {found.id}` follows a detached one" if billed else "wait for its end"
        raise UserError(f"{found.id} has not ended; its results are collected when it ends", hint=hint)
    if not session.locks.lock(attempt.id):
        raise UserError(f"another process is collecting the results of {found.id}", hint="wait for its end")


def _may_have_some(lease: Lease, found: RunRecord, attempt: Attempt) -> bool:
    """Return whether the slice may have results: it is held, for them or by `tpujob up` or `--keep`."""
    there = lease.state is LeaseState.READY and lease.hold_until is not None
    left = any(each.kind in ("missing", "left") for each in collected.read(Path(found.directory)))
    return there and (lease.run != found.id or left or has_uncollected_results(attempt, lease))


def _nothing_left(session: Session, found: RunRecord, attempt: Attempt, lease: Lease | None) -> RunResult:
    lease = lease or (session.ledger.lease(attempt.lease_id) if attempt.lease_id is not None else None)
    directory, success = Path(found.directory), attempt.state is AttemptState.SUCCEEDED
    absent = [each for each in collected.read(directory, lease) if each.kind in ("missing", "left", "lost")]
    what = "all results are collected" if success and not absent else "no results are left to collect"
    lines = [f"result   {describe(found, attempt.state, attempt.detail, relative(directory))}; {what}"]
    lines += [f"released {lease_outcome(lease)}"] if lease is not None else []
    if success and absent:
        why = f"not all results are collected: {collected.lines(absent)[0][1]}"
        attempt = replace(attempt, exit_code=ArtifactError.exit_code, error=ArtifactError.__name__, detail=why)
    return results.ended_before(session, found, attempt, lease, lines)


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


def cancel(session: Session, text: str, *, owner: str | None = None) -> Canceled | CanceledSweep:
    """End the sweep or the run of this id or name, with its slices, proven; see `cancel_run`.

    What goes on is meant, rather than what has ended. Raises UnknownRun; UserError where several that go on have this name.
    """
    before = session.ledger.open_leases()
    session.recover(look=True)
    if found_leases := elsewhere.leases_to_cancel(session, text, owner):
        return _cancel_elsewhere(session, found_leases)
    record = lookup.live_sweep(session, text)
    if record is None:
        found, attempt = lookup.live_run(session, text)
        canceled = cancel_run(session, found, attempt)
        if canceled.slices and attempt.state is AttemptState.RUNNING and not traits.traits_of(found.cloud).results_stay:
            session.reporter.notice("lost", NOT_COLLECTED)
            tell_saved(session, Path(found.directory))
        return canceled
    return _cancel_sweep(session, record, sweep_progress.is_living(session, record), before)


def _cancel_elsewhere(session: Session, leases: list[Lease]) -> Canceled:
    """End a run of another machine by the deletion of its slice: its process, if it lives, sees that."""
    known = elsewhere.record_of(session, leases[0])  # which goes with its slice
    releases = release(session, leases)
    gone = all(released.gone for released in releases)
    if gone and known is not None:
        places.place_of(known.cloud).tidy(session, known)
    proofs = [f"{each.lease.name.node} absent (checked {clock(each.checked_at)})" for each in releases if each.gone]
    run = leases[0].run or leases[0].handle
    line = f"{run} {AttemptState.CANCELED}; {'; '.join(proofs)}" if gone else ""
    return Canceled(run, False, gone, str(AttemptState.CANCELED), tuple(map(SliceRelease.of, releases)), line)


def _cancel_sweep(session: Session, record: SweepRecord, living: bool, before: list[Lease]) -> CanceledSweep:
    """`before`: the open leases of the time before the recovery."""
    session.ledger.cancel_sweep(record.id, session.now())
    # These are all: from here on, the ledger begins no run of the sweep.
    runs = [pair for pair in session.ledger.runs() if pair[0].spec.sweep.id == record.id]
    live = [pair for pair in runs if not pair[1].state.ended]
    had = [(run, record_end(session, run, attempt)) for run, attempt in live]
    # All at once and after the last record: meanwhile a slice may have gone from run to run.
    ids, live_ids = {run.id for run, _ in runs}, {run.id for run, _ in live}
    found = [lease for lease in session.ledger.open_leases() if lease.run in ids]
    kept = [
        lease for lease in found if lease.hold_until is not None and lease.down_at is None and lease.run not in live_ids
    ]
    owed = {lease.id: lease for lease in found if lease not in kept}
    owed |= {lease.id: lease for run, lease in had if lease is not None and is_its_own(lease, run)}
    for lease in kept:
        session.reporter.notice("note", lease_outcome(lease))
    running = [run for run, attempt in live if attempt.state is AttemptState.RUNNING]
    if owed and not all(traits.traits_of(run.cloud).results_stay for run in running):
        session.reporter.notice("lost", NOT_COLLECTED)
    for cloud in {lease.cloud for lease in owed.values()}:
        release(session, [lease for lease in owed.values() if lease.cloud == cloud])
    if not session.unproven and living:
        _wait_for_sweep(session, record, needed=any(lease is None or not is_its_own(lease, run) for run, lease in had))
    owed |= {lease.id: lease for lease in before if lease.run in ids and lease not in kept}
    return _canceled_sweep(session, record, living, kept, list(owed))


def _wait_for_sweep(session: Session, record: SweepRecord, *, needed: bool) -> None:
    """Wait for the end of the sweep's process. `needed`: only it stops a job, on this machine or on a slice of `tpujob up`."""
    try:
        wait_for_process(session, sweep_progress.lock_of(record), record.name)
    except TpujobError as error:
        if needed:
            raise
        session.reporter.notice("note", error.message)


def _canceled_sweep(
    session: Session, record: SweepRecord, living: bool, kept: list[Lease], released: list[str]
) -> CanceledSweep:
    """`released`: the ids of the leases that were to be."""
    leases = [session.ledger.lease(lease) for lease in released]
    state = sweep_progress.of(session, record)
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
