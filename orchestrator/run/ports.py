"""The `ports:` of a job on this machine, while the command that runs the job is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.engine.effects.base import Report
from orchestrator.engine.effects.workers import ForwardPorts

if TYPE_CHECKING:
    from orchestrator.remote.fleet.port import FleetPort


async def forward(fleet: FleetPort, ports: tuple[int, ...]) -> None:
    """Let ports of this machine lead to these of worker 0, and report which ones."""
    if ports:
        for line in await ForwardPorts(fleet, ports):
            await Report("ports", line)


def by_command(run: str, ports: Sequence[int]) -> str:
    """Return how to reach the ports of a detached run: no process here forwards them by itself."""
    return f"`tpujob forward {run}` leads to port{'s'[: len(ports) > 1]} {', '.join(map(str, ports))} of worker0"
