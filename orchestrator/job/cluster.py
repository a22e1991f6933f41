"""Where and as what a job runs on a cluster: what the job file and the settings wish, and what follows from both. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

NAMESPACE = "default"
GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class ClusterWish:
    """What a `gke:` section says; None leaves it to the next one."""

    context: str | None = None  # of the kubeconfig
    cluster: str | None = None  # projects/P/locations/L/clusters/C
    namespace: str | None = None
    queue: str | None = None  # a LocalQueue of Kueue
    priority: str | None = None  # a WorkloadPriorityClass of Kueue
    image: str | None = None
    service_account: str | None = None  # of Kubernetes
    reservation: str | None = None  # of the nodes; R, or projects/P/reservations/R, and a block of it
    machine_type: str | None = None  # without it, the default form of the accelerator type
    privileged: bool | None = None
    host_network: bool | None = None
    grace: float | None = None  # of the job, after SIGTERM
    pod: tuple[Mapping[str, Any], ...] = ()  # fragments, which are merged in this order

    def over(self, other: ClusterWish) -> ClusterWish:
        """Return this wish, and `other` where it says nothing. `context` and `cluster` name one thing; fragments add up."""
        said = {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}
        if self.context is not None or self.cluster is not None:
            other = replace(other, context=None, cluster=None)
        return replace(other, **said | {"pod": other.pod + self.pod})


NO_WISH = ClusterWish()


@dataclass(frozen=True, slots=True)
class ClusterTarget(ClusterWish):
    """Where a job's objects are created, and what its pods are. Without `context` and `cluster`: in the current context."""

    namespace: str = NAMESPACE
    image: str = ""
    privileged: bool = False
    host_network: bool = False
    grace: float = GRACE_S

    @property
    def location(self) -> str | None:
        """The zone or the region of the cluster, where its name says it."""
        return None if self.cluster is None else self.cluster.split("/")[3]

    @property
    def described(self) -> str:
        """The cluster as messages name it."""
        if self.cluster is not None:
            return f"cluster {self.cluster.rpartition('/')[2]} in {self.location}"
        return f"context {self.context}" if self.context is not None else "the current context of the kubeconfig"


def problems(wish: ClusterWish, *, reserved: bool, together: bool = False) -> Iterator[tuple[str, str]]:
    """Yield what is missing in the job and in the settings together, as (key of `gke:`, end of a sentence).

    `reserved`: the job asks for reserved capacity; `together`: for flex-start nodes all at once.
    """
    if wish.image is None:
        where = "here or below `gke:` in the settings"
        yield "image", f"is missing: no image is built; name one that has Python 3.8 or newer, {where}"
    if reserved and wish.reservation is None:
        yield "reservation", "is missing: `provisioning: reserved` needs the name of the reservation"
    if together and wish.queue is None:
        why = "with `tpu: {queue: true}` Kueue asks for the nodes; name a LocalQueue, or remove that"
        yield "queue", f"is missing: {why}"
    if wish.priority is not None and wish.queue is None:
        yield "priority", "is a priority class of Kueue; name a `queue`, or remove this"


def target_of(wish: ClusterWish, *, reserved: bool) -> ClusterTarget:
    """Return what a wish without problems means. A reservation counts only for reserved capacity."""
    assert wish.image is not None, "the problems of the wish come first"
    reservation = wish.reservation if reserved else None
    found = asdict(wish) | {"namespace": wish.namespace or NAMESPACE, "reservation": reservation}
    found["grace"] = wish.grace or GRACE_S
    return ClusterTarget(**found | {key: found[key] is True for key in ("privileged", "host_network")})
