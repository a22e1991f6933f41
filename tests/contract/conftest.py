"""Faults of the shared emulator, and operations of the API, as tpujob's own clients follow them."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cloud_tpu_emulator.daemon.control import DaemonRefused
from orchestrator.places.tpu.api.calls import ApiCalls
from orchestrator.promise.lease.cloud_api import Cloud, Operation
from tests.emulator.fixture import Emulator
from tests.waiting import until

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


def finish(api: Cloud | ApiCalls, operation: Operation | None) -> Operation:
    """Return the operation, once it is done."""
    assert operation is not None
    done = until(lambda: api.operation(operation.name), wanted=lambda now: now is not None and now.done)
    assert done is not None
    return done
