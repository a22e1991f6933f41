"""Garbage collection, for `tpujob gc`: delete slices without a claim, from any machine; or finish what this machine owes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from orchestrator import boot_clock, catalog, settings
from orchestrator.client.events import Reporter
from orchestrator.client.guarantee import teardown_client
from orchestrator.client.session import Session
from orchestrator.core.jobfile.cluster import NAMESPACE, ClusterWish
from orchestrator.core.lease.cloud_api import SliceView
from orchestrator.core.lease.clouds import is_emulated
from orchestrator.core.planning.location_rules import places_near
from orchestrator.core.text import names
from orchestrator.core.text.durations import format_usd_per_hour
from orchestrator.engine.effects.base import Report, World
from orchestrator.engine.leases import gc as engine
from orchestrator.engine.runtime.interpreter import Interpreter
from orchestrator.errors import ConfigError, UserError
from orchestrator.exit_codes import NOT_PROVEN
from orchestrator.ledger.file import LedgerIsNewer, LedgerUnavailable
from orchestrator.ledger.rows import GcRun
from orchestrator.places import by_hand
from orchestrator.settings import GKE

if TYPE_CHECKING:
    from orchestrator.places.gke.api.client import ClusterCloud
    from orchestrator.places.tpu.api.light_client import LightApi

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
    alerts: tuple[str, ...] = ()  #: one for each slice that is not proven absent

    def as_json(self) -> dict[str, Any]:
        return {
            "cloud": self.cloud,
            "project": self.project,
            "why": self.why,
            "dry_run": self.dry_run,
            "done": self.done,
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
    exit_code: int


def collect_garbage(
    reporter: Reporter,
    *,
    cloud: str | None = None,
    project: str | None = None,
    places: Sequence[str] = (),
    dry_run: bool = False,
    quiet: bool = False,
) -> GcResult:
    """Delete every slice of tpujob in the project whose claim is over, whichever machine made it, and return what was seen.

    `places` are zones and regions; empty means every zone. It needs no ledger and no state directory; where this machine
    has them, the run is recorded there. Takes `engine.leases.gc.DEADLINE_S` seconds at most. Raises UserError for an unknown
    place, ConfigError or AuthError without a usable cloud; what gets no answer is in `incomplete`.
    """
    target = settings.resolve(cloud, project, os.environ)
    zones = _zones(places)
    if not quiet:
        reporter.notice("cloud", target.why)
    collected = _run(reporter, teardown_client.connect(target, reporter.secrets), target.project, zones, dry_run)
    code = 0 if collected.done else NOT_PROVEN
    if not dry_run:
        scope = "all" if zones is None else ",".join(zones)
        code = _record(collected, scope, reporter, cloud, project, quiet=quiet) or code
    return _result(collected, target.kind, target.why, code)


def collect_garbage_on_cluster(
    reporter: Reporter,
    *,
    context: str | None = None,
    cluster: str | None = None,
    namespaces: Sequence[str] = (),
    dry_run: bool = False,
    quiet: bool = False,
) -> GcResult:
    """Delete what jobs of tpujob left in namespaces of a cluster after their end; else as `collect_garbage`.

    `context` and `cluster` are as in `gke:` of a job. What is not given is that of the settings; the namespace is `default`
    without one there. Raises ConfigError without a usable cluster.
    """
    from orchestrator.places.gke.api import clusters
    from orchestrator.places.gke.api.client import ClusterCloud

    target = settings.resolve(None, None, os.environ)
    wish = ClusterWish(context, cluster).over(target.gke)
    project = clusters.identity(wish.context, wish.cluster, os.environ)
    places = list(dict.fromkeys(namespaces)) or [wish.namespace or NAMESPACE]
    why = f"cluster {clusters.short_name(project)}, namespace {', '.join(places)}"
    if not quiet:
        reporter.notice("cloud", why)
    cloud = ClusterCloud(lambda identity: clusters.open_api(identity, os.environ))
    collected = _run(reporter, cloud, project, places, dry_run)
    code = 0 if collected.done else NOT_PROVEN
    if not dry_run:
        code = _record(collected, ",".join(places), reporter, None, None, quiet=quiet, place=(GKE, project)) or code
    return _result(collected, GKE, why, code)


def _run(
    reporter: Reporter, cloud: LightApi | ClusterCloud, project: str, places: Sequence[str] | None, dry_run: bool
) -> engine.Collected:
    world = _World(cloud, reporter.report)
    program = engine.collect_garbage(project, places, cloud.capabilities, dry_run=dry_run)
    return Interpreter(cast("World", world)).run(program)


def finish_own(session: Session) -> LocalGcResult:
    """Finish the teardowns that this machine's ledger owes, and record the run. A timer calls this every few minutes.

    An absence that could not be proven raises nothing: `exit_code` is 75.
    """
    before = {lease.id for lease in session.ledger.open_leases()}
    session.recover(budget_s=LOCAL_S, look=True)
    still_open = {lease.id for lease in session.ledger.open_leases()}
    released, code = len(before - still_open), session.exit_code()
    _record_run(session, "local", complete=code == 0, found=len(before), deleted=released)
    return LocalGcResult(released, len(session.unproven), len(still_open - set(session.unproven)), code)


@dataclass(frozen=True, slots=True)
class _World:
    """All that a gc run needs of this machine: a connection to the cloud, and a clock to wait by."""

    cloud: LightApi | ClusterCloud
    report: Callable[[Report], None]

    def now(self, cloud: str | None = None) -> float:
        return boot_clock.boot_s()


def _zones(places: Sequence[str]) -> list[str] | None:
    """A region means its zones. A zone that is not in the shipped table may exist all the same."""
    found: list[str] = []
    for place in places:
        if names.zone_problem(place) is None:
            found.append(place)
        elif in_region := catalog.zones_of(place):
            found += in_region
        else:
            raise UserError(f"{place!r} is not a zone or region with TPUs", hint=places_near(place))
    return list(dict.fromkeys(found)) or None


def _result(collected: engine.Collected, cloud: str, why: str, code: int) -> GcResult:
    unproven = [each for each in collected.ended.values() if not (each.gone or collected.dry_run)]
    return GcResult(
        cloud=cloud,
        project=collected.project,
        why=why,
        dry_run=collected.dry_run,
        done=collected.done,
        zones=tuple(collected.zones),
        ended=tuple(
            _found(e.view, why=e.why, gone=e.gone, problem=e.problem, price=e.price) for e in collected.ended.values()
        ),
        claimed=tuple(_found(each.view, until=each.until) for each in collected.claimed.values()),
        doubtful=tuple(_found(each.view, why=each.why) for each in collected.doubtful.values()),
        incomplete=dict(collected.incomplete),
        exit_code=code,
        alerts=tuple(_alert(each, cloud) for each in unproven),
    )


def _record(
    collected: engine.Collected,
    scope: str,
    reporter: Reporter,
    cloud: str | None,
    project: str | None,
    *,
    quiet: bool,
    place: tuple[str, str] | None = None,
) -> int:
    """Record the run for `doctor`, and close the leases of what was deleted. Return 75 where a teardown is unproven."""
    try:
        with closing(Session.open(cloud, project, reporter=reporter, quiet=True, light=True)) as session:
            counts = {"found": collected.found, "deleted": collected.deleted}
            _record_run(session, scope, complete=collected.done, **counts, place=place)
            session.recover(look=True)
            return session.exit_code()
    except (LedgerUnavailable, ConfigError) as error:
        if not quiet:
            reporter.notice("warning", f"{error.message}; gc went on without it")
        return 0


def _record_run(
    session: Session, scope: str, *, complete: bool, found: int, deleted: int, place: tuple[str, str] | None = None
) -> None:
    cloud, project = place or (session.target.kind, session.target.project)
    with suppress(LedgerIsNewer):  # what is owed is ended all the same
        session.ledger.record_gc(GcRun(session.now(cloud), cloud, project, scope, complete, found, deleted))


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


def _alert(ended: engine.Expired, cloud: str) -> str:
    name, hand, emulated = ended.view.name, by_hand(cloud), is_emulated(cloud)
    bill = "emulated, not billed" if emulated else f"{hand.MAY} {format_usd_per_hour(ended.usd_per_hour)}"
    head = f"!! NOT VERIFIED GONE: {name.node} ({hand.where(name)}; {bill}): {ended.problem}"
    return head if emulated else f"{head}\n   do now      {hand.delete_command(name)}"
