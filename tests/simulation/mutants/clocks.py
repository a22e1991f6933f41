"""Clocks: the wall clock of the client is wrong, is set, or differs after a restart."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from orchestrator.engine.effects.base import Now
from orchestrator.engine.leases import renewal, server_time
from orchestrator.engine.provision import acquire
from orchestrator.ledger import clocks
from orchestrator.ledger.clocks import Clocks
from tests.simulation.model.faults import cloud_fault
from tests.simulation.model.world import GC_ONLY, NO_LAYER
from tests.simulation.mutants.registry import RUN, Plays, mutant, no_op, one, replaces, scenario, succeeds
from tests.simulation.scenarios.random_worlds import Workload

# -- scenarios -------------------------------------------------------------------------------------------------------


@scenario
def wrong_clock() -> Plays:
    for offset_s in (-86400.0, 86400.0):
        workload = replace(RUN, lasts_s=30.0, life_s=200.0, gc_every_s=20.0)
        crash = {"crashes": [(None, 12.0, "machine")]} if offset_s > 0 else {}
        yield f"{offset_s:+.0f} s", one(workload, clock_offset_s=offset_s, **crash)
        alone = {"crashes": [(None, 12.0, "machine")], "clock_offset_s": offset_s, "script_runs": False}
        yield f"{offset_s:+.0f} s, for gc", one(workload, layers=GC_ONLY, **alone)


@scenario
def clock_set_forward_at_create() -> Plays:
    """The create is late and its reply lost; then the wall clock jumps by two hours."""
    late = [cloud_fault("late", "nodes.create", seconds=8.0)] * 3
    for tenth in range(3, 12):
        rest = {"create_effects": late, "clock_steps": [(tenth / 10 + 0.1, 7200.0)]}
        yield f"Ctrl-C at {tenth / 10} s", one(RUN, layers=NO_LAYER, signals=[tenth / 10], **rest)


@scenario
def clock_set_in_a_run() -> Plays:
    for by_s in (7200.0, -7200.0, 86400.0):
        for at in (2.0, 12.0):
            yield f"{by_s:+.0f} s at {at} s", succeeds(RUN, clock_steps=[(at, by_s)])


@scenario
def clock_corrected_while_held() -> Plays:
    workload = Workload("up", hold_s=60.0, timer_s=10.0)
    for behind_s in (7200.0, 86400.0):
        yield f"{behind_s:.0f} s", one(workload, clock_offset_s=-behind_s, clock_steps=[(20.0, behind_s)])


@scenario
def restarted_with_another_clock() -> Plays:
    """The power fails during the create; after the restart the wall clock is two hours ahead."""
    late = [cloud_fault("late", "nodes.create", seconds=8.0)] * 3
    for tenth in range(3, 12):
        rest = {"crashes": [(None, tenth / 10, "machine")], "reboot_after_s": 0.5, "command_after_s": 0.2}
        steps = {"create_effects": late, "clock_steps": [(tenth / 10 + 0.1, 7200.0)]}
        yield f"power cut at {tenth / 10} s", one(RUN, layers=NO_LAYER, **rest, **steps)


@scenario
def restarted_after_the_hold() -> Plays:
    """The machine is off when the hold ends. Only the recovery of the next start can act."""
    workload = Workload("up", hold_s=300.0, timer_s=10.0)
    alone = {"layers": replace(NO_LAYER, timer=True), "crashes": [(None, 20.0, "machine")], "reboot_after_s": 600.0}
    yield "the wall clock goes on", one(workload, **alone)  # type: ignore[arg-type]
    yield "the wall clock went back", one(workload, clock_steps=[(30.0, -7200.0)], **alone)  # type: ignore[arg-type]


@scenario
def laptop_asleep_at_create() -> Plays:
    for tenth in range(0, 8):
        begin = tenth / 50
        yield f"asleep at {begin} s", one(Workload("up", hold_s=200.0), asleep=[(begin, begin + 900.0)])


@scenario
def clock_behind_and_create_hidden() -> Plays:
    hidden = [cloud_fault("hidden", "nodes.create", seconds=9.0)]
    yield "seen late", one(RUN, clock_offset_s=-86400.0, create_effects=hidden)


# -- mutants ---------------------------------------------------------------------------------------------------------


@replaces(renewal, "clock_skew", "wrong_clock", also=acquire)
async def client_clock(*_: Any, **__: Any) -> float:
    """Times in labels are those of the client's clock."""
    return 0.0


@mutant("clock_set_forward_at_create", "clock_set_in_a_run", "clock_corrected_while_held")
def ledger_time_is_wall_clock() -> Any:
    """The time of the ledger is the wall clock."""
    return patch.object(Clocks, "now", lambda self, cloud: self._host.wall())


@replaces(clocks, "anchored", "restarted_with_another_clock")
def wall_clock_after_restart(real: Any, before: Any, leases: Any, **rest: Any) -> Any:
    """After a restart the wall clock says how much time has passed."""
    return real(before, (), **rest)


@mutant("restarted_after_the_hold")
def server_time_not_asked() -> Any:
    """After a restart the server is not asked for the time."""
    return patch.object(server_time, "ask_time", no_op)


@replaces(renewal, "clock_skew", "laptop_asleep_at_create", also=acquire)
async def slow_reply_is_clock_skew(_: Any, listing: Any, **__: Any) -> float:
    """A slow reply is read as clock skew."""
    return (listing.server_now or 0.0) - await Now()


@mutant("clock_behind_and_create_hidden")
def watchdog_starts_with_client_times() -> Any:
    """The watchdog starts with times of the client's clock."""
    return patch.object(acquire, "with_claim", lambda script, labels, user: script)
