"""Where a cluster is asked for what jobs left there: in namespaces, since few may list all of them."""

import os
from collections.abc import Sequence

from orchestrator.job.cluster import NAMESPACE, NO_WISH, ClusterWish
from orchestrator.places.area import Area
from orchestrator.settings import GKE, Target


def named(target: Target) -> Area | None:
    """Return the cluster of the settings, else that of the current context; None if they have no `gke:`. Raises ConfigError."""
    return None if target.gke == NO_WISH else asked(target, ())


def asked(target: Target, parts: Sequence[str], *, context: str | None = None, cluster: str | None = None) -> Area:
    """Return namespaces of a cluster. `context` and `cluster` are as in `gke:` of a job.

    What is not given is that of the settings; the namespace is `default` without one there. Raises ConfigError without a
    usable cluster.
    """
    from orchestrator.places.gke.api import clusters  # http.client and more: 10 ms

    wish = ClusterWish(context, cluster).over(target.gke)
    project = clusters.identity(wish.context, wish.cluster, os.environ)
    namespaces = tuple(dict.fromkeys(parts)) or (wish.namespace or NAMESPACE,)
    why = f"cluster {clusters.short_name(project)}, namespace {', '.join(namespaces)}"
    return Area(GKE, project, why, namespaces)
