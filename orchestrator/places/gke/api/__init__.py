"""Kubernetes clusters with JobSet and Kueue, such as those of GKE: a JobSet is what a slice is on Cloud TPU."""

from typing import TYPE_CHECKING

from orchestrator.system.lazy import modules_of

if TYPE_CHECKING:
    from orchestrator.places.gke.api import clusters as clusters
else:
    __getattr__ = modules_of(__name__)
