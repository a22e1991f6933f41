"""What Cloud TPU is asked and what its replies mean: every call of the client, except create and change.

The rules about pages, names and absence are here. `TpuApi` sends a call; the simulator plays them without a network.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from orchestrator.errors import AuthError, BadRequest, CloudUnavailable, UnexpectedReply, Vanished, WrongState
from orchestrator.places.google.error_translation import NotFound
from orchestrator.places.google.fetch import ApiReply
from orchestrator.places.tpu.api import replies
from orchestrator.promise.lease import periods
from orchestrator.promise.lease.cloud_api import EVERYWHERE, Capabilities, Listing, Operation, SliceView, WorkerAddress
from orchestrator.promise.lease.guest_reports import min_read_interval_s
from orchestrator.promise.lease.lease import SliceName
from orchestrator.promise.lease.periods import Timings
from orchestrator.text import names

GOOGLE = "https://tpu.googleapis.com"
MAX_PAGES = 10_000
EMULATED_VISIBLE_S = 2.0  # the emulator shows a create at once, unless it is set to delay it
Row = TypeVar("Row", SliceView, Operation)

_TYPE = re.compile(r"[a-z][a-z0-9]{0,30}-[1-9][0-9]{0,6}")


class ApiCalls(ABC):
    """Each method asks by `_ask` alone. `endpoint` None is Google's."""

    def __init__(self, endpoint: str | None, *, emulated: bool, timings: Timings | None = None) -> None:
        self.endpoint = (endpoint or GOOGLE).rstrip("/")
        self.emulated = emulated
        self.capabilities = Capabilities(
            # Counted from when a create left: 5 minutes from its arrival (A1, docs/assumptions.md), and its timeout of 30 s.
            visible_within_s=EMULATED_VISIBLE_S if emulated else 330.0,
            settles_within_s=60.0 if emulated else 2700.0,
            leaves_within_s=1.0 if emulated else 10.0,
            timings=timings or (periods.emulated() if emulated else periods.GOOGLE),
        )

    @abstractmethod
    def _ask(self, call: str, request: Mapping[str, Any]) -> ApiReply:
        """Send one call, once, with a timeout. `call`: google-cloud-tpu's name; `request`: fields by their proto names.

        Raises a CloudError for any reply that is not a JSON object with a status below 300.
        """

    def _pages(self, call: str, request: Mapping[str, Any]) -> Iterator[ApiReply]:
        """Yield every page of a list. Raises UnexpectedReply if a page token repeats, which would never end."""
        seen = {""}
        token = ""
        for _ in range(MAX_PAGES):
            reply = self._ask(call, {**request, "page_token": token})
            yield reply
            token = reply.data.get("nextPageToken", "")
            if not isinstance(token, str):
                raise UnexpectedReply("the API named a next page that is not text", details=dict(reply.data))
            if not token:
                return
            if token in seen:
                raise UnexpectedReply("the API's list does not end: it named the same next page twice")
            seen.add(token)
        raise UnexpectedReply(f"the API's list has more than {MAX_PAGES} pages")

    def workers(self, name: SliceName) -> tuple[WorkerAddress, ...]:
        """Return the address of every worker, with what it publishes of itself. Raises as `Cloud.workers`."""
        with must_exist(name):
            node = self._node(name)
        replies.addresses(node)  # raises before the guest attributes, whose reads are limited to a few a minute
        try:
            published = self.guest_attributes(name)
        except CloudUnavailable as error:
            interval_s = min_read_interval_s(self.capabilities.timings.heartbeat_s)
            error.retry_after_s = max(error.retry_after_s or 0.0, interval_s)
            raise
        return replies.worker_addresses(node, published, emulated=self.emulated)

    def get(self, name: SliceName) -> SliceView | None:
        """Return the slice: its node, else the request for it; None if there is neither."""
        # The request first: once it does not exist, no node can be created from it between the two replies.
        queue = self._queue(name) if name.queued else None
        try:
            return replies.slice_view(self._node(name), name)
        except NotFound:
            return None if queue is None else replies.queue_view(queue, name)

    def _queue(self, name: SliceName) -> Mapping[str, Any] | None:
        """Return the queued resource of this name; None if there is none."""
        try:
            return self._named(name, "get_queued_resource", queue_path(name))
        except NotFound:
            return None

    def _node(self, name: SliceName) -> Mapping[str, Any]:
        """Return the node of this name. Raises NotFound."""
        return self._named(name, "get_node", path(name))

    def _named(self, name: SliceName, call: str, full: str) -> Mapping[str, Any]:
        """Return what a call answers about a name. Raises NotFound, UnexpectedReply if the answer has another name."""
        data = self._ask(call, {"name": full}).data
        if str(data.get("name", "")).rpartition("/")[2] != name.node:
            shown = repr(data.get("name"))[:200]
            raise UnexpectedReply(f"asked for {name.node}, the API answered {shown}", details=dict(data))
        return data

    def list(self, project: str, zone: str, queued: bool = False) -> Listing[SliceView]:
        """Return the nodes of a zone, or of all zones; `queued`: and the requests that have no node."""
        # All zones (AIP-159), as `gcloud compute tpus tpu-vm list --zone=-` requests them.
        full = f"{_project(project)}/locations/{EVERYWHERE}" if zone == EVERYWHERE else parent(project, zone)
        where, place = {"parent": full}, SliceName(project, zone, "")
        read_node, read_request = partial(replies.slice_view, asked=place), partial(replies.queue_view, asked=place)
        if not queued:
            return self._listed("list_nodes", where, "nodes", read_node)
        requests = self._listed("list_queued_resources", where, "queuedResources", read_request)
        listing = self._listed("list_nodes", where, "nodes", read_node)
        with_node = {(row.name.zone, row.name.node) for row in listing.rows}
        waiting = (row for row in requests.rows if (row.name.zone, row.name.node) not in with_node)
        unreachable = dict.fromkeys((*requests.unreachable, *listing.unreachable))
        return Listing((*listing.rows, *waiting), tuple(unreachable), requests.server_now)

    def _listed(
        self, call: str, request: Mapping[str, str], field: str, read: Callable[[Mapping[str, Any]], Row]
    ) -> Listing[Row]:
        """Return all pages of a list, each row as `read` has it. A name that comes twice counts once, as it came last."""
        rows: dict[object, Row] = {}
        unreachable: dict[str, None] = {}
        first: ApiReply | None = None
        for page in self._pages(call, request):
            first = first or page
            rows.update((found.name, found) for found in map(read, _objects(page.data, field)))
            unreachable.update(dict.fromkeys(_list(page.data, "unreachable", str, "names")))
        return Listing(tuple(rows.values()), tuple(unreachable), first.server_now if first else None)

    def zones(self, project: str) -> Listing[str]:
        """Return the zones that the API names to the project."""
        zones = self._texts("list_locations", {"name": _project(project)}, "locations", "locationId")
        return Listing(tuple(zone for zone in zones if names.zone_problem(zone) is None))

    def accelerator_types(self, project: str, zone: str) -> Listing[str]:
        """Return the accelerator types that the API lists for the project in that zone."""
        types = self._texts("list_accelerator_types", {"parent": parent(project, zone)}, "acceleratorTypes", "type")
        return Listing(tuple(kind for kind in types if _TYPE.fullmatch(kind)))

    def _texts(self, call: str, request: Mapping[str, str], field: str, key: str) -> dict[str, None]:
        """Return one text of each row of a list, in order, each once."""
        rows = (row for page in self._pages(call, request) for row in _objects(page.data, field))
        return dict.fromkeys(str(row.get(key, "")) for row in rows)

    def delete(self, name: SliceName) -> Operation | None:
        """Delete the slice, a request with its node; return the operation, None if there is nothing to delete."""
        if not name.queued:
            return self._delete("delete_node", {"name": path(name)})
        try:
            request = self._delete("delete_queued_resource", {"name": queue_path(name), "force": True})
        except AuthError:
            self._delete("delete_node", {"name": path(name)})  # the request stays; the node, which is billed, need not
            raise
        return request or self._delete("delete_node", {"name": path(name)})

    def _delete(self, call: str, request: Mapping[str, Any]) -> Operation | None:
        """Send a delete; return its operation, None for a 404."""
        try:
            return replies.operation(self._ask(call, request).data)
        except NotFound:
            return None

    def operation(self, name: str) -> Operation | None:
        """Return the operation of this name; None if the API knows none."""
        if not replies.OPERATION.fullmatch(name):
            raise BadRequest(f"{name[:200]!r} is not the name of an operation")
        try:
            return replies.operation(self._ask("get_operation", {"name": name}).data)
        except NotFound:
            return None

    def operations(self, project: str, zone: str) -> Listing[Operation]:
        """Return the operations of a zone."""
        return self._listed("list_operations", {"name": parent(project, zone)}, "operations", replies.operation)

    def guest_attributes(self, name: SliceName) -> tuple[Mapping[str, str], ...]:
        """Return nothing if the node publishes nothing or they may not be read: then `hosts` reports missing host keys."""
        try:
            data = self._ask("get_guest_attributes", {"name": path(name)}).data
        except (NotFound, AuthError, BadRequest, WrongState):
            if self.emulated:
                raise
            return ()
        return tuple(replies.attributes(entry) for entry in _objects(data, "guestAttributes"))


@contextmanager
def must_exist(name: SliceName) -> Iterator[None]:
    """Raise Vanished where the API says that the slice is not there."""
    try:
        yield
    except NotFound as error:
        message = f"{name.node} does not exist in {name.zone} (any more)"
        raise Vanished(message, details=error.details) from error


def parent(project: str, zone: str) -> str:
    """Return the full name of a location. Raises BadRequest for an invalid project or zone."""
    whole = _project(project)
    if problem := names.zone_problem(zone):
        raise BadRequest(f"{zone!r} {problem}")
    return f"{whole}/locations/{zone}"


def _project(project: str) -> str:
    if problem := names.project_problem(project):
        raise BadRequest(f"{project!r} {problem}")
    return f"projects/{project}"


def path(name: SliceName) -> str:
    """Return the full name of the node. Raises BadRequest if any part is invalid."""
    return _full(name, "nodes")


def queue_path(name: SliceName) -> str:
    """Return the full name of the queued resource. Raises BadRequest if any part is invalid."""
    return _full(name, "queuedResources")


def _full(name: SliceName, kind: str) -> str:
    if problem := names.node_problem(name.node):
        raise BadRequest(f"{name.node!r} {problem}")
    return f"{parent(name.project, name.zone)}/{kind}/{name.node}"


def _objects(data: Mapping[str, Any], field: str) -> tuple[dict[str, Any], ...]:
    return _list(data, field, dict, "objects")


def _list(data: Mapping[str, Any], field: str, kind: type[Any], what: str) -> tuple[Any, ...]:
    rows = data.get(field, [])
    if not isinstance(rows, list) or not all(isinstance(row, kind) for row in rows):
        raise UnexpectedReply(f"the API answered {field} that are not a list of {what}", details=dict(data))
    return tuple(rows)
