"""What a slice of the Cloud TPU API refuses of a job file: the key, and why. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.job.rules.field_rules import too_short_for_a_slice
from orchestrator.job.rules.tpu import is_several, tpu_problems
from orchestrator.job.source.yaml_source import Path

UNUSED: tuple[str, ...] = ()  # keys without effect


def problems(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield what is wrong with a job file because it runs on a slice. Its values may still be of wrong types."""
    tpu, train, limits = (
        {**each} if isinstance(each := data.get(key), Mapping) else {} for key in ("tpu", "train", "limits")
    )
    if data.get("gke") is not None:
        yield ("gke",), "only counts with `on: gke`; write that, or remove this"
    if is_several(tpu.get("slices")):
        yield ("tpu", "slices"), "several slices at once are for a cluster: write `on: gke`, or remove this"
    if (why := too_short_for_a_slice(limits.get("max_duration"))) is not None:
        yield ("limits", "max_duration"), why
    yield from tpu_problems(tpu, train)
