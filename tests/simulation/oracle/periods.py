"""Times that the bounds are made of: the periods of the table of promises, and what the layers take on their own.

Every value is that of `orchestrator.promises` or of the documentation, never of the code under test.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator import promises

if TYPE_CHECKING:
    from tests.simulation.model.world import World


NEVER = 1e18
COMMAND_OWN_S = promises.seconds("command")  # C0: the command itself
GUARDIAN_OWN_S = promises.seconds("guardian")  # C1
GC_OWN_S = promises.seconds("gc")  # C7: one run of gc
POLL_MOST_S = promises.LOOK_S  # between two looks of a teardown that waits for a late create or an unreachable API
RELEASE_S = 590.0  # a command waits for the proof
GUARDIAN_POLL_S = 20.0
STALL_S = 60.0  # a worker that sends nothing for so long is given up
COLLECT_S = STALL_S + 5.0  # artifacts that do not arrive (row 59 of the fault matrix)
COMMAND_S = 20.0  # a command spends on older teardowns before its own work
RACE_PAUSE_S = 10.0  # between two looks at racing requests
SEEN_S = 15.0  # from READY until the command sees it
DELETE_AGAIN_S = 60.0  # until a delete whose operation is unknown is sent again
LOOK_S = 15.0  # C6: between two looks at a slice whose VM does not answer
CONNECT_S = 300.0  # C6: waiting for sshd of a fresh VM
HAND_OVER_S = 130.0  # a hand-over of the claim from the command to the job
PULL_S = 120.0  # saving the work of a job when a worker is gone
STOP_S = 60.0  # stopping a job when a worker does not answer
SILENT_S = 600.0  # C6: until a VM that does not answer is given up
EDGES = {"local": ("api", "laptop-api"), "vm": ("api", "vm-api"), "gc": ("api", "ci-api")}
LOCAL = ("cli", "guardian", "timer", "collector", "guardian loop")


@dataclass(frozen=True, slots=True)
class Periods:
    """The periods of the table of promises, at the speed of the world."""

    heartbeat_s: float
    poll_s: float
    ttl_s: float
    grace_s: float
    boot_s: float
    linger_s: float
    margin_s: float
    stagger_s: float
    renew_s: float
    label_ttl_s: float
    provision_s: float
    watchdog_s: float  # C3: its own time, beyond the periods


TERMS = {  # field → its term in `orchestrator.promises`
    "heartbeat_s": "heartbeat",
    "poll_s": "poll",
    "ttl_s": "ttl",
    "grace_s": "grace",
    "boot_s": "boot",
    "linger_s": "linger",
    "margin_s": "margin",
    "stagger_s": "stagger",
    "renew_s": "renew",
    "label_ttl_s": "label",
    "provision_s": "provision",
    "watchdog_s": "watchdog",
}


@functools.cache
def _periods(speed: float) -> Periods:
    return Periods(**{field: promises.seconds(term, speed) for field, term in TERMS.items()})


def periods(world: World) -> Periods:
    """Return the periods that the page promises in this world, whatever the code does."""
    return _periods(world.speed)
