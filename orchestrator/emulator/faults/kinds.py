"""The vocabulary of faults: what can go wrong, at which calls, with which parameters. Data, and nothing else.

`faults` reads and counts them, `cloud_state` and the daemon's wire act on them, docs/emulator.md explains them.
"""

from __future__ import annotations

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
)
CREATES, DELETES = ("nodes.create", "queuedResources.create"), ("nodes.delete", "queuedResources.delete")
CHANGES = ("nodes.create", "nodes.delete", "nodes.patch", *POWER, *CREATES[1:], *DELETES[1:], "queuedResources.reset")
LISTS = ("nodes.list", "queuedResources.list", "operations.list", "locations.list")


class Role(StrEnum):
    """Of each call at most one EFFECT and one ENDING happen; every MODIFIER comes on top."""

    EFFECT = "effect"  # in the cloud itself: what the call does, or what it sees
    ENDING = "ending"  # on the wire: what becomes of the reply
    MODIFIER = "modifier"


@dataclass(frozen=True, slots=True)
class Kind:
    """`parameters` holds the defaults, and by them the types; `state` is the node's state it is about, if it is."""

    role: Role
    says: str
    operations: tuple[str, ...] = OPERATIONS
    parameters: Mapping[str, Any] = field(default_factory=dict)
    state: str | None = None


KINDS: Mapping[str, Kind] = {
    # On the wire.
    "status": Kind(
        Role.ENDING,
        "an HTTP error, in Google's words (502 in HTML; 404 too: a path that no API has); `effect`: it happened first",
        parameters={"status": 503, "message": "", "body": "auto", "retry_after_s": 0.0, "effect": False},
    ),
    "lost_reply": Kind(Role.ENDING, "it happens, and the connection closes without a reply"),
    "drop": Kind(Role.ENDING, "it does not happen, and the connection closes without a reply"),
    "hang": Kind(
        Role.ENDING,
        "no reply for `seconds`, then the connection closes; `effect`: it happened",
        parameters={"seconds": 60.0, "effect": False},
    ),
    "garbage": Kind(
        Role.ENDING,
        "200 with a body that is not the API's: truncated, html, types (wrong ones), large (10 MB) or empty",
        parameters={"form": "truncated", "size_bytes": 10 << 20, "effect": True},
    ),
    "slow": Kind(Role.MODIFIER, "it takes `seconds` longer", parameters={"seconds": 1.0}),
    "clock": Kind(Role.MODIFIER, "the Date header is `seconds` ahead (or behind)", parameters={"seconds": 86400.0}),
    # In the cloud: creating.
    "hidden": Kind(
        Role.EFFECT,
        "what is created exists, but nobody can see it for `seconds`",
        CREATES,
        {"seconds": 2.0},
    ),
    "late": Kind(
        Role.EFFECT,
        "no reply, and it is created only `seconds` later",
        CREATES,
        {"seconds": 5.0},
    ),
    "stockout": Kind(Role.EFFECT, "no capacity: the operation fails and the node vanishes", ("nodes.create",)),
    "create_fails_leaving_node": Kind(
        Role.EFFECT,
        "the operation fails, and the node stays in `state` for ever",
        ("nodes.create",),
        {"state": "CREATING", "code": "RESOURCE_EXHAUSTED", "message": ""},
    ),
    # In the cloud: changing.
    "operation_fails": Kind(
        Role.EFFECT,
        "accepted; after `seconds` the operation ends with an error, and the node is as it was before",
        CHANGES,
        {"seconds": 1.5, "code": "INTERNAL", "message": ""},
    ),
    "operation_forgets": Kind(
        Role.EFFECT,
        "accepted; after `seconds` the operation is done without error or result, and nothing happened",
        CHANGES,
        {"seconds": 0.0},
    ),
    "stuck": Kind(
        Role.EFFECT,
        "it takes `seconds`; a stuck patch refuses every other change meanwhile",
        CHANGES,
        {"seconds": 3600.0},
    ),
    "stalled": Kind(
        Role.EFFECT,
        "a delete is accepted, and the node stays DELETING, the operation under way, until it is deleted once more",
        ("nodes.delete",),
    ),
    "delete_dropped": Kind(
        Role.EFFECT,
        "a delete of what is CREATING is accepted and forgotten: absent (if `hidden`) until that is over",
        DELETES,
        {"seconds": 0.5, "hidden": True},
        state="CREATING",
    ),
    "refuse_delete": Kind(
        Role.EFFECT,
        "400 FAILED_PRECONDITION for a delete of what is CREATING",
        DELETES,
        state="CREATING",
    ),
    # In the cloud: looking.
    "unreachable": Kind(
        Role.EFFECT,
        "the list leaves out `zones` (by default all it was asked for) and says so",
        ("nodes.list", "queuedResources.list", "operations.list"),
        {"zones": []},
    ),
    "stale_list": Kind(Role.EFFECT, "the list shows the nodes of `seconds` ago", ("nodes.list",), {"seconds": 30.0}),
    "page_loop": Kind(Role.EFFECT, "every page names the same next page", LISTS),
    "page_error": Kind(Role.EFFECT, "the second page is a 500", LISTS),
    "operation_gone": Kind(Role.EFFECT, "404: operations are forgotten", ("operations.get", "operations.list")),
}

CHOICES: Mapping[str, tuple[Any, ...]] = {
    "status": (400, 401, 403, 404, 409, 429, 500, 502, 503, 504),
    "body": ("auto", "json", "html"),
    "form": ("truncated", "html", "types", "large", "empty"),
    "code": (
        "INTERNAL",
        "RESOURCE_EXHAUSTED",
        "INVALID_ARGUMENT",
        "FAILED_PRECONDITION",
        "PERMISSION_DENIED",
        "CANCELLED",
    ),
    "state": ("CREATING", "UNKNOWN", "REPAIRING", "TERMINATED"),
}
