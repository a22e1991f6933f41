"""The queued resource: a request for one or several nodes that waits until there is room for all of them.

A plain value like those of `records`; `queue` changes it, `wire_queue` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.emulator.supply.demand import Demand


class State(StrEnum):
    """As the API names them."""

    CREATING = "CREATING"
    WAITING = "WAITING_FOR_RESOURCES"
    PROVISIONING = "PROVISIONING"
    ACTIVE = "ACTIVE"
    SUSPENDING = "SUSPENDING"
    SUSPENDED = "SUSPENDED"
    FAILED = "FAILED"
    DELETING = "DELETING"


# Of a request in one of these nothing is to come any more; it holds its name and its quota until somebody deletes it.
OVER = (State.SUSPENDED, State.FAILED)


@dataclass(slots=True)
class NodeSpec:
    """Equal nodes that are asked for under one or several ids."""

    node_ids: list[str]
    node: dict[str, Any]  # as `Node.spec`
    workers: int
    usd_per_hour: float | None
    several: dict[str, Any] | None = None  # multisliceParams, as v2 calls them; None: one node with an id of its own


@dataclass(slots=True)
class QueuedResource:
    """`spec` is what was asked for beside the nodes: tier, queueing policy, reservation, run duration."""

    uid: str
    project: str
    zone: str
    queue_id: str
    spec: dict[str, Any]
    node_specs: list[NodeSpec]
    tier: str
    state: State
    created_at: float
    valid_from: float = 0.0
    valid_until: float | None = None
    run_s: float | None = None  # flex-start: how long its nodes live
    due: float | None = None  # not before does the present state pass
    operation: str | None = None  # the operation that waits for it
    failure: dict[str, Any] | None = None  # why it is FAILED; while CREATING, why it will be
    initiator: str = ""  # of the suspension: USER or SERVICE
    ends_at: float | None = None  # when a flex-start run is over
    node_uids: list[str] = field(default_factory=list)  # of the nodes that it got, in the order of `node_names`
    hidden_until: float | None = None  # only a fault sets it

    @property
    def name(self) -> str:
        return f"projects/{self.project}/locations/{self.zone}/queuedResources/{self.queue_id}"

    @property
    def wants(self) -> list[Demand]:
        """As the supply counts them."""
        return [
            Demand(
                self.project, self.zone, spec.node["acceleratorType"], self.tier, len(spec.node_ids),
                str(self.spec.get("reservationName", "")),
            )
            for spec in self.node_specs
        ]  # fmt: skip

    @property
    def node_names(self) -> list[str]:
        place = f"projects/{self.project}/locations/{self.zone}/nodes"
        return [f"{place}/{node_id}" for spec in self.node_specs for node_id in spec.node_ids]


def load_queued(data: Mapping[str, Any]) -> QueuedResource:
    specs = [NodeSpec(**spec) for spec in data["node_specs"]]
    return QueuedResource(**{**data, "node_specs": specs, "state": State(data["state"])})
