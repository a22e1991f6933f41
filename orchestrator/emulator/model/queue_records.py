"""The queued resource: a request for one or several nodes that waits until there is capacity for all of them.

Plain values, as in `records`; `queue` changes them, `wire` shows them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.emulator.model.resource import Resource
from orchestrator.emulator.supply.demand import Demand


class State(StrEnum):
    """The states of a queued resource, named as in the API."""

    CREATING = "CREATING"
    WAITING = "WAITING_FOR_RESOURCES"
    PROVISIONING = "PROVISIONING"
    ACTIVE = "ACTIVE"
    SUSPENDING = "SUSPENDING"
    SUSPENDED = "SUSPENDED"
    FAILED = "FAILED"
    DELETING = "DELETING"


# In these states no node is created any more; the request holds its name and its quota until it is deleted.
TERMINAL_STATES = (State.SUSPENDED, State.FAILED)


@dataclass(slots=True)
class NodeSpec:
    """Equal nodes, requested under one or several ids."""

    node_ids: list[str]
    node: dict[str, Any]  # as `Node.spec`
    workers: int
    usd_per_hour: float | None


@dataclass(slots=True)
class QueuedResource(Resource):
    """`spec` is the request without its nodes: tier, queueing policy, reservation, run duration."""

    queue_id: str
    spec: dict[str, Any]
    node_specs: list[NodeSpec]
    tier: str
    state: State
    created_at: float
    valid_from: float = 0.0
    valid_until: float | None = None
    run_s: float | None = None  # flex-start: how long its nodes run
    initiator: str = ""  # of the suspension: USER or SERVICE
    ends_at: float | None = None  # when a flex-start run is over
    node_uids: list[str] = field(default_factory=list)  # of the nodes that it created, in the order of `node_names`

    @property
    def name(self) -> str:
        """The full name."""
        return f"projects/{self.project}/locations/{self.zone}/queuedResources/{self.queue_id}"

    @property
    def demands(self) -> list[Demand]:
        """Its nodes, as the supply counts them."""
        return [
            Demand(
                self.project, self.zone, spec.node["acceleratorType"], self.tier, len(spec.node_ids),
                str(self.spec.get("reservationName", "")),
            )
            for spec in self.node_specs
        ]  # fmt: skip

    @property
    def node_names(self) -> list[str]:
        """The full names of its nodes, existing or not."""
        place = f"projects/{self.project}/locations/{self.zone}/nodes"
        return [f"{place}/{node_id}" for spec in self.node_specs for node_id in spec.node_ids]


def load_queued(data: Mapping[str, Any]) -> QueuedResource:
    """Return a queued resource from its dump. KeyError or TypeError for any other data."""
    specs = [NodeSpec(**spec) for spec in data["node_specs"]]
    return QueuedResource(**{**data, "node_specs": specs, "state": State(data["state"])})
