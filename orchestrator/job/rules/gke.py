"""The rules of a `gke:` section, of a job or of the settings: its values, and types that GKE lacks. Pure."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from orchestrator import catalog
from orchestrator.catalog import gke
from orchestrator.job.rules import pod
from orchestrator.job.source.yaml_source import Path
from orchestrator.text.names import for_display


def _text(pattern: str, what: str) -> Callable[[Any], Any]:
    """Return the rule of a text, which raises ValueError for one that is not as the pattern; what is no text passes."""
    known = re.compile(pattern)

    def rule(value: Any) -> Any:
        if isinstance(value, str) and not known.fullmatch(value):
            raise ValueError(f"`{for_display(value)}` is not {what}")
        return value

    return rule


_NAME = "[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?"
_ACCOUNT = _text(_NAME, "a service account of the namespace: a-z, 0-9, `-` and `.`, at most 63")
cluster = _text(
    r"projects/[a-z0-9.:-]{4,100}/locations/[a-z]+-[a-z]+[0-9]+(-[a-z])?/clusters/[a-z][a-z0-9-]{0,39}",
    "the name of a cluster: projects/P/locations/L/clusters/C",
)
namespace = _text("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "a namespace: a-z, 0-9 and `-`, at most 63")
# Of a LocalQueue or of a WorkloadPriorityClass, which is the value of a label, too.
name_of_an_object = _text(_NAME, "a name in a cluster: a-z, 0-9, `-` and `.`, at most 63")
image = _text(
    "[A-Za-z0-9][A-Za-z0-9._:/@-]{0,510}", "a container image, such as us-docker.pkg.dev/my-project/images/train:1"
)
reservation = _text(
    gke.RESERVATION,
    "a reservation: NAME or projects/P/reservations/NAME, and of a block /reservationBlocks/B[/reservationSubBlocks/S]",
)


def context(value: Any) -> Any:
    """Return the name of a context of the kubeconfig. Raises ValueError."""
    if isinstance(value, str) and not (value.strip() and value.isprintable()):
        raise ValueError("is not the name of a context; `kubectl config get-contexts` lists them")
    return value


def service_account(value: Any) -> Any:
    """Return the name of a service account of Kubernetes. Raises ValueError."""
    if isinstance(value, str) and "@" in value:
        raise ValueError("is an account of Google Cloud; name the service account of the namespace that is bound to it")
    return _ACCOUNT(value)


def type_problem(accelerator: str) -> str | None:
    """Return what is wrong with an accelerator type on GKE."""
    if gke.slices(accelerator):
        return None
    near = ", ".join(gke.nearest(accelerator))
    advice = f"nearest: {near}" if near else "they look like v6e-16, v5p-8 or tpu7x-16"
    advice += "; `tpujob offers --on gke` lists them"
    if catalog.lookup(accelerator) is not None:
        return f"GKE has no {accelerator}; {advice}"
    return f"`{for_display(accelerator)}` is no type of GKE; {advice}"


def section_problems(section: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield what does not go together in a `gke:` section, of a job or of the settings."""
    if section.get("context") is not None and section.get("cluster") is not None:
        yield ("gke", "cluster"), "and `context` both name the cluster; remove one of them"
    if isinstance(fragment := section.get("pod"), Mapping):
        yield from pod.problems(fragment, ("gke", "pod"))
