"""The rules of `on: gke`: its `gke:` section, and what of a job means nothing on a cluster. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator import catalog
from orchestrator.catalog import gke
from orchestrator.core.jobfile.yaml_source import Path
from orchestrator.core.planning.capacity_request import Provisioning
from orchestrator.core.text.names import shown

_CLUSTER = re.compile(
    r"projects/[a-z0-9.:-]{4,100}/locations/[a-z]+-[a-z]+[0-9]+(-[a-z])?/clusters/[a-z][a-z0-9-]{0,39}"
)
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,510}")
_RESERVATION = re.compile(r"(projects/[a-z0-9.:-]{4,100}/reservations/)?[a-z]([a-z0-9-]{0,61}[a-z0-9])?")

_NOT_ON_A_CLUSTER: dict[Path, str] = {
    ("access",): "is about reaching VMs; pods are followed through the API of the cluster",
    ("ports",): "is about VMs; `kubectl port-forward` forwards a port of a pod",
    ("keep_on_failure",): "keeps the VMs of a job that failed; a pod that ends gives its TPU back",
    ("limits", "max_cost"): "cannot be kept: a cluster bills nodes, which outlive the job; use limits.max_duration",
    ("tpu", "runtime"): "is the image of a VM; a pod runs `gke.image`",
    ("tpu", "zone"): "has no use on a cluster: its nodes are where they are",
    ("tpu", "max_price_per_hour"): "cannot be kept: the price is that of the cluster's nodes",
    ("tpu", "order"): "orders several candidates; a cluster is one",
    ("tpu", "race"): "is between requests to the Cloud TPU API; the queue of a cluster is `gke.queue`",
    ("tpu", "unlisted"): "has no use on a cluster: the labels of its nodes follow from the type",
}


def cluster(value: Any) -> Any:
    """Return the full name of a cluster. Raises ValueError, as every function for one value here."""
    if isinstance(value, str) and not _CLUSTER.fullmatch(value):
        raise ValueError(f"`{shown(value)}` is not the name of a cluster: projects/P/locations/L/clusters/C")
    return value


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
    return _matching(value, _RESERVATION, "a reservation: its name, or projects/P/reservations/NAME")


def _matching(value: Any, pattern: re.Pattern[str], what: str) -> Any:
    if isinstance(value, str) and not pattern.fullmatch(value):
        raise ValueError(f"`{shown(value)}` is not {what}")
    return value


def type_problem(accelerator: str) -> str | None:
    """Return what is wrong with an accelerator type on GKE."""
    if gke.slices(accelerator):
        return None
    near = ", ".join(gke.nearest(accelerator))
    advice = f"nearest: {near}" if near else "they look like v6e-16, v5p-8 or tpu7x-16"
    advice += "; `tpujob offers --on gke` lists them"
    known = catalog.lookup(accelerator) is not None
    return f"GKE has no {accelerator}; {advice}" if known else f"`{shown(accelerator)}` is no type of GKE; {advice}"


def section_problems(section: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield what does not go together in a `gke:` section, of a job or of the settings."""
    if section.get("context") is not None and section.get("cluster") is not None:
        yield ("gke", "cluster"), "and `context` both name the cluster; remove one of them"


def gke_problems(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield what is wrong with a job file because of where it runs. Its values may still be of wrong types."""
    tpu = data.get("tpu")
    tpu = tpu if isinstance(tpu, Mapping) else {}
    section = data.get("gke")
    if data.get("on") != "gke":
        if section is not None and data.get("on") != "local":
            yield ("gke",), "only counts with `on: gke`; write that, or remove this"
        if _is_several(tpu.get("slices")) and data.get("on") != "local":
            yield ("tpu", "slices"), "several slices at once are for a cluster: write `on: gke`, or remove this"
        return
    if isinstance(section, Mapping):
        yield from section_problems(section)
    for path, why in _NOT_ON_A_CLUSTER.items():
        if _is_set(data, path):
            yield path, f"{why}; remove it"
    if data.get("on_preemption") == "restart":
        yield (
            ("on_preemption",),
            "restarts jobs on slices; a job on a cluster runs once: submit it again, or remove this",
        )
    alternatives = tpu.get("any_of")
    if isinstance(alternatives, list) and len(alternatives) > 1:
        yield ("tpu", "any_of"), "a cluster gets one request; keep one alternative, or run the job once for each"
    train = data.get("train")
    if _is_several(tpu.get("slices")) and isinstance(train, Mapping) and train.get("entry") is None:
        yield ("tpu", "slices"), "the built-in training is of one slice; use `command:` or an `entry:` of your own"
    only = alternatives[0] if isinstance(alternatives, list) and len(alternatives) == 1 else {}
    only = only if isinstance(only, Mapping) else {}
    for key in ("zone", "runtime", "unlisted"):
        if only.get(key) not in (None, False, []):
            yield ("tpu", "any_of", 0, key), f"{_NOT_ON_A_CLUSTER[('tpu', key)]}; remove it"
    at: Path = ("tpu", "any_of", 0) if only.keys() & {"provisioning", "spot", "queue"} else ("tpu",)
    yield from _capacity({**tpu, **only}, section if isinstance(section, Mapping) else {}, at)


def _capacity(tpu: Mapping[str, Any], section: Mapping[str, Any], at: Path) -> Iterator[tuple[Path, str]]:
    """How the capacity is obtained, and whether GKE has that for the type. `at`: where `provisioning` is."""
    accelerator = tpu.get("accelerator", "v5litepod-8")
    forms = gke.slices(catalog.canonical(accelerator)) if isinstance(accelerator, str) else ()
    provisioning = tpu.get("provisioning")
    if provisioning == Provisioning.QUEUED:
        yield (*at, "provisioning"), "is of the Cloud TPU API; the queue of a cluster is `gke.queue`"
    if tpu.get("queue") is True and provisioning != Provisioning.FLEX_START:
        yield (*at, "queue"), "only counts with `provisioning: flex-start`; the queue of a cluster is `gke.queue`"
    if provisioning == Provisioning.FLEX_START and forms and not forms[0].flex_start:
        yield (*at, "provisioning"), f"GKE has no flex-start for {forms[0].kind.name}"
    if section.get("reservation") is not None and provisioning != Provisioning.RESERVED:
        yield ("gke", "reservation"), "only counts with `tpu.provisioning: reserved`; write that, or remove this"
    machine = section.get("machine_type")
    if isinstance(machine, str) and forms and machine not in [each.machine_type for each in forms]:
        offered = " or ".join(each.machine_type for each in forms)
        yield ("gke", "machine_type"), f"`{shown(machine)}` does not make a {forms[0].kind.name}; write {offered}"


def _is_several(slices: Any) -> bool:
    return isinstance(slices, int) and not isinstance(slices, bool) and slices > 1


def _is_set(data: Any, path: Path) -> bool:
    for part in path:
        data = data.get(part) if isinstance(data, Mapping) else None
    return data not in (None, False, [], (), {}, "as-listed")
