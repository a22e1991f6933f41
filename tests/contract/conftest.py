"""Faults of the shared emulator."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from orchestrator.emulator.daemon.control import DaemonRefused
from tests.emulator_fixture import Emulator

Fault = Callable[..., str]


@pytest.fixture
def fault(shared_emulator: Emulator) -> Iterator[Fault]:
    """Adds a fault and returns its id. All are removed after the test."""
    added: list[str] = []

    def add(kind: str, **fields: Any) -> str:
        [row] = shared_emulator.request("POST", "/_emulator/faults", {"kind": kind, **fields})["faults"]
        added.append(row["id"])
        return added[-1]

    yield add
    for name in added:
        with contextlib.suppress(DaemonRefused):  # the test has cleared it
            shared_emulator.request("DELETE", f"/_emulator/faults/{name}")
