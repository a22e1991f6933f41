"""Jobs on a cluster as `places.gke.preparation` makes them of job files."""

from typing import Any

from orchestrator.capacity.provisioning import Provisioning
from orchestrator.catalog import gke
from orchestrator.job.cluster import ClusterTarget
from orchestrator.places.gke.objects.manifest import ClusterJob, Deadlines, PodProgram, deadlines, labels_of
from orchestrator.places.gke.objects.nodes import Capacity

NAME = "tpujob-0a1b2c-0123456789"
RESERVATION = "projects/my-project/reservations/r1/reservationBlocks/b1/reservationSubBlocks/s1"
CAPACITIES = {
    "on-demand": Capacity(),
    "spot": Capacity(Provisioning.SPOT),
    "flex-start": Capacity(Provisioning.FLEX_START),
    "flex-start together": Capacity(Provisioning.FLEX_START, together=True),
    "reserved": Capacity(Provisioning.RESERVED, reservation=RESERVATION),
}
PROGRAM = PodProgram({"schema": 1, "phases": [{"name": "main", "script": "echo 1\n"}]}, b"agent", b"code")


def job(
    accelerator: str = "v6e-16",
    *,
    machine_type: str | None = None,
    slices: int = 1,
    capacity: Capacity = CAPACITIES["on-demand"],
    queue: str | None = None,
    program: PodProgram = PROGRAM,
    wait_s: float = 0.0,
    limits: Deadlines | None = None,
    namespace: str = "team-a",
    **target: Any,
) -> ClusterJob:
    """Return a job of an hour, or with these limits."""
    found = gke.lookup(accelerator, machine_type)
    assert found is not None, accelerator
    return ClusterJob(
        name=NAME,
        labels=labels_of(lease_id="0123456789", owner="0a1b2c", name="MNIST", run="abcdefghjk"),
        target=ClusterTarget(namespace=namespace, image="us-docker.pkg.dev/p/r/train:1", queue=queue, **target),
        slice=found,
        slices=slices,
        capacity=capacity,
        deadlines=limits or deadlines(3600.0, wait_s=wait_s, linger_s=None, queued=queue is not None),
        program=program,
    )
