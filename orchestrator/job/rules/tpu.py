"""The rules of `tpu:`: types, places, provisioning, alternatives. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator import catalog
from orchestrator.capacity import location_rules
from orchestrator.capacity.provisioning import Provisioning
from orchestrator.job.rules.field_rules import as_written, dollars, duration
from orchestrator.job.rules.gke import type_problem as gke_type_problem
from orchestrator.job.source.yaml_source import Path
from orchestrator.text.names import for_display

MAX_ALTERNATIVES, MAX_WAIT_S = 50, 7 * 86400.0
MAX_SLICES = 256
PROVISIONING_KEYS = frozenset({"provisioning", "spot"})  # two keys for one thing: setting one inherits neither
_RUNTIME = re.compile(r"[a-z][a-z0-9.-]{0,62}")


def accelerator_text(value: Any) -> Any:
    """Return the API's name of an accelerator type. Whether the type exists depends on `unlisted`, and is checked later."""
    if isinstance(value, str):
        return catalog.canonical(value)
    raise ValueError(location_rules.accelerator_problem(for_display(str(value))))


def places(value: Any) -> tuple[str, ...]:
    """Return the zones and regions of `zone:`. Raises ValueError, as every function for one value here."""
    if isinstance(value, str):
        return location_rules.split_places(value)
    if isinstance(value, list) and all(isinstance(place, str) for place in value):
        return tuple(place.strip() for place in value)
    if value is None:
        return ()
    raise ValueError("expected a zone, a region or a list of them, such as us-central1-a")


def runtime(text: str) -> str:
    """Return the runtime version, checked for its form."""
    if not _RUNTIME.fullmatch(text):
        raise ValueError(f"`{for_display(text)}` is not a runtime version; they look like v2-alpha-tpuv5-lite")
    return text


def max_price(value: Any) -> float | None:
    """Return `max_price_per_hour` in dollars; None if there is none."""
    return dollars(value, "12")


def wait(value: Any) -> float:
    """Return `wait:` in seconds. `0` needs no unit."""
    if as_written(value) == "0":
        return 0.0
    seconds = duration(value, "0s", "7d")
    if seconds > MAX_WAIT_S:
        raise ValueError(f"`{for_display(as_written(value))}` is longer than 7d; write for example 6h")
    return seconds


def tpu_problems(tpu: Mapping[str, Any], train: Mapping[str, Any], *, gke: bool = False) -> Iterator[tuple[Path, str]]:
    """Yield what is wrong with `tpu:` as a whole. Its values may still be of wrong types; alternatives are in `any_of`.

    `gke`: the job runs on a cluster, which has types of its own and no zones.
    """
    several = tpu.get("any_of")
    if isinstance(several, list) and not 0 < len(several) <= MAX_ALTERNATIVES:
        text = f"has {len(several)} alternatives; write at most {MAX_ALTERNATIVES}" if several else "is empty"
        yield ("tpu", "any_of"), text if several else f"{text}; list what the job can live with, or leave it out"
    listed = [each for each in several if isinstance(each, Mapping)] if isinstance(several, list) else []
    alternatives = [_inherited(tpu, each) for each in listed] if listed else [tpu]
    for number, alternative in enumerate(alternatives):
        own: Path = ("tpu", "any_of", number) if listed else ("tpu",)
        inherited = alternative.keys() - (listed[number] if listed else tpu).keys()
        keys = {*alternative, "runtime"}
        paths: dict[str, Path] = {key: ("tpu", key) if key in inherited else (*own, key) for key in keys}
        yield from _alternative(alternative, paths, train, gke=gke)
    queued = [each for each in alternatives if each.get("queue") is True or _is_queued(each.get("provisioning"))]
    if tpu.get("race") is True and not queued:
        yield ("tpu", "race"), "only queued candidates can race; add `queue: true`, or remove this"


def tpu_warnings(tpu: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield a warning for each runtime version that hardly fits its type. `tpu`: the values that are set, which are checked."""
    for number, own in enumerate(tpu.get("any_of") or ({},)):
        one = _inherited(tpu, own)
        doubt = location_rules.runtime_doubt(one.get("accelerator", "v5litepod-8"), one.get("runtime"))
        if doubt is not None:
            yield ("tpu", "any_of", number, "runtime") if "runtime" in own else ("tpu", "runtime"), doubt


def _inherited(tpu: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    skipped = PROVISIONING_KEYS if PROVISIONING_KEYS & own.keys() else frozenset()
    return {key: value for key, value in tpu.items() if key not in skipped} | {**own}


def _alternative(
    alternative: Mapping[str, Any], paths: Mapping[str, Path], train: Mapping[str, Any], *, gke: bool
) -> Iterator[tuple[Path, str]]:
    """`paths`: where each of its keys is in the file."""
    yield from _provisioning(alternative, paths)
    unlisted = alternative.get("unlisted") is True
    kind = alternative.get("accelerator", "v5litepod-8")
    if not isinstance(kind, str):
        return
    kind = catalog.canonical(kind)
    known, wanted = catalog.lookup(kind), train.get("cores")
    problem = gke_type_problem(kind) if gke else location_rules.accelerator_problem(kind, unlisted=unlisted)
    if problem:
        yield paths["accelerator"], problem
    elif not gke and not (known and known.default_runtime) and alternative.get("runtime") is None:
        yield paths["runtime"], f"{kind} is not in the catalog, so it has no default runtime; name one here"
    if "zone" in alternative and not gke:
        yield from _zones(alternative["zone"], paths["zone"], kind, unlisted=unlisted)
    if known and isinstance(wanted, int) and not isinstance(wanted, bool) and wanted > known.cores:
        yield ("train", "cores"), f"{kind} has {known.cores} cores, not {wanted}; write at most {known.cores}, or `all`"


def _provisioning(alternative: Mapping[str, Any], paths: Mapping[str, Path]) -> Iterator[tuple[Path, str]]:
    value, spot = alternative.get("provisioning"), alternative.get("spot")
    if isinstance(value, str) and isinstance(spot, bool) and spot != (value == Provisioning.SPOT):
        yield paths["spot"], f"and `provisioning: {for_display(value)}` contradict each other; remove one of them"
    if alternative.get("queue") is False and _is_queued(value):
        yield paths["queue"], f"cannot be false with `provisioning: {value}`, which is always queued; remove it"


def _is_queued(provisioning: Any) -> bool:
    return isinstance(provisioning, str) and provisioning in [*Provisioning] and Provisioning(provisioning).queued


def _zones(zone: Any, at: Path, kind: str, *, unlisted: bool) -> Iterator[tuple[Path, str]]:
    if zone == [] or (isinstance(zone, str) and not location_rules.split_places(zone)):
        yield at, "is empty; name a zone or region, or leave it out to take any zone that has the type"
    listed = zone if isinstance(zone, list) else []
    each: list[tuple[Path, Any]] = [((*at, number), place) for number, place in enumerate(listed)]
    if isinstance(zone, str):
        each = [(at, place) for place in location_rules.split_places(zone)]
    for path, place in each:
        if isinstance(place, str) and (problem := location_rules.place_problem(place.strip(), kind, unlisted=unlisted)):
            yield path, problem


def is_several(slices: Any) -> bool:
    return isinstance(slices, int) and not isinstance(slices, bool) and slices > 1
