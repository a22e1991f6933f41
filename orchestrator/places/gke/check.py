"""What a cluster refuses of a job file: the key, and why. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator import catalog
from orchestrator.capacity.provisioning import Provisioning
from orchestrator.catalog import gke
from orchestrator.job.rules.gke import section_problems
from orchestrator.job.rules.tpu import is_several, tpu_problems
from orchestrator.job.source.yaml_source import Path
from orchestrator.text.names import for_display

UNUSED: tuple[str, ...] = ()  # keys without effect

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


def problems(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield what is wrong with a job file because it runs on a cluster. Its values may still be of wrong types."""
    tpu, section, train = (
        {**each} if isinstance(each := data.get(key), Mapping) else {} for key in ("tpu", "gke", "train")
    )
    yield from section_problems(section)
    for path, why in _NOT_ON_A_CLUSTER.items():
        if _is_set(data, path):
            yield path, f"{why}; remove it"
    if data.get("on_preemption") == "restart" and data.get("bucket") is None:
        why = "on a cluster goes on from what the pods saved to the bucket of the job; name a `bucket:`, or remove this"
        yield ("on_preemption",), why
    if isinstance(data.get("train"), Mapping) and train.get("entry") is None:
        yield from _built_in(train, tpu, has_bucket=data.get("bucket") is not None)
    alternatives = tpu.get("any_of")
    if isinstance(alternatives, list) and len(alternatives) > 1:
        yield ("tpu", "any_of"), "a cluster gets one request; keep one alternative, or run the job once for each"
    only = alternatives[0] if isinstance(alternatives, list) and len(alternatives) == 1 else {}
    only = only if isinstance(only, Mapping) else {}
    for key in ("zone", "runtime", "unlisted"):
        if only.get(key) not in (None, False, []):
            yield ("tpu", "any_of", 0, key), f"{_NOT_ON_A_CLUSTER[('tpu', key)]}; remove it"
    at: Path = ("tpu", "any_of", 0) if only.keys() & {"provisioning", "spot", "queue"} else ("tpu",)
    yield from _capacity({**tpu, **only}, section, at)
    yield from tpu_problems(tpu, train, gke=True)


def _built_in(train: Mapping[str, Any], tpu: Mapping[str, Any], *, has_bucket: bool) -> Iterator[tuple[Path, str]]:
    if train.get("checkpoint") is not False and not has_bucket:
        at: Path = ("train", "checkpoint") if "checkpoint" in train else ("train",)
        yield at, "writes checkpoints, which no log of a pod holds; name a `bucket:`, or write `checkpoint: false`"
    if is_several(tpu.get("slices")):
        yield ("tpu", "slices"), "the built-in training is of one slice; use `command:` or an `entry:` of your own"


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
        yield ("gke", "machine_type"), f"`{for_display(machine)}` does not make a {forms[0].kind.name}; write {offered}"


def _is_set(data: Any, path: Path) -> bool:
    for part in path:
        data = data.get(part) if isinstance(data, Mapping) else None
    return data not in (None, False, [], (), {}, "as-listed")
