"""The rules of a `gke:` section, of a job or of the settings: its values, and types that GKE lacks. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator import catalog
from orchestrator.catalog import gke
from orchestrator.job.rules import pod
from orchestrator.job.source.yaml_source import Path
from orchestrator.text.names import for_display

_CLUSTER = re.compile(
    r"projects/[a-z0-9.:-]{4,100}/locations/[a-z]+-[a-z]+[0-9]+(-[a-z])?/clusters/[a-z][a-z0-9-]{0,39}"
)
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,510}")
_PART = "[a-z]([a-z0-9-]{0,61}[a-z0-9])?"
_RESERVATION = re.compile(
    rf"(projects/[a-z0-9.:-]{{4,100}}/reservations/)?{_PART}(/reservationBlocks/{_PART}(/reservationSubBlocks/{_PART})?)?"
)


def cluster(value: Any) -> Any:
    """Return the full name of a cluster. Raises ValueError, as every function for one value here."""
    return _matching(value, _CLUSTER, "the name of a cluster: projects/P/locations/L/clusters/C")


def context(value: Any) -> Any:
    """Return the name of a context of the kubeconfig."""
    if isinstance(value, str) and not (value.strip() and value.isprintable()):
        raise ValueError("is not the name of a context; `kubectl config get-contexts` lists them")
    return value


def namespace(value: Any) -> Any:
    """Return the name of a namespace."""
    return _matching(value, _LABEL, "a namespace: a-z, 0-9 and `-`, at most 63")


def name_of_an_object(value: Any) -> Any:
    """Return the name of a LocalQueue or of a WorkloadPriorityClass, which is the value of a label, too."""
    return _matching(value, _SUBDOMAIN, "a name in a cluster: a-z, 0-9, `-` and `.`, at most 63")


def service_account(value: Any) -> Any:
    """Return the name of a service account of Kubernetes."""
    if isinstance(value, str) and "@" in value:
        raise ValueError("is an account of Google Cloud; name the service account of the namespace that is bound to it")
    return _matching(value, _SUBDOMAIN, "a service account of the namespace: a-z, 0-9, `-` and `.`, at most 63")


def image(value: Any) -> Any:
    """Return the reference of a container image."""
    return _matching(value, _IMAGE, "a container image, such as us-docker.pkg.dev/my-project/images/train:1")


def reservation(value: Any) -> Any:
    """Return the name or the path of a reservation."""
    what = "a reservation: NAME or projects/P/reservations/NAME, and of a block /reservationBlocks/B[/reservationSubBlocks/S]"
    return _matching(value, _RESERVATION, what)


def _matching(value: Any, pattern: re.Pattern[str], what: str) -> Any:
    if isinstance(value, str) and not pattern.fullmatch(value):
        raise ValueError(f"`{for_display(value)}` is not {what}")
    return value


def type_problem(accelerator: str) -> str | None:
    """Return what is wrong with an accelerator type on GKE."""
    if gke.slices(accelerator):
        return None
    near = ", ".join(gke.nearest(accelerator))
    advice = f"nearest: {near}" if near else "they look like v6e-16, v5p-8 or tpu7x-16"
    advice += "; `tpujob offers --on gke` lists them"
    known = catalog.lookup(accelerator) is not None
    return (
        f"GKE has no {accelerator}; {advice}" if known else f"`{for_display(accelerator)}` is no type of GKE; {advice}"
    )


def section_problems(section: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield what does not go together in a `gke:` section, of a job or of the settings."""
    if section.get("context") is not None and section.get("cluster") is not None:
        yield ("gke", "cluster"), "and `context` both name the cluster; remove one of them"
    if isinstance(fragment := section.get("pod"), Mapping):
        yield from pod.problems(fragment, ("gke", "pod"))
