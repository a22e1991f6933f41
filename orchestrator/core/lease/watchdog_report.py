"""What the switches on the VMs say about themselves, read from the guest attributes of a slice. Pure.

Every worker's switch says that it runs and has a way to the API. The permission to delete is of one service account, the same
on all workers, so a few of them prove it for all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

ATTRIBUTE = "tpujob/watchdog"
# Guest attributes may be asked for 10 times in a minute, which is a beat, and what the VM writes there counts, too.
ASKS_A_BEAT, LEAST_S = 6, 0.2


@dataclass(frozen=True, slots=True)
class WatchdogStatus:
    """One worker's switch. `armed`: it has a way to the API, and it, or another one of its slice, proved that it may delete."""

    worker: int
    armed: bool
    why: str = ""  # why not
    mode: str = ""  # the claim that it knows of
    claimed_until: float | None = None


UNASKED = "it has not been proven yet that its service account may delete the slice (tpu.nodes.delete)"


def between_asks_s(heartbeat_s: float) -> float:
    """Return the seconds to wait between two reads of a slice's guest attributes."""
    return max(heartbeat_s / ASKS_A_BEAT, LEAST_S)


def read_watchdogs(published: Sequence[Mapping[str, str]], workers: int) -> tuple[WatchdogStatus, ...]:
    """One for each worker, in order; one that says nothing, or nothing readable, is not armed.

    Each says itself which worker it is: in which order the API lists them, and whether it lists all, is not relied on.
    """
    said: dict[int, list[Mapping[str, Any]]] = {}
    unreadable = False
    for attributes in published:
        text = attributes.get(ATTRIBUTE)
        record = None if text is None else _read(text)
        if record is not None:
            said.setdefault(int(record["worker"]), []).append(record)
        unreadable = unreadable or (text is not None and record is None)
    silent = "its switch has not said anything" + (" that can be read" if unreadable else "")
    found = tuple(_switch(worker, said.get(worker, []), silent) for worker in range(workers))
    if any(switch.armed for switch in found):
        return tuple(replace(each, armed=True, why="") if each.why == UNASKED else each for each in found)
    return found


def problem(found: Sequence[WatchdogStatus]) -> str | None:
    """Why this slice would not delete itself when everybody else is gone; None when every worker's switch is armed."""
    for switch in found:
        if not switch.armed:
            return f"worker{switch.worker}: {switch.why}"
    return None if found else "the slice has no workers"


def _read(text: str) -> Mapping[str, Any] | None:
    """None: no record of a switch that says which worker it is."""
    try:
        said: Any = json.loads(text, parse_int=float)  # an endless integer is infinite, not an error
    except (ValueError, RecursionError):
        return None
    worker = said.get("worker") if isinstance(said, dict) else None
    return said if isinstance(worker, float) and worker.is_integer() else None


def _switch(worker: int, records: Sequence[Mapping[str, Any]], silent: str) -> WatchdogStatus:
    if not records:
        return WatchdogStatus(worker, False, silent)
    if len(records) > 1:
        return WatchdogStatus(worker, False, f"{len(records)} switches say that they are this worker's")
    (said,) = records
    armed, lease = said.get("armed") is True, said.get("claimed_until")
    claimed_until = float(lease) if isinstance(lease, int | float) else None
    return WatchdogStatus(worker, armed, "" if armed else _why(said), str(said.get("mode", "")), claimed_until)


def _why(said: Mapping[str, Any]) -> str:
    if said.get("route") is not True:
        return "its switch has no route to the Cloud TPU API"
    if said.get("permission") is False:
        return "its service account may not delete the slice (tpu.nodes.delete)"
    return UNASKED if said.get("permission") is None else "its switch is not armed"
