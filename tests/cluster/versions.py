"""Which control plane the tests are played on, and where its binaries are kept."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

KUBERNETES, JOBSET, KUEUE, ETCD = "v1.36.3", "v0.12.0", "v0.19.2", "v3.6.8"


@dataclass(frozen=True)
class Module:
    """A Go module that holds main packages. `packages`: the last part of each path is the name of its binary."""

    name: str
    version: str
    packages: tuple[str, ...]
    binaries: tuple[str, ...]
    manifests: str = ""  # a kustomization in it, rendered into `<name>.yaml`


# Kueue says which JobSet and Kubernetes it was built with; these are the newest that fit together.
MODULES = {
    "etcd": Module("go.etcd.io/etcd/server/v3", ETCD, ("go.etcd.io/etcd/server/v3",), ("etcd",)),
    "kubernetes": Module(
        "k8s.io/kubernetes",
        KUBERNETES,
        tuple(f"k8s.io/kubernetes/cmd/kube-{part}" for part in ("apiserver", "controller-manager", "scheduler")),
        ("kube-apiserver", "kube-controller-manager", "kube-scheduler"),
    ),
    "jobset": Module("sigs.k8s.io/jobset", JOBSET, ("sigs.k8s.io/jobset",), ("jobset",), "config"),
    "kueue": Module("sigs.k8s.io/kueue", KUEUE, ("sigs.k8s.io/kueue/cmd/kueue",), ("kueue",), "config"),
}


def cache() -> Path:
    """Return the directory of the binaries and manifests: one for each set of versions."""
    versions = f"kubernetes-{KUBERNETES}-jobset-{JOBSET}-kueue-{KUEUE}-etcd-{ETCD}"
    place = os.environ.get("TPUJOB_CLUSTER_CACHE") or Path.home() / ".cache" / "tpujob-cluster"
    return Path(place) / versions


def wanted() -> tuple[str, ...]:
    """Return the names of all files that a complete cache has."""
    return tuple(
        name
        for label, module in MODULES.items()
        for name in (*module.binaries, *((f"{label}.yaml",) if module.manifests else ()))
    )


def missing() -> tuple[str, ...]:
    """Return the names of the files that `make cluster` has still to make."""
    return tuple(name for name in wanted() if not (cache() / name).is_file())


if __name__ == "__main__":
    if missing():
        print(f"not in {cache()}: {', '.join(missing())}; `make cluster` builds it")
    sys.exit(1 if missing() else 0)
