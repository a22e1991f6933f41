"""Virtual time: one heap of events, the clocks of machines, which run slightly wrong, and faults that happen at a time.

True time is the clock of the server, in Unix seconds. Nothing sleeps; `run` jumps from one event to the next. Such faults are
crashes, signals, a sleeping laptop, dead workers, a full disk, preemptions.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloud_tpu_emulator.model.records import Node
    from tests.simulation.model.hosts import Worker
    from tests.simulation.model.machine import Machine
    from tests.simulation.model.process import Process
    from tests.simulation.model.world import World
    from tests.simulation.oracle.claims import Resource


def schedule(world: World) -> None:
    """Schedule everything in the plan that happens at a time."""
    plan, at = world.plan, world.at
    for name, when, what in plan.crashes:
        if name is None:
            at(when, crash, world, what, None)
        else:
            world.crash_steps[name] = (int(when), what)
    for when in plan.signals:
        at(when, _signal, world)
    for begin, end in plan.stopped:
        at(begin, _stop_main, world)
        at(end, _continue_main, world)
    for begin, end in plan.asleep:
        at(begin, _sleep, world)
        at(end, _wake, world)
    for worker, when, back_s in plan.watchdog_dies:
        at(when, _watchdog_dies, world, worker, back_s)
    for worker, when, back_s in plan.worker_dies:
        at(when, _worker_dies, world, worker, back_s)
    if plan.disk_full is not None:
        at(plan.disk_full[0], _fill_disk, world, True)
        at(plan.disk_full[1], _fill_disk, world, False)
    if plan.ledger_lost_at is not None:
        at(plan.ledger_lost_at, _lose_ledger, world)
    for when, by_s in plan.clock_steps:
        at(when, _set_clock, world, by_s)
    if plan.preempt_at is not None:
        at(plan.preempt_at, _preempt, world, 0.0, "READY")
    for when, notice_s in plan.preemptions:
        at(when, _preempt, world, notice_s, "READY", "CREATING")
    if plan.user_deletes_at is not None:
        at(plan.user_deletes_at, _user_deletes, world)


def crash(world: World, what: str, process: Process | None) -> None:
    process = process or world.main
    if what == "signal":
        if process is not None:
            process.signal(2)
        return
    if what.endswith("cancel"):
        from tests.simulation.scenarios.commands import type_cancel

        if what == "cli+cancel" and process is not None:
            process.kill()
        type_cancel(world)
        return
    guardian = world.laptop.guardian_of(process) if process is not None else None
    if what != "cli":
        all_of_them = what == "machine" or process is None or process.role != "cli"
        world.guardians_killed[None if all_of_them else process] = world.timeline.now
    if what == "machine":
        world.laptop.crash(world.plan.reboot_after_s)
    if what in ("guardian", "cli+guardian"):
        for one in [guardian] if guardian is not None else list(world.laptop.guardians):
            one.kill()
    if what in ("cli", "cli+guardian") and process is not None:
        process.kill()
    if what != "machine":
        after_restart(world, world.laptop)


def guardians_killed_at(world: World, owner: Process | None, *, any_guardian: bool) -> float | None:
    """Return when the plan killed the guardian of this process (or any guardian), whether or not it existed."""
    killed = world.guardians_killed
    times = [at for process, at in killed.items() if any_guardian or process is None or process is owner]
    return max(times, default=None)


def after_restart(world: World, machine: Machine) -> None:
    """Schedule the next command after a crash."""
    if world.plan.command_after_s is not None and machine is world.laptop:
        at = world.timeline.now - world.faults.begun_at + world.plan.command_after_s
        world.at(at, world.laptop.type_command)


def _signal(world: World) -> None:
    if world.main is not None:
        world.main.signal(2)


def _stop_main(world: World) -> None:
    if world.main is not None and world.main.alive:
        world.frozen_since = world.timeline.now
        world.main.freeze()


def _continue_main(world: World) -> None:
    world.thawed_at = world.timeline.now
    if world.main is not None and not world.laptop.asleep:
        world.main.thaw()


def _set_clock(world: World, by_s: float) -> None:
    world.log(f"the laptop's wall clock is set, by {by_s:+.0f} s")
    world.laptop.clock.offset_s += by_s


def _sleep(world: World) -> None:
    world.frozen_since = world.timeline.now
    world.laptop.sleep()


def _wake(world: World) -> None:
    world.thawed_at = world.timeline.now
    world.laptop.wake_up()


def _workers(world: World, index: int) -> list[Worker]:
    return [vm.workers[index] for vm in world.cloud.vms.values() if index < len(vm.workers) and vm.on]


def _watchdog_dies(world: World, index: int, back_s: float | None) -> None:
    for worker in _workers(world, index):
        worker.kill_watchdog(back_s)


def _worker_dies(world: World, index: int, back_s: float | None) -> None:
    for worker in _workers(world, index):
        world.log(f"worker {index} dies")
        worker.off()
        if back_s is not None:
            world.timeline.after(back_s, _worker_back, world, worker)


def _worker_back(world: World, worker: Worker) -> None:
    if worker.vm.on:
        worker.boot()


def _fill_disk(world: World, full: bool) -> None:
    world.log("the disk is full" if full else "there is room on the disk again")
    world.laptop.ledger.full = full


def _lose_ledger(world: World) -> None:
    world.ledger_was_lost = True
    world.laptop.lose_ledger()


def _victims(world: World, *states: str) -> list[tuple[Node, Resource]]:
    nodes, resources = world.cloud.state.nodes.values(), world.oracle.resources
    return [(n, resources[n.uid]) for n in nodes if n.state in states and not resources[n.uid].foreign]


def _preempt(world: World, notice_s: float, *states: str) -> None:
    for node, _ in _victims(world, *states):
        if node.hidden_until is not None and node.hidden_until > world.timeline.now:
            continue  # a node that is being deleted is not preempted
        world.log(f"{node.node_id} is to be preempted, {notice_s:.0f} s from now")
        world.cloud.state.preempt(node.name, world.timeline.now, notice_s)
    world.cloud.settle()


def _user_deletes(world: World) -> None:
    for node, known in _victims(world, "READY"):
        world.log(f"{node.node_id} is deleted in the console")
        known.lost_at = world.timeline.now
        for resource in world.oracle.existing():
            if resource.node is known:
                resource.lost_at = world.timeline.now
        world.cloud.state.vanish(node.name, world.timeline.now)
    world.cloud.settle()


EPOCH = 1_800_000_000.0


class Timeline:
    __slots__ = ("_heap", "_seq", "events", "now", "stopped")

    def __init__(self) -> None:
        self.now = EPOCH
        self.events = 0
        self.stopped = False
        self._heap: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._seq = 0

    def at(self, when: float, act: Callable[..., Any], *args: Any) -> None:
        self._seq += 1
        heappush(self._heap, (when if when > self.now else self.now, self._seq, act, args))

    def after(self, delay_s: float, act: Callable[..., Any], *args: Any) -> None:
        self._seq += 1
        heappush(self._heap, (self.now + delay_s if delay_s > 0 else self.now, self._seq, act, args))

    def run(self, until: float) -> None:
        """Run until no event is left, `stop` is called, or `until` is reached."""
        heap = self._heap
        while heap and not self.stopped:
            when, _, act, args = heappop(heap)
            if when > until:
                self.now = until
                return
            self.now = when
            self.events += 1
            act(*args)

    def stop(self) -> None:
        self.stopped = True


class Clock:
    """The clocks of one machine: the wall clock is off by `offset_s`, and both clocks drift by `drift` (0.01: one percent)."""

    __slots__ = ("_boots", "_started_at", "_timeline", "drift", "offset_s")

    def __init__(self, timeline: Timeline, offset_s: float = 0.0, drift: float = 0.0) -> None:
        self._timeline = timeline
        self.offset_s, self.drift = offset_s, drift
        self._boots, self._started_at = 0, timeline.now

    def restart(self) -> None:
        self._boots, self._started_at = self._boots + 1, self._timeline.now

    def boot_id(self) -> str:
        return f"boot {self._boots}"

    def boot_s(self) -> float:
        return (self._timeline.now - self._started_at) * (1.0 + self.drift)

    def wall(self) -> float:
        return self._started_at + self.offset_s + self.boot_s()

    def true_s(self, seconds: float) -> float:
        """Return the true seconds in which this clock advances by `seconds`."""
        return seconds / (1.0 + self.drift)
