"""The watchdog on the workers."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from orchestrator.promise import guardian, recover, renewal, server_time, watchdog
from orchestrator.promise.effects.base import Now, Record
from orchestrator.promise.lease.lease import LeaseState
from orchestrator.promise.ledger import clocks
from orchestrator.promise.ledger.clocks import Clocks
from orchestrator.promise.obtain import acquire
from tests.simulation.model.faults import FOREVER, cloud_fault
from tests.simulation.model.world import GC_ONLY, GUARDIAN_ONLY, NO_LAYER, WATCHDOG_ONLY
from tests.simulation.mutants.registry import (
    RUN,
    NoEffect,
    Plays,
    mutant,
    no_op,
    one,
    power_cut,
    replaces,
    scenario,
    seeds,
    succeeds,
)
from tests.simulation.scenarios.random_worlds import Workload

# -- scenarios -------------------------------------------------------------------------------------------------------


@scenario
def watchdog_only() -> Plays:
    for at in (1.0, 6.0, 8.0, 12.0):
        yield f"power cut at {at} s", one(RUN, layers=WATCHDOG_ONLY, **power_cut(at))
        again = {"watchdog_dies": [(0, at + 2.0, 0.5)], **power_cut(at)}
        yield f"power cut at {at} s, the watchdog restarts", one(RUN, layers=WATCHDOG_ONLY, **again)


@scenario
def vm_pauses() -> Plays:
    for begin, length in ((15.0, 40.0), (20.0, 100.0)):
        workload = Workload("run", lasts_s=200.0, workers=2)
        yield f"{length} s", one(workload, vms_paused=[(begin, begin + length)])


@scenario
def watchdog_only_flaky_api() -> Plays:
    flaky = {"rates": {"drop": 0.35, "lost_reply": 0.15}}
    return seeds(10, RUN, WATCHDOG_ONLY, **flaky, **power_cut(12.0))


@scenario
def second_worker_flaky_api() -> Plays:
    """Worker 0 is dead; the others judge by the label, over a flaky API."""
    rest = {"rates": {"drop": 0.3, "lost_reply": 0.2}, "worker_dies": [(0, 14.0, None)], **power_cut(12.0)}
    return seeds(10, replace(RUN, workers=2), WATCHDOG_ONLY, **rest)


@scenario
def watchdog_only_failing_deletes() -> Plays:
    for kind in ("operation_fails", "operation_forgets"):
        effects = [cloud_fault(kind, "nodes.delete")] * 2
        yield kind, one(RUN, layers=WATCHDOG_ONLY, delete_effects=effects, **power_cut(12.0))


# -- mutants ---------------------------------------------------------------------------------------------------------


@mutant("watchdog_only")
def watchdog_not_in_create() -> Any:
    """The watchdog is not part of the create call (SkyPilot#5946)."""
    return patch.object(acquire, "with_claim", lambda script, labels, user: "")


@replaces(watchdog.Countdown, "watch", "vm_pauses")
def counts_through_pause(_: Any, self: Any, now: float) -> None:
    """The watchdog counts a pause of its VM as silence."""
    self.left_s -= 0.0 if self.seen_at is None else now - self.seen_at
    self.seen_at = now


@replaces(watchdog.Watchdog, "read_node", "watchdog_only_flaky_api")
def failed_poll_restarts_countdown(real: Any, self: Any) -> Iterator[Any]:
    """A failed poll restarts the countdown of the watchdog."""
    yield from real(self)
    if self.status == 0:
        self.silence.restart()


@replaces(watchdog.Countdown, "__init__", "second_worker_flaky_api")
def short_gap_is_outage(real: Any, self: Any, total_s: float, max_gap_s: float, grace_s: float) -> None:
    """A short gap between polls counts as an outage."""
    real(self, total_s, max_gap_s * 0.3, grace_s)


@replaces(watchdog.Watchdog, "delete", "watchdog_only_failing_deletes")
def watchdog_deletes_once(real: Any, self: Any, reason: str) -> Iterator[Any]:
    """The watchdog counts an accepted delete as done."""
    if not getattr(self, "accepted", False):
        yield from real(self, reason)
        self.accepted = self.reported_delete is not None and self.reported_delete.endswith("(200)")


@replaces(watchdog.Watchdog, "read_labels", "long_runs")
def watchdog_ignores_labels(real: Any, self: Any, labels: dict[str, Any]) -> None:
    """The watchdog uses its start-up configuration and reads no labels."""
    real(
        self,
        {**labels, "tpujob-claimed-until": str(self.config["claimed_until"]), "tpujob-mode": self.config["mode"]},
    )


@replaces(watchdog.Watchdog, "observe", "watchdog_only")
def old_heartbeat_counts(real: Any, self: Any) -> Iterator[Any]:
    """An old heartbeat counts for ever."""
    yield from real(self)
    if self.last_heartbeat is not None:
        self.silence.restart()


# -- scenarios -------------------------------------------------------------------------------------------------------


@scenario
def disk_full() -> Plays:
    for at in (3.0, 8.0):
        rest: dict[str, Any] = {"disk_full": (at, FOREVER), "crashes": [(None, at + 0.5, "cli")]}
        yield f"killed at {at + 0.5} s", one(RUN, layers=GUARDIAN_ONLY, **rest)


@scenario
def held_guardian_only() -> Plays:
    yield "held", one(Workload("up", hold_s=60.0), layers=GUARDIAN_ONLY)


@scenario
def timer_beside_runs() -> Plays:
    yield "a timer", one(Workload("run", lasts_s=40.0, timer_s=10.0))


# -- mutants ---------------------------------------------------------------------------------------------------------


@replaces(recover, "release_reason", "deaths_guardian_only", also=guardian)
def down_is_ignored(real: Any, lease: Any, **how: Any) -> Any:
    """Recovery ignores leases in the state DOWN."""
    return None if lease.state is LeaseState.DOWN else real(lease, **how)


@replaces(recover, "try_record", "disk_full")
async def full_disk_blocks_recovery(_: Any, event: Any) -> None:
    """A full disk keeps recovery from deleting."""
    await Record(event)


@mutant("held_guardian_only")
def guardian_ignores_held() -> Any:
    """The guardian ignores held slices."""
    return patch.object(guardian, "TakeGuardianLock", lambda: NoEffect(answer=False))


@mutant("timer_beside_runs")
def recovery_ignores_locks() -> Iterator[None]:
    """Recovery takes leases from living processes."""
    unlocked = patch.object(recover, "IsLocked", lambda lease_id: NoEffect(answer=False))
    with unlocked, patch.object(recover, "Lock", lambda lease_id: NoEffect(answer=True)):
        yield


# -- scenarios -------------------------------------------------------------------------------------------------------


@scenario
def wrong_clock() -> Plays:
    for offset_s in (-86400.0, 86400.0):
        workload = replace(RUN, lasts_s=30.0, life_s=200.0, gc_every_s=20.0)
        crash: dict[str, Any] = {"crashes": [(None, 12.0, "machine")]} if offset_s > 0 else {}
        yield f"{offset_s:+.0f} s", one(workload, clock_offset_s=offset_s, **crash)
        alone: dict[str, Any] = {"crashes": [(None, 12.0, "machine")], "clock_offset_s": offset_s, "script_runs": False}
        yield f"{offset_s:+.0f} s, for gc", one(workload, layers=GC_ONLY, **alone)


@scenario
def clock_set_forward_at_create() -> Plays:
    """The create is late and its reply lost; then the wall clock jumps by two hours."""
    late = [cloud_fault("late", "nodes.create", seconds=8.0)] * 3
    for tenth in range(3, 12):
        rest: dict[str, Any] = {"create_effects": late, "clock_steps": [(tenth / 10 + 0.1, 7200.0)]}
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
        rest: dict[str, Any] = {
            "crashes": [(None, tenth / 10, "machine")],
            "reboot_after_s": 0.5,
            "command_after_s": 0.2,
        }
        steps: dict[str, Any] = {"create_effects": late, "clock_steps": [(tenth / 10 + 0.1, 7200.0)]}
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
