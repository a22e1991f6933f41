"""The `ports:` of a job on this machine, while a process here follows the job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.engine.effects.base import Report
from orchestrator.engine.effects.workers import ForwardPorts

if TYPE_CHECKING:
    from orchestrator.remote.fleet.fleet import Fleet


async def forward(fleet: Fleet, ports: tuple[int, ...]) -> None:
    """Let ports of this machine lead to these of worker 0, and report which ones."""
    if ports:
        for line in await ForwardPorts(fleet, ports):
            await Report("ports", line)


def spoken(ports: Sequence[int]) -> str:
    """Return the ports in words: `port 6006`, `ports 6006, 8888`."""
    return f"port{'s'[: len(ports) > 1]} {', '.join(map(str, ports))}"
