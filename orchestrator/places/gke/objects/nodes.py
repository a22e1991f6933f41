"""Which nodes a job asks for (selectors, tolerations and annotations of GKE and of Kueue), and which nodes ran it. Pure.

Nodes are the cluster's: they are named and watched, and never deleted here.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.capacity.provisioning import Provisioning
from orchestrator.catalog import gke
from orchestrator.catalog.gke import GkeSlice

RUN_LIMIT = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"
LONGEST_FLEX_S = 7 * 86400  # of flex-start


@dataclass(frozen=True, slots=True)
class Capacity:
    """How the nodes are obtained. `together`: flex-start nodes all at once, by a ProvisioningRequest of Kueue."""

    provisioning: Provisioning = Provisioning.ON_DEMAND
    together: bool = False
    reservation: str | None = None

    @property
    def ends_nodes(self) -> bool:
        """Whether the cloud deletes the nodes by itself after a time."""
        return self.provisioning is Provisioning.FLEX_START


def placement(of: GkeSlice, capacity: Capacity) -> dict[str, Any]:
    """Return what the pods of a slice say of their nodes.

    No node pool is named: the cluster has the choice, and a pool that is named would be scaled beyond its slice. The chips of
    a node tell the machine types of a topology apart. Node auto-provisioning reads and sets that label for TPUs, as it does not
    the instance type (GKE's autoscaler at 7d25050, pkg/autoprovisioning/tpu_requests.go), and a flavor of Kueue that leaves it
    out fits all of them.
    """
    selector = {
        gke.ACCELERATOR_LABEL: of.accelerator,
        gke.TOPOLOGY_LABEL: of.topology,
        gke.CHIPS_LABEL: str(of.chips_per_host),
    }
    tolerations = [{"key": gke.TPU, "operator": "Exists", "effect": "NoSchedule"}]
    if key := _LABELS.get((capacity.provisioning, capacity.together)):
        selector[key] = "true"
        tolerations.append({"key": key, "operator": "Equal", "value": "true", "effect": "NoSchedule"})
    if capacity.reservation is not None:
        found = re.fullmatch(gke.RESERVATION, capacity.reservation)
        assert found is not None, "the rules of the job file have checked it"
        # Not reservation-affinity: with a name it is `specific` anyway, and pools that were made without it lack the label.
        parts = zip(gke.RESERVATION_LABELS, found.groups(), strict=True)
        selector |= {label: part for label, part in parts if part is not None}
    return {"nodeSelector": selector, "tolerations": tolerations}


_LABELS = {
    (Provisioning.SPOT, False): gke.SPOT_LABEL,
    # Nodes that were made for pods with the toleration have the taint.
    (Provisioning.FLEX_START, False): gke.FLEX_START_LABEL,
    (Provisioning.FLEX_START, True): gke.QUEUED_LABEL,
}


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node that exists. Times: unix seconds, the server's clock."""

    name: str
    pool: str = ""  # its node pool; empty if it names none
    ends_at: float | None = None  # when the cloud itself deletes it, if its pool has such a limit
    busy: bool = False  # other pods on it ask for TPUs


def in_words(nodes: Sequence[NodeView]) -> str:
    """Return which nodes exist, by pool: `2 nodes of pool v5e-4x4 (gke-a, gke-b), 1 of them in use by others`."""
    pools: dict[str, list[NodeView]] = {}
    for node in nodes:
        pools.setdefault(node.pool, []).append(node)
    parts = []
    for pool, members in pools.items():
        count = f"{len(members)} node{'s'[: len(members) != 1]}"
        named = ", ".join(node.name for node in members[:3]) + (", …" if len(members) > 3 else "")
        busy = sum(node.busy for node in members)
        parts.append(
            f"{count}{f' of pool {pool}' if pool else ''} ({named}){f', {busy} in use by others' if busy else ''}"
        )
    return "; ".join(parts)
