"""The kinds of faults: which calls each one concerns, with which parameters. Data only.

`fault` reads them, `model` and `api` act on them, docs/emulator.md explains them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

NODES = ("nodes.create", "nodes.get", "nodes.list", "nodes.delete", "nodes.patch", "nodes.getGuestAttributes")
MAINTENANCE = (
    *("nodes.simulateMaintenanceEvent", "nodes.performMaintenance"),
    "queuedResources.performMaintenanceQueuedResource",
)
POWER = ("nodes.start", "nodes.stop")
QUEUED = tuple(f"queuedResources.{verb}" for verb in ("create", "get", "list", "delete", "reset"))
OPERATIONS = (
    *(*NODES, *POWER, *MAINTENANCE, *QUEUED, "operations.get", "operations.list", "locations.get", "locations.list"),
    *("acceleratorTypes.get", "acceleratorTypes.list", "runtimeVersions.get", "runtimeVersions.list"),
    "reservations.list",
    *(f"osLogin.{verb}SshPublicKey" for verb in ("import", "get", "update", "delete")),
    "osLogin.getLoginProfile",
    *("compute.projects.get", "compute.firewalls.list", "compute.subnetworks.list", "compute.routers.list"),
    *("serviceUsage.services.get", "projects.testIamPermissions"),
    *(f"storage.objects.{verb}" for verb in ("list", "get", "insert", "delete")),
    "storage.buckets.get",
)
CREATES, DELETES = ("nodes.create", "queuedResources.create"), ("nodes.delete", "queuedResources.delete")
CHANGES = ("nodes.create", "nodes.delete", "nodes.patch", *POWER, *CREATES[1:], *DELETES[1:], "queuedResources.reset")
LISTS = ("nodes.list", "queuedResources.list", "operations.list", "locations.list", "storage.objects.list")


RELAY = ("relay.connect", "relay.reconnect")  # WebSockets, which no other fault concerns


class Role(StrEnum):
    """Where a fault acts. A call meets at most one EFFECT and one REPLY; every MODIFIER is added."""

    EFFECT = "effect"  # in the cloud: what the call does, or what it shows
    REPLY = "reply"  # on the wire: what the client gets
    MODIFIER = "modifier"


@dataclass(frozen=True, slots=True)
class Kind:
    """`parameters` are the defaults, which also set the types; `state` is the state of the node, where the kind needs one."""

    role: Role
    operations: tuple[str, ...] = OPERATIONS
    parameters: Mapping[str, Any] = field(default_factory=dict)
    state: str | None = None


KINDS: Mapping[str, Kind] = {
    # On the wire.
    # An HTTP error in Google's wording (502 is HTML; 404, too: a path that no API has); `effect`: the call works first;
    # `literal`: the whole body, sent as it is.
    "status": Kind(
        Role.REPLY,
        parameters={"status": 503, "message": "", "body": "auto", "literal": ""}
        | {"retry_after_s": 0.0, "effect": False},
    ),
    # The call takes effect, and the connection closes without a reply.
    "lost_reply": Kind(Role.REPLY),
    # The call does not take effect, and the connection closes without a reply.
    "drop": Kind(Role.REPLY),
    # No reply for `seconds`, then the connection closes; `effect`: the call took effect.
    "hang": Kind(Role.REPLY, parameters={"seconds": 60.0, "effect": False}),
    # 200 with a body that is not the API's: truncated, html, types (wrong ones), large (10 MB) or empty.
    "garbage": Kind(Role.REPLY, parameters={"form": "truncated", "size_bytes": 10 << 20, "effect": True}),
    # The reply takes `seconds` longer.
    "slow": Kind(Role.MODIFIER, parameters={"seconds": 1.0}),
    # The Date header is `seconds` ahead (negative: behind).
    "clock": Kind(Role.MODIFIER, parameters={"seconds": 86400.0}),
    # In the cloud: creates.
    # The resource exists, but is not visible for `seconds`.
    "hidden": Kind(Role.EFFECT, CREATES, {"seconds": 2.0}),
    # No reply, and the resource is created `seconds` later.
    "late": Kind(Role.EFFECT, CREATES, {"seconds": 5.0}),
    # No capacity: the operation fails and the node disappears.
    "stockout": Kind(Role.EFFECT, ("nodes.create",)),
    # The operation fails with `literal`, a google.rpc.Status as JSON, else with `code` and `message`; the node disappears, a
    # request stays as FAILED.
    "create_fails": Kind(Role.EFFECT, CREATES, {"code": "RESOURCE_EXHAUSTED", "message": "", "literal": ""}),
    # The operation fails, and the node stays in `state` until it is deleted.
    "create_fails_leaving_node": Kind(
        Role.EFFECT,
        ("nodes.create",),
        {"state": "CREATING", "code": "RESOURCE_EXHAUSTED", "message": "", "literal": ""},
    ),
    # In the cloud: changes.
    # Accepted; after `seconds` the operation ends with an error, and the node is as before.
    "operation_fails": Kind(Role.EFFECT, CHANGES, {"seconds": 1.5, "code": "INTERNAL", "message": "", "literal": ""}),
    # Accepted; after `seconds` the operation is done without error or result, and nothing happened.
    "operation_forgets": Kind(Role.EFFECT, CHANGES, {"seconds": 0.0}),
    # The change takes `seconds`; a stuck patch refuses every other change meanwhile.
    "stuck": Kind(Role.EFFECT, CHANGES, {"seconds": 3600.0}),
    # Accepted; the node stays DELETING, with its operation under way, until it is deleted again.
    "stalled": Kind(Role.EFFECT, ("nodes.delete",)),
    # A delete in CREATING is accepted and dropped; with `hidden` the node is absent until that state ends.
    "delete_dropped": Kind(Role.EFFECT, DELETES, {"seconds": 0.5, "hidden": True}, state="CREATING"),
    # 400 FAILED_PRECONDITION for a delete in CREATING.
    "refuse_delete": Kind(Role.EFFECT, DELETES, state="CREATING"),
    # In the cloud: reads.
    # A READY node shows the addresses of so many workers only.
    "few_endpoints": Kind(Role.EFFECT, ("nodes.get",), {"endpoints": 1}),
    # The list omits `zones` (default: all that the call names) and reports them as unreachable.
    "unreachable": Kind(Role.EFFECT, ("nodes.list", "queuedResources.list", "operations.list"), {"zones": []}),
    # The list shows the nodes of `seconds` ago.
    "stale_list": Kind(Role.EFFECT, ("nodes.list",), {"seconds": 30.0}),
    # Every page names the same next page.
    "page_loop": Kind(Role.EFFECT, LISTS),
    # The second page is a 500.
    "page_error": Kind(Role.EFFECT, LISTS),
    # The content of an object ends after so many bytes of the reply, or has a wrong byte (and the right size).
    "content_cut": Kind(Role.EFFECT, ("storage.objects.get",), {"after_bytes": 65536}),
    "content_wrong": Kind(Role.EFFECT, ("storage.objects.get",)),
    # At the relay of IAP: in place of the WebSocket an HTTP status, or at once a close code.
    "relay_reject": Kind(Role.EFFECT, RELAY, {"status": 403}),
    "relay_refuse": Kind(Role.EFFECT, RELAY, {"close_code": 4003}),
    # After so many bytes from the worker, this WebSocket is cut, closed with a code (which ends the tunnel), or goes silent
    # (0: it never answers).
    "relay_cut": Kind(Role.EFFECT, RELAY, {"after_bytes": 65536}),
    "relay_close": Kind(Role.EFFECT, RELAY, {"after_bytes": 65536, "close_code": 4000}),
    "relay_silent": Kind(Role.EFFECT, RELAY, {"after_bytes": 0}),
    "relay_slow": Kind(Role.EFFECT, RELAY, {"bytes_per_s": 65536.0}),
    # 404: the API has forgotten its operations.
    "operation_gone": Kind(Role.EFFECT, ("operations.get", "operations.list")),
}

CHOICES: Mapping[str, tuple[Any, ...]] = {
    "status": (400, 401, 403, 404, 409, 412, 429, 500, 502, 503, 504),
    "body": ("auto", "json", "html"),
    "form": ("truncated", "html", "types", "large", "empty"),
    "code": (
        *("INTERNAL", "RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "FAILED_PRECONDITION"),
        *("PERMISSION_DENIED", "CANCELLED"),
    ),
    "state": ("CREATING", "UNKNOWN", "REPAIRING", "TERMINATED"),
}
# What other numbers may be than those from 0 on, by the name of the parameter. WebSockets have no other close codes.
LIMITS: Mapping[str, Mapping[str, float]] = {"close_code": {"least": 1000, "most": 4999}, "bytes_per_s": {"least": 1}}
