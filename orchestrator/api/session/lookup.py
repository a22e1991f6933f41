"""What a name means, for every command and the API; and which run a slice still serves.

Exactly an id comes before exactly a name, and that before the beginning of an id, among all runs, sweeps and open slices: no
command takes the beginning of one's id where another one is called so. A slice that is called as an id is meant beside it.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator import traits
from orchestrator.api.session import sweep_progress
from orchestrator.api.session.session import Session
from orchestrator.errors import UnknownRun, UserError
from orchestrator.promise.lease.lease import Lease, LeaseState, Mode, Purpose
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord, has_uncollected_results
from orchestrator.promise.ledger.rows import SweepRecord
from orchestrator.system.lazy import Later
from orchestrator.system.user import user_name
from orchestrator.text import names

if TYPE_CHECKING:
    import difflib
else:  # for a name that nothing has
    difflib = Later("difflib")

Pair = tuple[RunRecord, Attempt]


@dataclass(slots=True)
class Meant:
    """What a text means: runs and sweeps, newest first, and open leases of every cloud."""

    runs: list[str] = field(default_factory=list)  # ids
    sweeps: list[SweepRecord] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)


def meant(session: Session, text: str, *, begins: bool = True) -> Meant:
    """Return what has this id, else what has this name, else, with `begins`, what has the only id that begins so.

    Nothing where there is none. Raises UserError where several ids begin so.
    """
    ledger, runs = session.ledger, session.ledger.run_names()
    sweeps, leases = ledger.sweeps(), ledger.open_leases()
    ids = [run for run, _ in runs] + [sweep.id for sweep in sweeps]
    ids += [each for lease in leases for each in (lease.id, lease.run) if each is not None]

    def among(wanted: Collection[str | None]) -> Meant:
        return Meant(
            [run for run, _ in runs if run in wanted],
            [sweep for sweep in sweeps if sweep.id in wanted],
            [lease for lease in leases if {lease.id, lease.run, lease.name.node, lease.handle} & {*wanted}],
        )

    if text in ids or any(lease.name.node == text for lease in leases):
        return among({text})
    called = Meant(
        [run for run, name in runs if name == text],
        [sweep for sweep in sweeps if sweep.name == text],
        [lease for lease in leases if lease.handle == text],
    )
    if called != Meant() or not begins:
        return called
    found = dict.fromkeys(each for each in ids if text and each.startswith(text))
    if len(found) > 1:
        raise UserError(f"{text!r} could be any of these: {', '.join(found)}", hint="type more of the id")
    return among(found)


def runs(session: Session, text: str) -> list[Pair]:
    """Return the run of this id, or every run of this name, newest first; never empty. Raises UnknownRun, UserError."""
    found = meant(session, text)
    if not found.runs:
        raise _no_run(session, text, found)
    return [session.ledger.run(each) for each in found.runs]


def run(session: Session, text: str | None) -> Pair:
    """Return the run of this id, or the newest one of this name; None: of all. Raises UnknownRun, UserError."""
    return session.ledger.newest_run() if text is None else runs(session, text)[0]


def live_run(session: Session, text: str) -> Pair:
    """Return the run of this id, or the only one of this name that has not ended, else the newest one.

    For commands that end or follow a run. Raises UnknownRun; UserError where several have not ended.
    """
    found = runs(session, text)
    live = [pair for pair in found if not pair[1].state.ended]
    if len(live) > 1:
        listed = ", ".join(f"{run.id} ({attempt.state})" for run, attempt in live)
        raise UserError(f"several runs named {text!r} have not ended: {listed}", hint="give the id of one of them")
    return (live or found)[0]


def live_sweep(session: Session, text: str) -> SweepRecord | None:
    """Return the sweep of this id or name, rather one that goes on; None where a run is meant, or nothing.

    Of what has ended it is the newest. Raises UserError where several go on, runs among them.
    """
    found = meant(session, text)
    living = [sweep for sweep in found.sweeps if sweep_progress.is_living(session, sweep)]
    pairs = [session.ledger.run(each) for each in found.runs]
    live = [run for run, attempt in pairs if not attempt.state.ended]
    if living and len(living) + len(live) > 1:
        listed = ", ".join([f"sweep {sweep.id}" for sweep in living] + [f"run {run.id}" for run in live])
        raise UserError(f"several go on that are named {text!r}: {listed}", hint="give the id of one of them")
    if living:
        return living[0]
    return None if live else _newest_sweep(found, pairs)


def runs_of(session: Session, text: str) -> tuple[SweepRecord | None, list[Pair]]:
    """Return the newest sweep of this id or name and the newest run of each of its variants; else None and the run.

    Raises UnknownRun, also while no variant was run yet; UserError.
    """
    found = meant(session, text)
    if (sweep := _newest_sweep(found, [session.ledger.run(each) for each in found.runs[:1]])) is None:
        return None, runs(session, text)[:1]
    pairs = [session.ledger.run(each) for each in sweep_progress.runs_of(session, sweep)]
    if not pairs:
        raise UnknownRun(f"no variant of the sweep {text!r} was run yet", hint="`tpujob status` shows how far it is")
    return sweep, pairs


def _newest_sweep(found: Meant, runs: list[Pair]) -> SweepRecord | None:
    """Return the newest sweep, unless one of the runs, newest first, began after it."""
    sweep = next(iter(found.sweeps), None)
    return None if sweep is not None and runs and runs[0][0].created_at > sweep.created_at else sweep


def _no_run(session: Session, text: str, found: Meant) -> UnknownRun:
    if not found.sweeps:
        known = dict.fromkeys(
            [name for _, name in session.ledger.run_names()] + [s.name for s in session.ledger.sweeps()]
        )
        nearest = ", ".join(difflib.get_close_matches(text, known))
        hint = "`tpujob list` shows the runs"
        return UnknownRun(f"there is no run {text!r}", hint=f"nearest: {nearest}; {hint}" if nearest else hint)
    variants = found.sweeps[0].variants
    names = f"{variants[0].name} to {variants[-1].name}" if len(variants) > 1 else variants[0].name
    hint = f"its runs are {names}; `tpujob compare {text}` shows all"
    return UnknownRun(f"{text!r} is a sweep, not a run", hint=hint)


def named(
    session: Session, handle: str | None, *, on_clusters: bool = False, begins: bool = True, owner: str | None = None
) -> list[Lease]:
    """Return the open leases that a text means, by name, node, id or id of a run, those being deleted included.

    None: the user's own slice of `tpujob up`, else every slice of `tpujob up`. `on_clusters`: also jobs on clusters. `owner`:
    those of this owner; None: this user's own. Raises UserError for the beginning of several ids.
    """
    if handle is not None:
        kind, found = session.target.kind, meant(session, handle, begins=begins).leases
        on_cluster = [each for each in found if on_clusters and not traits.traits_of(each.cloud).by_target]
        return [each for each in found if (each.cloud == kind or each in on_cluster) and is_of(session, each, owner)]
    held = [lease for lease in session.open_leases() if is_of_up(lease) and is_of(session, lease, owner)]
    return [lease for lease in held if lease.handle == default_handle()] or held


def is_own(session: Session, owner: str | None) -> bool:
    """Return whether the owner in a label is this user. tpujob 0.1 before 2026-12 wrote another one for each machine."""
    return owner in (session.owner, names.owner_id(user_name(), os.uname().nodename))


def is_of(session: Session, lease: Lease, owner: str | None) -> bool:
    """Return whether a command without another owner's name means this lease, or with that name."""
    if owner is not None:
        return lease.owner == owner
    return lease.purpose is not Purpose.ELSEWHERE or is_own(session, lease.owner)


def is_of_up(lease: Lease) -> bool:
    """Return whether the slice is one of `tpujob up`, on this machine or on another."""
    elsewhere = lease.purpose is Purpose.ELSEWHERE and lease.hold_until is not None and lease.run is None
    return lease.purpose is Purpose.HOLD or elsewhere


def held(session: Session, handle: str | None = None) -> Lease | None:
    """Return the lease of exactly this name or id unless it is being deleted. Raises UserError when several are meant."""
    found = [lease for lease in named(session, handle, begins=False) if lease.state is not LeaseState.DOWN]
    return one_of(found)


def leases_of_run(session: Session, run: str) -> list[Lease]:
    """Return the open leases of the run of this id: in a race several, and not the held slice that it borrows."""
    return [lease for lease in session.ledger.open_leases() if lease.run == run]


def lease_of_run(session: Session, run: str) -> Lease | None:
    """Return the open lease of the run of this id, in any cloud.

    None also for an unknown run, and for one of a sweep that has ended and whose slice went to the next one.
    """
    attempt = _last_attempt(session, run)
    lease = next((lease for lease in session.ledger.open_leases() if attempt and lease.id == attempt.lease_id), None)
    if lease is None or attempt is None:
        return None
    passed_on = attempt.state.ended and lease.mode is Mode.RUN and lease.run != attempt.run_id
    return None if passed_on else lease


def uncollected_run(session: Session, lease: Lease) -> str | None:
    """Return the run whose results are the only reason to hold this slice; None if there is another one."""
    attempt = _last_attempt(session, lease.run) if lease.run is not None else None
    return lease.run if attempt is not None and has_uncollected_results(attempt, lease) else None


def _last_attempt(session: Session, run: str) -> Attempt | None:
    return next(reversed(session.ledger.attempts_of(run)), None)


def is_followed(session: Session, lease: Lease) -> bool:
    """Return whether a process on this machine, the collector or an `attach`, follows the job on the slice to its end."""
    return any(a.lease_id == lease.id and session.locks.is_locked(a.id) for a in session.ledger.attempts_open())


def to_release(session: Session, name: str, *, begins: bool = True, owner: str | None = None) -> list[Lease]:
    """Return the leases that `down` of this name releases. Raises UserError where living ones of several runs are meant."""
    found = named(session, name, on_clusters=True, begins=begins, owner=owner)
    live = [lease for lease in found if lease.state is not LeaseState.DOWN]
    if len({lease.run or lease.id for lease in live}) > 1:  # those of one run, in a race, end together
        one_of(live)
    return found


def one_of(found: list[Lease]) -> Lease | None:
    """Return the only lease, or None. Raises UserError for several."""
    if len(found) > 1:
        listed = ", ".join(_described(lease) for lease in found)
        raise UserError(f"several slices are meant: {listed}", hint="give the node's name or the id of the run")
    return found[0] if found else None


def require(session: Session, handle: str | None, *, owner: str | None = None) -> Lease:
    """Return the lease of this name. Raises NoSlice when there is none, and UserError when several are meant.

    Jobs on clusters count only where no slice has the name: both may have it.
    """
    found = named(session, handle, on_clusters=True, owner=owner)
    lease = one_of([each for each in found if traits.traits_of(each.cloud).vms and each.state is not LeaseState.DOWN])
    if lease is None:
        for each in found:
            refuse_cluster(each)
        raise no_slice(session, handle)
    return lease


class NoSlice(UserError):
    """The ledger has no slice of this name."""


def no_slice(session: Session, handle: str | None) -> NoSlice:
    """Return the error for a name that no slice has; its hint lists those that may have been meant."""
    what = f"no slice named {handle!r}" if handle else "no slice"
    alive = ", ".join(_described(lease) for lease in session.open_leases())
    hint = f"alive: {alive}" if alive else "`tpujob up` creates one"
    return NoSlice(f"there is {what} on the {session.target.kind} cloud", hint=hint)


def refuse_cluster(lease: Lease) -> None:
    """Raise UserError for a job on a cluster: its pods are no VMs, and the cluster keeps its limits."""
    if not traits.traits_of(lease.cloud).vms:
        raise UserError(
            f"{lease.handle} runs in pods of a cluster: ssh, scp, forward, stop, start and extend are for slices",
            hint=f"`kubectl exec -it {lease.name.node}-slice-0-0-… -n {lease.name.zone} -- bash` opens a shell; "
            "its time limit is part of what was submitted, and cannot be moved",
        )


def _described(lease: Lease) -> str:
    """Return name, node and run of a slice, as messages list it."""
    run = f", run {lease.run}" if lease.run is not None else ""
    return f"{lease.handle} ({lease.name.node}{run})"


def default_handle() -> str:
    """Return the user's name as a valid label value: the name of a slice without a name."""
    return names.to_job_name(user_name())
