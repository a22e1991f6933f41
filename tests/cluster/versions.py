"""Which control plane the tests are played on, and where its binaries are kept."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

KUBERNETES, JOBSET, KUEUE, ETCD = "v1.36.3", "v0.12.0", "v0.19.2", "v3.6.8"


@dataclass(frozen=True)
class Module:
    """A Go module that holds main packages. `packages`: by the name of the binary."""

    name: str
    version: str
    packages: dict[str, str]
    manifests: str = ""  # a kustomization in it, rendered into `<name>.yaml`


# Kueue says which JobSet and Kubernetes it was built with; these are the newest that fit together.
PARTS = ("apiserver", "controller-manager", "scheduler")
MODULES = {
    "etcd": Module("go.etcd.io/etcd/server/v3", ETCD, {"etcd": "go.etcd.io/etcd/server/v3"}),
    "kubernetes": Module(
        "k8s.io/kubernetes", KUBERNETES, {f"kube-{part}": f"k8s.io/kubernetes/cmd/kube-{part}" for part in PARTS}
    ),
    "jobset": Module("sigs.k8s.io/jobset", JOBSET, {"jobset": "sigs.k8s.io/jobset"}, "config"),
    "kueue": Module("sigs.k8s.io/kueue", KUEUE, {"kueue": "sigs.k8s.io/kueue/cmd/kueue"}, "config"),
}


def cache() -> Path:
    """Return the directory of the binaries and manifests: one for each set of versions."""
    versions = f"kubernetes-{KUBERNETES}-jobset-{JOBSET}-kueue-{KUEUE}-etcd-{ETCD}"
    place = os.environ.get("TPUJOB_CLUSTER_CACHE") or Path.home() / ".cache" / "tpujob-cluster"
    return Path(place) / versions


def missing() -> tuple[str, ...]:
    """Return the names of the files that `make cluster` has still to make."""
    binaries = (name for module in MODULES.values() for name in module.packages)
    wanted = (*binaries, *(f"{label}.yaml" for label, module in MODULES.items() if module.manifests))
    return tuple(name for name in wanted if not (cache() / name).is_file())


if __name__ == "__main__":
    if missing():
        print(f"not in {cache()}: {', '.join(missing())}; `make cluster` builds it")
    sys.exit(1 if missing() else 0)
