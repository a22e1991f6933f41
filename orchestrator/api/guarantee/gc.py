"""Garbage collection, for `tpujob gc`: delete slices without a claim, from any machine; or finish what this machine owes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, cast

from orchestrator import catalog, places, settings, traits
from orchestrator.api.guarantee import recovery
from orchestrator.api.session import connections
from orchestrator.api.session.reporter import Reporter
from orchestrator.api.session.session import Session
from orchestrator.errors import NOT_PROVEN, CloudError, ConfigError
from orchestrator.places.area import Area
from orchestrator.promise import gc as programs
from orchestrator.promise.effects.base import Report, World
from orchestrator.promise.effects.interpreter import Interpreter
from orchestrator.promise.lease.cloud_api import Cloud, SliceView
from orchestrator.promise.lease.lease import SliceName
from orchestrator.promise.ledger.file import LedgerIsNewer, LedgerUnavailable
from orchestrator.promise.ledger.rows import GcRun
from orchestrator.report.messages import unproven_head
from orchestrator.settings import Target
from orchestrator.system import boot_clock
from orchestrator.text import names
from orchestrator.traits import by_hand, is_emulated

DAY_S = 86400.0
LOCAL_S = 240.0  # for each teardown; below the timer's period, so that one that cannot be proven does not pile up


@dataclass(frozen=True, slots=True)
class FoundSlice:
    """A slice by its labels. `price` is for display: `not billed` while it only waits in a queue, or is only listed."""

    node: str
    zone: str
    lease_id: str | None
    owner: str | None
    accelerator_type: str
    state: str  # the API's own word
    usd_per_hour: float | None
    price: str = ""
    until: float | None = None  # unix seconds, the server's clock: the end of its claim, where it has one
    why: str = ""  # why its claim is over, or why it cannot be judged
    gone: bool = False  # seen absent after its delete
    problem: str = ""  # what keeps it, where it was to be deleted

    def as_json(self, *extra: str) -> dict[str, Any]:
        keys = ("node", "zone", "lease_id", "owner", "accelerator_type", "state", "usd_per_hour", *extra)
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True, slots=True)
class GcResult:
    """What a gc run saw and did. `done`: every list was complete, and everything in `ended` is proven absent."""

    cloud: str
    project: str
    why: str  #: which cloud this is, and why
    dry_run: bool
    done: bool
    zones: tuple[str, ...]
    ended: tuple[FoundSlice, ...]
    claimed: tuple[FoundSlice, ...]
    doubtful: tuple[FoundSlice, ...]
    incomplete: Mapping[str, str]  #: zone → why
    exit_code: int
    hint: str = ""  #: what helps where a list was refused
    alerts: tuple[str, ...] = ()  #: one for each slice that is not proven absent

    @property
    def area(self) -> str:
        """What `zones` are there, for people: "zone", "namespace"."""
        return traits.traits_of(self.cloud).area

    def as_json(self) -> dict[str, Any]:
        return {
            **{key: getattr(self, key) for key in ("cloud", "project", "why", "dry_run", "done")},
            "zones": list(self.zones),
            "ended": [each.as_json("why", "gone", "problem") for each in self.ended],
            "claimed": [each.as_json("until") for each in self.claimed],
            "doubtful": [each.as_json("why") for each in self.doubtful],
            "incomplete": [{"zone": zone, "why": why} for zone, why in self.incomplete.items()],
        }


@dataclass(frozen=True, slots=True)
class LocalGcResult:
    """How many leases of this machine's ledger were released, could not be proven absent, and are still claimed."""

    released: int
    unproven: int
    claimed: int


@dataclass(frozen=True, slots=True)
class GcArea:
    """Where a gc run looks, and the options that named the target, for the session that records the run."""

    area: Area
    target: Target
    options: tuple[str | None, str | None]


def area_of(
    on: str,
    cloud: str | None = None,
    project: str | None = None,
    parts: Sequence[str] = (),
    *,
    context: str | None = None,
    cluster: str | None = None,
) -> GcArea:
    """Return where a gc run looks for what is left at a place. `parts`: zones and regions, or namespaces.

    `context` and `cluster` are as in `gke:` of a job. Raises UserError for an unknown zone, ConfigError without a usable cloud
    or cluster.
    """
    target = settings.resolve(cloud, project, os.environ)
    area = places.areas_on(on).asked(target, parts, context=context, cluster=cluster)
    return GcArea(area, target, (cloud, project))


def collect_garbage(reporter: Reporter, where: GcArea, *, dry_run: bool = False, quiet: bool = False) -> GcResult:
    """Delete every slice of tpujob whose claim is over, whichever machine made it, and return what was seen.

    It needs no ledger and no state directory; where this machine has them, the run is recorded there. Takes
    `promise.gc.DEADLINE_S` seconds at most. Raises AuthError; what gets no answer is in `incomplete`.
    """
    area = where.area
    if not quiet:
        reporter.notice("cloud", area.why)
    cloud = connections.connect(where.target, reporter.secrets, area.cloud)
    world = _World(cloud, reporter.report)
    program = programs.collect_garbage(area.project, area.parts, cloud.capabilities, dry_run=dry_run)
    collected = Interpreter(cast("World", world)).run(program)
    code = 0 if collected.done else NOT_PROVEN
    if not dry_run:
        code = _record(collected, reporter, where, quiet=quiet) or code
    ended = collected.ended.values()
    return GcResult(
        cloud=area.cloud,
        project=area.project,
        why=area.why,
        dry_run=dry_run,
        done=collected.done,
        zones=tuple(collected.zones),
        ended=tuple(_found(e.view, why=e.why, gone=e.gone, problem=e.problem, price=e.price) for e in ended),
        claimed=tuple(_found(each.view, until=each.until) for each in collected.claimed.values()),
        doubtful=tuple(_found(each.view, why=each.why) for each in collected.doubtful.values()),
        incomplete=dict(collected.incomplete),
        exit_code=code,
        hint=collected.hint,
        alerts=tuple(_alert(each, area.cloud) for each in ended if not (each.gone or dry_run)),
    )


def end_claim(session: Session, node: str, zone: str) -> None:
    """Write on a slice that its claim is over: gc deletes it at once, its watchdog minutes later. Raises CloudError."""
    cloud = session.cloud(session.target.kind)
    name = SliceName(session.target.project, zone, node)
    view = cloud.get(name)
    if view is None:
        raise CloudError(f"{node} in {zone} is not there")
    past = str(int(session.now() - DAY_S))
    cloud.set_labels(name, dict(view.labels) | {names.CLAIMED_UNTIL: past})


def finish_own(session: Session) -> LocalGcResult:
    """Finish the teardowns that this machine's ledger owes, and record the run. A timer calls this every few minutes.

    An absence that could not be proven raises nothing: it is counted.
    """
    before = {lease.id for lease in session.ledger.open_leases()}
    session.recover(budget_s=LOCAL_S, look=True)
    still_open = {lease.id for lease in session.ledger.open_leases()}
    released, target = len(before - still_open), session.target
    _record_run(session, target.kind, target.project, "local", not session.unproven, len(before), released)
    if session.quiet:
        session.notifier.finish()
    return LocalGcResult(released, len(session.unproven), len(still_open - set(session.unproven)))


@dataclass(frozen=True, slots=True)
class _World:
    """All that a gc run needs of this machine: a connection to the cloud, and a clock to wait by."""

    cloud: Cloud
    report: Callable[[Report], None]

    def now(self, cloud: str | None = None) -> float:
        return boot_clock.boot_s()


def _record(collected: programs.Collected, reporter: Reporter, where: GcArea, *, quiet: bool) -> int:
    """Record the run for `doctor`, and close the leases of what was deleted. Return 75 where a teardown is unproven."""
    try:
        area = where.area
        with closing(
            Session.open(*where.options, reporter=reporter, quiet=True, light=True, after_end=recovery.after_end)
        ) as session:
            scope = "all" if area.parts is None else ",".join(area.parts)
            counts = collected.done, collected.found, collected.deleted
            _record_run(session, area.cloud, area.project, scope, *counts)
            session.recover(look=True)
            for each in collected.ended.values():
                if not each.gone:
                    view = each.view
                    session.notifier.left(
                        session.ledger, view.name.node, _alert(each, area.cloud), session.now(area.cloud)
                    )
            return session.exit_code()
    except (LedgerUnavailable, ConfigError) as error:
        if not quiet:
            reporter.notice("warning", f"{error.message}; gc went on without it")
        return 0


def _record_run(session: Session, cloud: str, *run: Any) -> None:
    with suppress(LedgerIsNewer):  # what is owed is ended all the same
        session.ledger.record_gc(GcRun(session.now(cloud), cloud, *run))


def _found(view: SliceView, **fields: Any) -> FoundSlice:
    return FoundSlice(
        node=view.name.node,
        zone=view.name.zone,
        lease_id=view.labels.get(names.LEASE_ID),
        owner=view.labels.get(names.OWNER),
        accelerator_type=view.accelerator_type,
        state=view.native_state,
        usd_per_hour=catalog.usd_per_hour(view.accelerator_type, view.name.zone, spot=view.spot),
        **fields,
    )


def _alert(ended: programs.Expired, cloud: str) -> str:
    view = ended.view
    head = f"{unproven_head(cloud, view.name, view.accelerator_type, ended.usd_per_hour)}: {ended.problem}"
    return head if is_emulated(cloud) else f"{head}\n   do now      {by_hand(cloud).delete_command(view.name)}"
