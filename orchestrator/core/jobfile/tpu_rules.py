"""The rules of a job file's `tpu:` section that a type cannot say. Pure; `core.jobfile.tpu_section` and `core.jobfile.rules` call me."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator import catalog
from orchestrator.core.jobfile.yaml_source import Path
from orchestrator.core.planning import location_rules
from orchestrator.core.planning.capacity_request import Provisioning
from orchestrator.core.text.durations import parse_duration
from orchestrator.core.text.names import shown

MAX_ALTERNATIVES, MAX_WAIT_S = 50, 7 * 86400.0
WAYS = frozenset({"provisioning", "spot"})  # two words for one thing: who says one of them inherits neither
_RUNTIME = re.compile(r"[a-z][a-z0-9.-]{0,62}")


def accelerator_text(value: Any) -> Any:
    """By the API's name. Only its kind is checked: whether such a type exists depends on `unlisted`."""
    if isinstance(value, str):
        return catalog.canonical(value)
    raise ValueError(location_rules.accelerator_problem(shown(str(value))))


def places(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return location_rules.split_places(value)
    if isinstance(value, list) and all(isinstance(place, str) for place in value):
        return tuple(place.strip() for place in value)
    if value is None:
        return ()
    raise ValueError("expected a zone, a region or a list of them, such as us-central1-a")


def runtime(text: str) -> str:
    if not _RUNTIME.fullmatch(text):
        raise ValueError(f"`{shown(text)}` is not a runtime version; they look like v2-alpha-tpuv5-lite")
    return text


def dollars(value: Any, example: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1_000_000:
        raise ValueError(f"`{shown(as_written(value))}` is not an amount of dollars; write for example {example}")
    return float(value)


def max_price(value: Any) -> float | None:
    return dollars(value, "12")


def wait(value: Any) -> float:
    """`0` needs no unit."""
    written = as_written(value)
    if written == "0":
        return 0.0
    try:
        seconds = parse_duration(written)
    except ValueError as error:
        raise ValueError(f"`{shown(written)}` is not a duration: {error} (up to 7d)") from None
    if seconds > MAX_WAIT_S:
        raise ValueError(f"`{shown(written)}` is longer than 7d; write for example 6h")
    return seconds


def whole(tpu: Mapping[str, Any], train: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """On data whose types may still be wrong, with a list of alternatives below `any_of`."""
    several = tpu.get("any_of")
    if isinstance(several, list) and not 0 < len(several) <= MAX_ALTERNATIVES:
        text = f"has {len(several)} alternatives; write at most {MAX_ALTERNATIVES}" if several else "is empty"
        yield ("tpu", "any_of"), text if several else f"{text}; list what the job can live with, or remove the key"
    each = [one for one in several if isinstance(one, Mapping)] if isinstance(several, list) else []
    wishes = [_inherited(tpu, one) for one in each] if each else [tpu]
    for number, wish in enumerate(wishes):
        own: Path = ("tpu", "any_of", number) if each else ("tpu",)
        said = each[number] if each else tpu
        inherited = wish.keys() - said.keys()
        at: dict[str, Path] = {key: ("tpu", key) if key in inherited else (*own, key) for key in {*wish, "runtime"}}
        yield from _wish(wish, at, train)
    queued = [wish for wish in wishes if wish.get("queue") is True or _is_queued(wish.get("provisioning"))]
    if tpu.get("race") is True and not queued:
        yield ("tpu", "race"), "only what is queued can race; add `queue: true`, or remove this"


def _inherited(tpu: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    taken = {key: value for key, value in tpu.items() if not (key in WAYS and WAYS & one.keys())}
    return {**taken, **one}


def _wish(wish: Mapping[str, Any], at: Mapping[str, Path], train: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """`at`: where each of its keys stands."""
    yield from _ways(wish, at)
    unlisted = wish.get("unlisted") is True
    kind = wish.get("accelerator", "v5litepod-8")
    if not isinstance(kind, str):
        return
    kind = catalog.canonical(kind)
    problem = location_rules.accelerator_problem(kind, unlisted=unlisted)
    if problem:
        yield at["accelerator"], problem
    elif not catalog.lookup(kind) and wish.get("runtime") is None:
        yield at["runtime"], f"{kind} is not in the catalog, so it has no default runtime; name one here"
    if "zone" in wish:
        yield from _zones(wish["zone"], at["zone"], kind, unlisted=unlisted)
    known, wanted = catalog.lookup(kind), train.get("cores")
    if known and isinstance(wanted, int) and not isinstance(wanted, bool) and wanted > known.cores:
        yield ("train", "cores"), f"{kind} has {known.cores} cores, not {wanted}; write at most {known.cores}, or `all`"


def _ways(wish: Mapping[str, Any], at: Mapping[str, Path]) -> Iterator[tuple[Path, str]]:
    way, spot = wish.get("provisioning"), wish.get("spot")
    if isinstance(way, str) and isinstance(spot, bool) and spot != (way == Provisioning.SPOT):
        yield at["spot"], f"and `provisioning: {shown(way)}` contradict each other; remove one of them"
    if wish.get("queue") is False and _is_queued(way):
        yield at["queue"], f"cannot be false with `provisioning: {way}`, which is always queued; remove it"


def _is_queued(way: Any) -> bool:
    return isinstance(way, str) and way in [*Provisioning] and Provisioning(way).queued


def _zones(zone: Any, at: Path, kind: str, *, unlisted: bool) -> Iterator[tuple[Path, str]]:
    if zone == [] or (isinstance(zone, str) and not location_rules.split_places(zone)):
        yield at, "is empty; name a zone or region, or remove the key to take any zone that has the type"
    listed = zone if isinstance(zone, list) else []
    each: list[tuple[Path, Any]] = [((*at, number), place) for number, place in enumerate(listed)]
    if isinstance(zone, str):
        each = [(at, place) for place in location_rules.split_places(zone)]
    for path, place in each:
        if isinstance(place, str) and (problem := location_rules.place_problem(place.strip(), kind, unlisted=unlisted)):
            yield path, problem


def as_written(value: Any) -> str:
    """As a file says it: `true`, `null`, 3, 1e+09, .inf."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return f"{value:g}".replace("inf", ".inf").replace("nan", ".nan") if isinstance(value, float) else str(value)
