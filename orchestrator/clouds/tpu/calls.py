"""What both clients of the Cloud TPU API ask in the same words and read in the same way: everything but create and change.

`TpuApi` carries a question out through google-cloud-tpu, `LightApi` through the standard library; what comes back is the
same JSON, and the rules for pages, names and absence are written here once.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from orchestrator.clouds.tpu import replies
from orchestrator.clouds.tpu.error_translation import NotFound
from orchestrator.core.lease import timings as claim_timings
from orchestrator.core.lease.slices import EVERYWHERE, Capabilities, Listing, Operation, SliceName, SliceView
from orchestrator.core.lease.timings import Timings
from orchestrator.core.text import names
from orchestrator.errors import AuthError, BadRequest, UnexpectedReply, WrongState

GOOGLE = "https://tpu.googleapis.com"
MAX_PAGES = 10_000
EMULATED_VISIBLE_S = 2.0  # the emulator shows what was created at once, unless it is told not to
_TYPE = re.compile(r"[a-z][a-z0-9]{0,30}-[1-9][0-9]{0,6}")


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply: its JSON, and when the server says that it wrote it (the Date header)."""

    said: Mapping[str, Any]
    date: str | None = None

    @property
    def server_now(self) -> float | None:
        """Unix seconds; None when it did not say."""
        try:
            return parsedate_to_datetime(self.date or "").timestamp()
        except (TypeError, ValueError):
            return None


class ApiCalls(ABC):
    """`call` is the method's name in google-cloud-tpu, `request` its fields by their proto names."""

    emulated: bool
    capabilities: Capabilities

    @abstractmethod
    def _ask(self, call: str, request: Mapping[str, Any]) -> Answer:
        """Tried once, with a timeout. Raises a CloudError for whatever is not a JSON object with a status below 300."""

    def get(self, name: SliceName) -> SliceView | None:
        # The queue first: once it has no such request, no node can come of it between the two answers.
        queue = self._queue(name) if name.queued else None
        try:
            return replies.slice_view(self._node(name), name)
        except NotFound:
            return None if queue is None else replies.queue_view(queue, name)

    def _queue(self, name: SliceName) -> Mapping[str, Any] | None:
        try:
            return self._named(name, "get_queued_resource", queue_path(name))
        except NotFound:
            return None

    def _node(self, name: SliceName) -> Mapping[str, Any]:
        return self._named(name, "get_node", path(name))

    def _named(self, name: SliceName, call: str, full: str) -> Mapping[str, Any]:
        said = self._ask(call, {"name": full}).said
        if str(said.get("name", "")).rpartition("/")[2] != name.node:
            shown = repr(said.get("name"))[:200]
            raise UnexpectedReply(f"asked for {name.node}, the API answered {shown}", details=dict(said))
        return said

    def list(self, project: str, zone: str, queued: bool = False) -> Listing[SliceView]:
        nodes = ("list_nodes", "nodes", replies.slice_view)
        if not queued:
            return self._listed(project, zone, *nodes)
        requests = self._listed(project, zone, "list_queued_resources", "queuedResources", replies.queue_view)
        listing = self._listed(project, zone, *nodes)
        alive = {(row.name.zone, row.name.node) for row in listing.rows}
        waiting = (row for row in requests.rows if (row.name.zone, row.name.node) not in alive)
        unreachable = dict.fromkeys((*requests.unreachable, *listing.unreachable))
        return Listing((*listing.rows, *waiting), tuple(unreachable), requests.server_now)

    def _listed(
        self, project: str, zone: str, call: str, field: str, read: Callable[[Mapping[str, Any], SliceName], SliceView]
    ) -> Listing[SliceView]:
        here = SliceName(project, zone, "")
        rows: dict[SliceName, SliceView] = {}
        unreachable: list[str] = []
        dates: list[float | None] = []

        def fetch(token: str) -> str:
            place = _anywhere(project) if zone == EVERYWHERE else parent(project, zone)
            answer = self._ask(call, {"parent": place, "page_token": token})
            for row in dicts(answer.said, field):
                view = read(row, here)
                rows[view.name] = view
            unreachable.extend(words(answer.said, "unreachable"))
            dates.append(answer.server_now)
            return next_page(answer.said)

        every_page(fetch)
        return Listing(tuple(rows.values()), tuple(dict.fromkeys(unreachable)), dates[0])

    def zones(self, project: str) -> Listing[str]:
        whole = _project(project)
        rows: dict[str, None] = {}

        def fetch(token: str) -> str:
            said = self._ask("list_locations", {"name": whole, "page_token": token}).said
            rows.update(dict.fromkeys(str(row.get("locationId", "")) for row in dicts(said, "locations")))
            return next_page(said)

        every_page(fetch)
        return Listing(tuple(zone for zone in rows if names.zone_problem(zone) is None))

    def accelerator_types(self, project: str, zone: str) -> Listing[str]:
        """What the project may ask for in that zone, by the API's own word."""
        rows: dict[str, None] = {}

        def fetch(token: str) -> str:
            said = self._ask("list_accelerator_types", {"parent": parent(project, zone), "page_token": token}).said
            rows.update(dict.fromkeys(str(row.get("type", "")) for row in dicts(said, "acceleratorTypes")))
            return next_page(said)

        every_page(fetch)
        return Listing(tuple(kind for kind in rows if _TYPE.fullmatch(kind)))

    def delete(self, name: SliceName) -> Operation | None:
        if not name.queued:
            return self._delete("delete_node", {"name": path(name)})
        try:
            request = self._delete("delete_queued_resource", {"name": queue_path(name), "force": True})
        except AuthError:
            self._delete("delete_node", {"name": path(name)})  # the request has to stay; what is billed has not
            raise
        return request or self._delete("delete_node", {"name": path(name)})

    def _delete(self, call: str, request: Mapping[str, Any]) -> Operation | None:
        try:
            return replies.operation(self._ask(call, request).said)
        except NotFound:
            return None

    def operation(self, name: str) -> Operation | None:
        if not replies.OPERATION.fullmatch(name):
            raise BadRequest(f"{name[:200]!r} is not the name of an operation")
        try:
            return replies.operation(self._ask("get_operation", {"name": name}).said)
        except NotFound:
            return None

    def operations(self, project: str, zone: str) -> Listing[Operation]:
        rows: dict[str, Operation] = {}
        unreachable: list[str] = []

        def fetch(token: str) -> str:
            said = self._ask("list_operations", {"name": parent(project, zone), "page_token": token}).said
            for row in dicts(said, "operations"):
                found = replies.operation(row)
                rows[found.name] = found
            unreachable.extend(words(said, "unreachable"))
            return next_page(said)

        every_page(fetch)
        return Listing(tuple(rows.values()), tuple(dict.fromkeys(unreachable)))

    def guest_attributes(self, name: SliceName) -> tuple[Mapping[str, str], ...]:
        """Nothing where the node publishes nothing or we may not read it: then there is no host key, and `remote` says so."""
        try:
            said = self._ask("get_guest_attributes", {"name": path(name)}).said
        except (NotFound, AuthError, BadRequest, WrongState):
            if self.emulated:
                raise
            return ()
        return tuple(replies.attributes(entry) for entry in dicts(said, "guestAttributes"))


def capabilities(
    *, emulated: bool, visible_within_s: float | None, settles_within_s: float | None, timings: Timings | None
) -> Capabilities:
    """What this API promises, the same whoever asks it."""
    return Capabilities(
        cloud_deadline=False,
        multi_host=True,
        queue=True,
        idempotent_create="name",
        owner_filter="client",
        preempt_action="tombstone",
        # Counted from when a create left: 5 minutes from its arrival (A1), and the 30 s after which the call is given up.
        visible_within_s=_either(visible_within_s, EMULATED_VISIBLE_S if emulated else 330.0),
        settles_within_s=_either(settles_within_s, 60.0 if emulated else 2700.0),
        timings=timings or (claim_timings.emulated() if emulated else claim_timings.GOOGLE),
    )


def parent(project: str, zone: str) -> str:
    whole = _project(project)
    if problem := names.zone_problem(zone):
        raise BadRequest(f"{zone!r} {problem}")
    return f"{whole}/locations/{zone}"


def _anywhere(project: str) -> str:
    """The parent of a list over all zones (AIP-159), as `gcloud compute tpus tpu-vm list --zone=-` asks it."""
    return f"{_project(project)}/locations/{EVERYWHERE}"


def _project(project: str) -> str:
    if problem := names.project_problem(project):
        raise BadRequest(f"{project!r} {problem}")
    return f"projects/{project}"


def path(name: SliceName) -> str:
    return _full(name, "nodes")


def queue_path(name: SliceName) -> str:
    return _full(name, "queuedResources")


def _full(name: SliceName, kind: str) -> str:
    if problem := names.node_problem(name.node):
        raise BadRequest(f"{name.node!r} {problem}")
    return f"{parent(name.project, name.zone)}/{kind}/{name.node}"


def every_page(fetch: Callable[[str], str]) -> None:
    """`fetch` takes a page token and gives the next one. A token that comes twice would go on for ever."""
    seen: set[str] = set()
    token = ""
    for _ in range(MAX_PAGES):
        token = fetch(token)
        if not token:
            return
        if token in seen:
            raise UnexpectedReply("the API's list goes round in circles: it named the same next page twice")
        seen.add(token)
    raise UnexpectedReply(f"the API's list has more than {MAX_PAGES} pages")


def next_page(said: Mapping[str, Any]) -> str:
    token = said.get("nextPageToken", "")
    if not isinstance(token, str):
        raise UnexpectedReply("the API named a next page that is no text", details=dict(said))
    return token


def dicts(said: Mapping[str, Any], field: str) -> tuple[dict[str, Any], ...]:
    rows = said.get(field, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UnexpectedReply(f"the API answered {field} that are not a list of objects", details=dict(said))
    return tuple(rows)


def words(said: Mapping[str, Any], field: str) -> tuple[str, ...]:
    rows = said.get(field, [])
    if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
        raise UnexpectedReply(f"the API answered {field} that are not a list of names", details=dict(said))
    return tuple(rows)


def _either(given: float | None, default: float) -> float:
    return default if given is None else given
