"""What this machine refuses of a job file: the key, and why. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.job.rules.field_rules import too_short_for_a_slice
from orchestrator.job.rules.tpu import tpu_problems
from orchestrator.job.source.yaml_source import Path

UNUSED = ("tpu", "gke", "access", "tpu_metrics", "allow_egress", "keep_on_failure", "on_preemption", "max_restarts",
    "copy_while_running")  # fmt: skip


def problems(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield what is wrong with a job file because it runs on this machine. Its values may still be of wrong types."""
    tpu, train, limits = (
        {**each} if isinstance(each := data.get(key), Mapping) else {} for key in ("tpu", "train", "limits")
    )
    if data.get("bucket") is not None:
        yield ("bucket",), "has no use with `on: local`: the artifacts are on this machine anyway; remove it"
    if data.get("data"):
        yield ("data",), "is not fetched with `on: local`; fetch it into the job's `code:` yourself, and remove this"
    if (why := too_short_for_a_slice(limits.get("max_duration"))) is not None:
        yield ("limits", "max_duration"), why
    yield from tpu_problems(tpu, {}, gke=data.get("gke") is not None)
    for key in ("requirements", "python"):
        if "train" in data and train.get("backend") != "none" and data.get(key) is not None:
            why = "runs in the Python of tpujob; install there what it needs, and remove this"
            yield (key,), f"`train:` with `on: local` {why}"
