"""Which nodes the emulated Google has: shapes of slices, as the node pools of GKE have them. Data."""

from dataclasses import dataclass

GKE = "cloud.google.com/"
PROVISIONING = (
    f"{GKE}gke-spot",
    f"{GKE}gke-flex-start",
    f"{GKE}gke-queued",
    f"{GKE}reservation-name",
    f"{GKE}compute-class",
)
TAINTED = (f"{GKE}gke-spot", f"{GKE}gke-queued")  # nodes of these also repel pods that do not tolerate it
ZONE = "us-central2-b"
OF_NAMESPACE = "tests/namespace"  # whose pods a node is for: no test gets the node that another one waits for


@dataclass(frozen=True)
class Shape:
    """Nodes that can be had: what of a slice, on which machines, and how many pools at most."""

    name: str
    accelerator: str
    topology: str
    hosts: int
    chips: int  # of a host
    machine: str
    most: int = 50

    def labels(self) -> dict[str, str]:
        return {
            f"{GKE}gke-tpu-accelerator": self.accelerator,
            f"{GKE}gke-tpu-topology": self.topology,
            f"{GKE}gke-accelerator-count": str(self.chips),
            "node.kubernetes.io/instance-type": self.machine,
            "topology.kubernetes.io/zone": ZONE,
            "topology.kubernetes.io/region": ZONE.rpartition("-")[0],
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        }


SHAPES = (
    Shape("v5e-1", "tpu-v5-lite-podslice", "1x1", 1, 1, "ct5lp-hightpu-1t"),
    Shape("v5e-4", "tpu-v5-lite-podslice", "2x2", 1, 4, "ct5lp-hightpu-4t"),
    Shape("v5e-8", "tpu-v5-lite-podslice", "2x4", 1, 8, "ct5lp-hightpu-8t"),
    Shape("v5e-8-2", "tpu-v5-lite-podslice", "2x4", 2, 4, "ct5lp-hightpu-4t"),
    Shape("v5e-16", "tpu-v5-lite-podslice", "4x4", 4, 4, "ct5lp-hightpu-4t"),
    Shape("v6e-1", "tpu-v6e-slice", "1x1", 1, 1, "ct6e-standard-1t"),
    Shape("v6e-4", "tpu-v6e-slice", "2x2", 1, 4, "ct6e-standard-4t"),
    Shape("v6e-8", "tpu-v6e-slice", "2x4", 1, 8, "ct6e-standard-8t"),
    Shape("v6e-8-2", "tpu-v6e-slice", "2x4", 2, 4, "ct6e-standard-4t"),
    Shape("v6e-16", "tpu-v6e-slice", "4x4", 4, 4, "ct6e-standard-4t"),
    Shape("v4-8", "tpu-v4-podslice", "2x2x1", 1, 4, "ct4p-hightpu-4t"),
    Shape("v4-16", "tpu-v4-podslice", "2x2x2", 2, 4, "ct4p-hightpu-4t"),
    Shape("v5p-8", "tpu-v5p-slice", "2x2x1", 1, 4, "ct5p-hightpu-4t"),
    Shape("v5p-16", "tpu-v5p-slice", "2x2x2", 2, 4, "ct5p-hightpu-4t"),
    Shape("tpu7x-8", "tpu7x", "2x2x1", 1, 4, "tpu7x-standard-4t"),
    Shape("tpu7x-16", "tpu7x", "2x2x2", 2, 4, "tpu7x-standard-4t"),
)
