"""A whole rehearsal as one piece of data: settings, what the cloud has for whom, and faults. Read strictly, all or nothing.

Pure: the admin path takes it from `tpujob emulator rehearse FILE`, a simulator can hand it to a `CloudState` directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from orchestrator.emulator.faults.fault import read as read_fault
from orchestrator.emulator.model.cloud_state import CloudState
from orchestrator.emulator.model.records import Settings
from orchestrator.emulator.plain_data import BadData
from orchestrator.emulator.supply import supply

PARTS = ("settings", *supply.PARTS, "faults")
TOO_LONG_S = 1e6


def rehearse(state: CloudState, data: object, now: float) -> None:
    """In place of the last one. Settings that it does not name stay. BadData says what is wrong, and nothing happens."""
    if not isinstance(data, Mapping):
        raise BadData(f"A rehearsal is an object, not {data!r}.")
    for name in data:
        if name not in PARTS:
            raise BadData(f'There is no "{name}" in a rehearsal; there are {", ".join(PARTS)}.')
    settings, faults = data.get("settings", {}), data.get("faults", [])
    check_settings(state.settings, settings)
    if not isinstance(faults, list):
        raise BadData("faults is a list of faults.")
    for fault in faults:
        read_fault(fault)
    found = supply.load({name: data[name] for name in supply.PARTS if name in data}, now)
    for name, value in settings.items():
        setattr(state.settings, name, value)
    state.supply = found
    state.faults.clear()
    state.faults.add_all(faults, now)
    state.advance(now)


def add_capacity(state: CloudState, rows: object, now: float) -> None:
    """These decide before those that were there."""
    state.supply.capacity += supply.load({"capacity": rows}, now).capacity
    state.advance(now)


def dump(state: CloudState) -> dict[str, Any]:
    return {"settings": asdict(state.settings), **state.supply.dump(), "faults": state.faults.dump()}


def check_settings(present: Settings, changes: object) -> None:
    if not isinstance(changes, Mapping):
        raise BadData(f"settings is an object, not {changes!r}.")
    for name, value in changes.items():
        if name not in {field.name for field in fields(Settings)}:
            raise BadData(f'Unknown setting "{name}"; there are {", ".join(field.name for field in fields(Settings))}.')
        _check(name, value, getattr(present, name))


def _check(name: str, value: Any, present: Any) -> None:
    if isinstance(present, list):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise BadData(f'Setting "{name}" is a list of strings.')
    elif isinstance(present, bool):
        if not isinstance(value, bool):
            raise BadData(f'Setting "{name}" is true or false.')
    elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < TOO_LONG_S:
        raise BadData(f'Setting "{name}" is a number of seconds.')
