"""What a request names (the method, the resource, the query, the fault that it meets), and the routes that reply to it.

For all routes and the middlewares. Faults and the request log use the same names.
"""

import base64
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

from aiohttp import web

from cloud_tpu_emulator.faults import api_errors
from cloud_tpu_emulator.faults.api_errors import ApiError, bad_field
from cloud_tpu_emulator.faults.fault import Fault
from cloud_tpu_emulator.model.records import OperationRecord, Resource, Settings, startup_script_of
from cloud_tpu_emulator.vms.driver import SCRIPT_OFF, Driver
from cloud_tpu_emulator.wire import requests
from cloud_tpu_emulator.wire.node_schema import camel
from cloud_tpu_emulator.wire.replies import operation_json
from cloud_tpu_emulator.wire.requests import json_object

ZONE = "/{version:v2|v2alpha1}/projects/{project}/locations/{zone}"
NEW_IDS = {"nodes": "nodeId", "queuedResources": "queuedResourceId"}
DEFAULT_PAGE, MAX_PAGE = 100, 1000

Json = dict[str, Any]
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Json | OperationRecord | web.StreamResponse]])


class ApiCall:
    """One request to the API. `effect` is the fault that the cloud applies, as `fault_injection` decided; None: no fault."""

    def __init__(self, request: web.Request) -> None:
        self.request, self.parts = request, request.match_info
        self.query = {camel(key): value for key, value in request.query.items()}
        self.effect: Fault | None = request.get("effect")

    @property
    def version(self) -> str:
        """The version of the API."""
        return self.parts["version"]

    @property
    def project_and_zone(self) -> tuple[str, str]:
        """The project and the zone, as given."""
        return self.parts["project"], self.parts["zone"]

    def place(self) -> tuple[str, str]:
        """Return project and zone. Raises ApiError for an unknown zone."""
        requests.check_location(*self.project_and_zone)
        return self.project_and_zone

    def parent(self) -> str:
        """Return projects/…/locations/…. Raises ApiError for an unknown zone."""
        project, zone = self.place()
        return f"projects/{project}/locations/{zone}"

    def name(self, collection: str, key: str) -> str:
        """Return the full name of the resource that the path names by `key`. Raises ApiError for an unknown zone."""
        return f"{self.parent()}/{collection}/{self.parts[key]}"

    async def body(self) -> Json:
        """Return the body. Raises ApiError if it is not a JSON object."""
        return await json_object(self.request)

    async def fields(self) -> Json:
        """Return the body with camelCase names. Raises ApiError if it is not a JSON object."""
        return {camel(key): value for key, value in (await self.body()).items()}

    def mark(self, made: Resource, settings: Settings, *specs: Json) -> None:
        """Note whose it is, and in the request log if startup-scripts of its nodes (with these specs) do not run."""
        made.trusted = self.request.get("trusted", False)
        if any(map(startup_script_of, specs)) and not settings.runs_scripts(made.trusted):
            self.request["note"] = SCRIPT_OFF

    def page(self, collection: str, rows: Sequence[Json], more: Json | None = None) -> Json:
        """Return one page of a list, with `more` fields. A token holds the number of rows already shown.

        Raises ApiError for a bad size or token.
        """
        size, token, kind = self.query.get("pageSize"), self.query.get("pageToken"), self.effect and self.effect.kind
        try:
            start = int(base64.urlsafe_b64decode(token).decode().removeprefix("from:")) if token else 0
        except ValueError:
            raise ApiError("INVALID_ARGUMENT", "The page token is invalid.") from None
        try:
            page_size = int(size or 0)
        except ValueError:
            raise ApiError("INVALID_ARGUMENT", f'The page size "{size}" is not a number.') from None
        if page_size < 0 or start < 0:
            raise ApiError("INVALID_ARGUMENT", "The page size must not be negative.")
        if kind == "page_error" and token:
            raise api_errors.internal()
        end = 1 if kind == "page_error" else start + min(page_size or DEFAULT_PAGE, MAX_PAGE)
        shown = rows[start:end]
        result: Json = {collection: shown} if shown else {}
        if end < len(rows) or kind in ("page_error", "page_loop"):
            following = 0 if kind == "page_loop" else end
            result["nextPageToken"] = base64.urlsafe_b64encode(f"from:{following}".encode()).decode()
        return result | (more or {})


def route(verb: str, path: str, operation: str | None = None) -> Callable[[Handler], Handler]:
    """Mark a method of an `Api` as the handler of this route. `operation`: the method's name in the API, as in faults."""

    def mark(handler: Handler) -> Handler:
        vars(handler).setdefault("marks", []).append((verb, path, operation))
        return handler

    return mark


class Api:
    """Routes. Their handlers return JSON, the operation of a change, or a whole response.

    `service`: of an API that a project may not have enabled, such as oslogin.googleapis.com.
    """

    service: ClassVar[str | None] = None

    def __init__(self, driver: Driver) -> None:
        self.driver, self.state = driver, driver.state

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of all handlers."""
        return [
            web.route(verb, path, partial(self._reply, getattr(self, name), operation=operation))
            for name, handler in vars(type(self)).items()
            for verb, path, operation in getattr(handler, "marks", ())
        ]

    def admit(self, operation: str | None, project: str) -> None:
        """Raise ApiError if the project has not enabled the API."""
        if self.service in self.state.settings.disabled_apis:
            raise api_errors.api_disabled(self.service, project)

    async def _reply(self, handler: Handler, request: web.Request, *, operation: str | None) -> web.StreamResponse:
        """Let time pass up to now, then reply. `operation` is for `method_of`."""
        self.driver.advance()
        self.admit(operation, request.match_info.get("project", "emulated"))
        if (version := request.match_info.get("version")) is not None:  # of Cloud TPU
            check(method_of(request), version, request.query)
        reply = await handler(ApiCall(request))
        # A write to one of the daemon's own paths, of which most change something.
        is_own = operation is None and request.method != "GET"
        if is_own or isinstance(reply, OperationRecord):
            self.driver.changed()
        if isinstance(reply, OperationRecord):
            reply = operation_json(reply, request.match_info["version"])
        return reply if isinstance(reply, web.StreamResponse) else web.json_response(reply)


def method_of(request: web.Request) -> str | None:
    """Return the name of the method (nodes.get); None for a path that is not of this API."""
    handler = request.match_info.handler
    operation: str | None = handler.keywords["operation"] if isinstance(handler, partial) else None
    return operation and operation.format_map(request.match_info)


def resource_of(request: web.Request) -> str:
    """Return the full name of the node, queued resource, operation, place or user that the request names."""
    parts = request.match_info
    if "user" in parts:
        return f"users/{parts['user']}"
    if "bucket" in parts:
        return f"buckets/{parts['bucket']}"
    name = f"projects/{parts['project']}/locations/{parts.get('zone', '-')}"
    for collection, key in (("nodes", "node"), ("queuedResources", "queued"), ("operations", "operation")):
        if key in parts:
            return f"{name}/{collection}/{parts[key]}"
    collection, _, verb = (method_of(request) or "").partition(".")
    given = ApiCall(request).query.get(NEW_IDS[collection]) if verb == "create" else None
    return f"{name}/{collection}/{given}" if given else name


# The query parameters that each method of the Cloud TPU API has; any other is refused, as by Google.

# Of every method, beside all that begin with $.
SYSTEM = frozenset(("access_token", "alt", "callback", "fields", "key", "oauth_token", "prettyPrint", "quotaUser",
    "uploadType", "upload_protocol"))  # fmt: skip
_PAGES = {"pageSize", "pageToken"}
QUERY = {
    "locations.list": _PAGES | {"filter", "extraLocationTypes"},
    "acceleratorTypes.list": _PAGES | {"filter", "orderBy"},
    "runtimeVersions.list": _PAGES | {"filter", "orderBy"},
    "nodes.create": {"nodeId"},
    "nodes.list": _PAGES,
    "nodes.patch": {"updateMask"},
    "queuedResources.create": {"queuedResourceId", "requestId"},
    "queuedResources.delete": {"force", "requestId"},
    "queuedResources.list": _PAGES,
    "operations.list": _PAGES | {"filter", "returnPartialSuccess"},
    "reservations.list": _PAGES,
}
ALPHA_QUERY = {"nodes.create": {"nodeId", "requestId"}, "nodes.delete": {"requestId"}}


def known(method: str | None, version: str) -> set[str]:
    """Return the parameters of a method such as `nodes.create`, besides SYSTEM; of TPU Nodes (None), those of all methods."""
    if method is None:
        return set().union(*QUERY.values())
    return ALPHA_QUERY.get(method, QUERY.get(method, set())) if version == "v2alpha1" else QUERY.get(method, set())


def check(method: str | None, version: str, names: Iterable[str]) -> None:
    """Raise ApiError for a parameter that the method does not have."""
    for name in names:
        if not name.startswith("$") and name not in SYSTEM and camel(name) not in known(method, version):
            raise bad_field(
                f'Unknown name "{name}": Cannot bind query parameter. '
                f"Field '{name}' could not be found in request message."
            )
