"""Ask the API for every slice of tpujob in a project, whichever user or machine made it, in a bounded time.

`status` and `down` ask here; the ledger only adds what this machine recorded about a slice. Each answer states how complete it
is: a question that failed has its error, a list that left zones out names them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cloud_tpu_emulator.daemon import control
from orchestrator import places
from orchestrator import traits as place_traits
from orchestrator.api.session.session import Session
from orchestrator.errors import NOT_PROVEN, AuthError, CloudError, CloudUnavailable, ConfigError
from orchestrator.places.area import Area
from orchestrator.promise.lease.lease import Lease, SliceName
from orchestrator.system.lazy import Later
from orchestrator.text import names
from orchestrator.text.units import clock

if TYPE_CHECKING:
    from orchestrator.promise.lease import cloud_api
else:  # where a cloud is asked
    cloud_api = Later("orchestrator.promise.lease.cloud_api")

ASK_S = 20.0  # for all questions of a command together
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0


@dataclass
class ProjectInventory:
    """The slices of one project of one cloud. Its thread fills it in as answers arrive, so what arrived in time counts."""

    cloud: str
    project: str
    namespaces: tuple[str, ...] = ()  # of a cluster: those that are asked about
    running: bool = True  # False: its emulator is not running, and so it has no slices
    at: float | None = None  # unix seconds of the last list: the server's clock, else this machine's; None: no list
    server_now: float | None = None  # the same by the server's clock; None: not stated
    unreachable: tuple[str, ...] = ()
    error: CloudError | None = None
    # By zone and node: slices with our name and our label; in `doubtful`, why those with one of the two are listed.
    views: dict[tuple[str, str], cloud_api.SliceView] = field(default_factory=dict)
    doubtful: dict[tuple[str, str], str] = field(default_factory=dict)
    others: dict[tuple[str, str], cloud_api.SliceView] = field(default_factory=dict)  # the same, with neither
    # By lease id: what `get` answered for leases that were not listed.
    single: dict[str, cloud_api.SliceView | CloudError | None] = field(default_factory=dict)
    bug: BaseException | None = None

    @property
    def complete(self) -> bool:
        return self.error is None and not self.unreachable

    @property
    def exit_code(self) -> int:
        """0 when complete; 77 without credentials or a permission; else 75."""
        if self.complete:
            return 0
        return AuthError.exit_code if isinstance(self.error, AuthError) else NOT_PROVEN

    @property
    def summary(self) -> str:
        """One line: which cloud was asked, when, and how completely."""
        traits = place_traits.traits_of(self.cloud)
        place = "emulated cloud" if place_traits.is_emulated(self.cloud) else f"project {self.project}"
        if not traits.one_list:
            place = f"cluster {self.project.partition('@')[0]}, {traits.area} {', '.join(self.namespaces)}"
        if not self.running:
            return f"{place} · its emulator is not running, so nothing runs there"
        asked = "NOT ASKED" if self.at is None else f"asked the API at {clock(self.at)}"
        if self.complete:
            return f"{place} · {asked} · {'all zones, ' if traits.one_list else ''}complete"
        return f"{place} · {asked}{'' if self.at is None else ' · NOT COMPLETE'}: {self.why}"

    @property
    def why(self) -> str:
        """Why it is not complete; empty when it is."""
        error = [self.error.message] if self.error else []
        return "; ".join([*error, *([f"no answer from {', '.join(self.unreachable)}"] if self.unreachable else [])])

    def view_of(self, lease: Lease) -> cloud_api.SliceView | CloudError | None:
        """The slice of the lease; None: not visible; an error: unknown."""
        listed = self.views.get(_key(lease.name))
        return listed or self.single.get(
            lease.id, self.error or CloudUnavailable("it was created after the API was asked")
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "cloud": self.cloud,
            "project": self.project,
            "running": self.running,
            "asked_at": self.at,
            "complete": self.complete,
            "unreachable": list(self.unreachable),
            "problem": self.error.message if self.error else None,
        }


def worst(inventories: Iterable[ProjectInventory]) -> int:
    """Return the exit code of all of them: 75 outranks 77."""
    codes = {each.exit_code for each in inventories}
    return next((code for code in (NOT_PROVEN, AuthError.exit_code) if code in codes), 0)


def ask(session: Session, leases: list[Lease], *, alone: bool = False) -> list[ProjectInventory]:
    """Return the inventory of the session's project, then of every other project of these leases, within ASK_S seconds.

    Also of what the settings name beside it, such as a cluster, unless `alone`.

    Raises no CloudError: it is in the inventory.
    """
    by_place: dict[tuple[str, str], list[Lease]] = {(session.target.kind, session.target.project): []}
    for lease in leases:
        by_place.setdefault((lease.cloud, lease.name.project), []).append(lease)
    give_up_at = time.monotonic() + ASK_S
    areas = {(area.cloud, area.project): tuple(area.parts or ()) for area in _named(session) if not alone}
    for place in areas:
        by_place.setdefault(place, [])
    asking = [
        _begin(session, *place, of_place, give_up_at, areas.get(place, ())) for place, of_place in by_place.items()
    ]
    return [_wait(session, asked, thread, give_up_at) if thread else asked for asked, thread in asking]


def _named(session: Session) -> Iterator[Area]:
    """Yield what the settings name: there may be slices and jobs of other machines."""
    for name in place_traits.billed():
        try:
            area = places.areas_on(name).named(session.target)
        except ConfigError as error:
            session.reporter.notice("status", f"`{name}:` of your settings is not asked: {error.message}")
            continue
        if area is not None:
            yield area


def _begin(
    session: Session, kind: str, project: str, leases: list[Lease], give_up_at: float, configured: tuple[str, ...] = ()
) -> tuple[ProjectInventory, threading.Thread | None]:
    namespaces = dict.fromkeys((*configured, *(lease.name.zone for lease in leases)))
    asked = ProjectInventory(kind, project, () if place_traits.traits_of(kind).one_list else tuple(namespaces))
    if not leases and _has_no_emulator(session, kind):
        asked.running = False
        return asked, None
    try:
        cloud = session.world(kind).cloud
    except CloudError as error:
        asked.error = error
        return asked, None

    def work() -> None:
        try:
            _look(asked, cloud, leases, give_up_at)
        except BaseException as error:
            asked.bug = error

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return asked, thread


def _has_no_emulator(session: Session, kind: str) -> bool:
    """An emulator that does not run has no slices, and is not started to be asked."""
    own = place_traits.is_emulated(kind) and session.target.endpoint is None
    return own and control.running(session.emulator_directory) is None


def _wait(session: Session, asked: ProjectInventory, thread: threading.Thread, give_up_at: float) -> ProjectInventory:
    """Return what arrived by `give_up_at`, or the whole answer before that."""
    while thread.is_alive() and (left_s := give_up_at - time.monotonic()) > 0:
        session.reporter.progress("status", f"asking the API about project {asked.project}, {left_s:.0f} s left")
        thread.join(min(left_s, 1.0))
    if asked.bug is not None:
        raise asked.bug
    if not thread.is_alive():
        return asked
    late = asked.error or CloudUnavailable(f"the API gave no complete answer within {ASK_S:.0f} s")
    return replace(
        asked,
        error=late,
        views={**asked.views},
        doubtful={**asked.doubtful},
        others={**asked.others},
        single={**asked.single},
    )


def _look(asked: ProjectInventory, cloud: cloud_api.Cloud, leases: list[Lease], give_up_at: float) -> None:
    pause_s = FIRST_PAUSE_S
    while True:
        error = _list(asked, cloud)
        wait_s = (error.retry_after_s if isinstance(error, CloudUnavailable) else None) or pause_s
        if not isinstance(error, CloudUnavailable) or time.monotonic() + wait_s >= give_up_at:
            break
        time.sleep(wait_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
    asked.error = error
    for lease in leases:
        if _key(lease.name) not in asked.views:
            try:
                asked.single[lease.id] = cloud.get(lease.name)
            except CloudError as no_answer:
                asked.single[lease.id] = no_answer


def _list(asked: ProjectInventory, cloud: cloud_api.Cloud) -> CloudError | None:
    """List nodes and queued requests; where requests cannot be listed, the nodes alone, which are what is billed."""
    try:
        _note(asked, cloud, queued=True)
    except CloudError as silent:
        try:
            _note(asked, cloud, queued=False)
        except CloudError as error:
            return error
        silent.message = f"its queued requests cannot be listed: {silent.message}"
        return silent
    return None


def _note(asked: ProjectInventory, cloud: cloud_api.Cloud, *, queued: bool) -> None:
    # To list all namespaces of a cluster takes a permission that few have.
    places_there = asked.namespaces or (cloud_api.EVERYWHERE,)
    listings = [cloud.list(asked.project, place, queued=queued) for place in places_there]
    asked.server_now = next((each.server_now for each in listings if each.server_now is not None), None)
    asked.at = asked.server_now or time.time()
    asked.unreachable = tuple(place.rpartition("/")[2] for each in listings for place in each.unreachable)
    for view in (row for each in listings for row in each.rows):
        if names.is_ours(view.name.node, view.labels):
            asked.views[_key(view.name)] = view
        elif half := names.ownership_doubt(view.name.node, view.labels):
            asked.views[_key(view.name)], asked.doubtful[_key(view.name)] = view, half
        else:
            asked.others[_key(view.name)] = view


def _key(name: SliceName) -> tuple[str, str]:
    return name.zone, name.node
