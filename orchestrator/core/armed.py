"""What the switches on the VMs say about themselves, read from the guest attributes of a slice. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SWITCH = "tpujob/switch"


@dataclass(frozen=True, slots=True)
class Switch:
    """One worker's switch. `armed` means that it proved a route to the API and the permission to delete."""

    worker: int
    armed: bool
    why: str = ""  # why not
    mode: str = ""  # the claim that it knows of
    lease_until: float | None = None


def switches(published: Sequence[Mapping[str, str]], workers: int) -> tuple[Switch, ...]:
    """One for each worker, in order; a worker that says nothing, or nothing readable, is not armed."""
    said = [attributes.get(SWITCH) for attributes in published] if len(published) == workers else []
    said += [None] * (workers - len(said))
    return tuple(_switch(worker, text) for worker, text in enumerate(said))


def problem(found: Sequence[Switch]) -> str | None:
    """Why this slice would not delete itself when everybody else is gone; None when every worker's switch is armed."""
    for switch in found:
        if not switch.armed:
            return f"worker{switch.worker}: {switch.why}"
    return None if found else "the slice has no workers"


def _switch(worker: int, text: str | None) -> Switch:
    if text is None:
        return Switch(worker, False, "its switch has not said anything")
    try:
        said: Any = json.loads(text, parse_int=float)  # an endless integer is infinite, not an error
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        return Switch(worker, False, "its switch says something unreadable")
    lease = said.get("lease")
    return Switch(
        worker,
        said.get("armed") is True,
        _why(said),
        str(said.get("mode", "")),
        float(lease) if isinstance(lease, int | float) else None,
    )


def _why(said: Mapping[str, Any]) -> str:
    if said.get("armed") is True:
        return ""
    if said.get("route") is not True:
        return "its switch has no route to the Cloud TPU API"
    if said.get("permission") is not True:
        return "its service account may not delete the slice (tpu.nodes.delete)"
    return "its switch is not armed"
