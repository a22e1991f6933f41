"""A whole rehearsal as one piece of data: settings, supply, and faults. Read strictly; all or nothing.

Pure: the daemon's own paths take it from `tpujob emulator rehearse FILE`; a simulator can pass it to a `CloudState` directly.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from orchestrator.emulator.faults.fault import read as read_fault
from orchestrator.emulator.model.cloud_state import CloudState
from orchestrator.emulator.model.records import Settings
from orchestrator.emulator.plain_data import check_list, check_object, read
from orchestrator.emulator.supply import supply

PARTS = ("settings", *supply.PARTS, "faults")


def rehearse(state: CloudState, data: object, now: float) -> None:
    """Replace the present rehearsal. Settings that the data omit stay. Raises BadData, and then nothing changes."""
    data = check_object("a rehearsal", data, PARTS)
    settings, faults = _read_settings(data.get("settings", {})), check_list("faults", data.get("faults", []))
    for fault in faults:
        read_fault(fault)
    found = supply.load({name: data[name] for name in supply.PARTS if name in data}, now)
    _apply(state, settings)
    state.supply = found
    state.faults.clear()
    state.faults.add_all(faults, now)
    state.advance(now)


def add_capacity(state: CloudState, rows: object, now: float) -> None:
    """Add rules; they decide before older ones. Raises BadData."""
    state.supply.capacity += supply.load({"capacity": rows}, now).capacity
    state.advance(now)


def dump(state: CloudState) -> dict[str, Any]:
    """Return the present rehearsal, all settings included."""
    return {"settings": asdict(state.settings), **state.supply.dump(), "faults": state.faults.dump()}


def change_settings(state: CloudState, data: object) -> None:
    """Change the settings that the data name. Raises BadData, and then nothing changes."""
    _apply(state, _read_settings(data))


def _read_settings(data: object) -> dict[str, Any]:
    found = read(Settings, data, "settings", "settings.")
    return {name: getattr(found, name) for name in check_object("settings", data)}


def _apply(state: CloudState, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        setattr(state.settings, name, value)
