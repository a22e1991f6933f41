"""One simulated world: a cloud, a laptop with its user, optionally gc on another machine, and the faults.

`World(seed, workload, plan).run()` plays it to its end and returns the violated invariants. The same arguments give the
same world, event for event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from orchestrator.core.lease.slices import Capabilities
from orchestrator.core.lease.timings import Timings, emulated
from orchestrator.emulator.model.records import Node, Settings
from orchestrator.emulator.supply.supply import Capacity, ClosedQueue, Quota
from orchestrator.engine.jobs.progress import Outcome
from orchestrator.engine.runtime.interpreter import Abandoned
from orchestrator.engine.slices.held import UpOutcome
from orchestrator.errors import TpujobError
from tests.simulation.model.cloud import FakeCloud
from tests.simulation.model.faults import TRAVEL_S, FaultInjector, FaultPlan
from tests.simulation.model.fleet import SimFleet
from tests.simulation.model.hosts import Worker
from tests.simulation.model.machine import Machine
from tests.simulation.model.process import Process
from tests.simulation.model.timeline import Timeline
from tests.simulation.oracle.bounds import Allowance
from tests.simulation.oracle.claims import Resource
from tests.simulation.oracle.invariants import Invariant
from tests.simulation.oracle.oracle import Oracle

HORIZON_S = 4 * 3600.0
WATCH_EVERY_S = 15.0
SPEED = 30.0
BURST_CALLS = 160  # of one process, beyond which more than one call a second counts as spinning
ZONES = ("us-central1-a", "us-central1-b", "europe-west4-a")
RACE_ZONES = ("us-central1-a", "europe-west4-b", "us-west1-c", "us-west4-a", "us-east5-a")


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers that exist. Without the others, a mutant that they would hide becomes visible."""

    guardian: bool = True
    watchdog: bool = True
    gc: bool = True
    timer: bool = True


NO_LAYER = Layers(guardian=False, watchdog=False, gc=False, timer=False)
GUARDIAN_ONLY, WATCHDOG_ONLY, GC_ONLY = (replace(NO_LAYER, **{name: True}) for name in ("guardian", "watchdog", "gc"))


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: str
    at_s: float
    text: str


@dataclass
class Result:
    seed: int
    violations: list[Violation]
    events: int
    steps: dict[str, int]  # process → number of points at which it can be killed
    unclaimed: list[tuple[str, float, float]] = field(default_factory=list)  # layer of the bound, seconds, bound
    trace: list[str] = field(default_factory=list)


class WorldStopped(BaseException):
    """Ends the world at its first violation. No program may catch it."""


class World:
    def __init__(
        self,
        seed: int,
        workload: Callable[[World], None],
        plan: FaultPlan,
        *,
        layers: Layers | None = None,
        speed: float = SPEED,
        trace: bool = False,
    ) -> None:
        self.seed, self.plan, self.layers, self.speed = seed, plan, layers or Layers(), speed
        self.rng = Random(seed ^ 0xC0FFEE)
        self.trace: list[str] | None = [] if trace else None
        self.timeline = Timeline()
        self.timings: Timings = emulated(speed)
        self.capabilities = Capabilities(
            cloud_deadline=False, multi_host=True, queue=True, idempotent_create="name", owner_filter="client",
            preempt_action="tombstone", visible_within_s=10.0 + TRAVEL_S, settles_within_s=60.0, timings=self.timings,
        )  # fmt: skip
        self.workers, self.zones = 1, ZONES
        self.slices = 1  # slices that one command asks for at once
        self.queues = False  # whether any slice is queued
        self.boot_s, self.collect_s = 2.0, 1.0
        self.no_room_until = 0.0  # until then the laptop has no disk space for results
        self.create_patience_s = 60.0
        self.gc_every_s: float | None = None
        self.timer_s: float | None = None
        self.faults = FaultInjector(self, plan, seed)
        self.settings = Settings(
            provision_s=plan.provision_s, delete_s=plan.delete_s, accept_s=plan.accept_s, queue_s=plan.queue_s,
            suspend_s=plan.suspend_s, refuse_s=plan.refuse_s, no_capacity=[f"{zone}/*" for zone in plan.stockouts],
        )  # fmt: skip
        self.violations: list[Violation] = []
        self.verdicts: dict[str, tuple[float, Allowance]] = {}
        self.fleets: list[SimFleet] = []
        self.authorized: set[Process] = set()
        self.crash_steps: dict[str, Any] = {}
        self.crash_points: dict[str, int] = {}
        self.frozen_since = self.thawed_at = 0.0
        self.ledger_was_lost = False
        self.foreign: set[str] = set()  # names of nodes that tpujob did not create
        self._guardians_killed: dict[Any, float] = {}
        self.main: Process | None = None
        self.acting: Process | None = None  # the process whose effect is being performed
        self.scheduled = 0  # number of planned acts that are still to come
        self._calls: dict[Any, tuple[float, int]] = {}
        self._watching = False
        self.oracle = Oracle(self)
        self.cloud = FakeCloud(self, self.settings)
        shape_timer = getattr(workload, "timer_s", None)
        self.workload = workload
        self.timer_s = shape_timer
        self.laptop: Machine = None  # type: ignore[assignment]  # the shape decides about its timer first
        self.elsewhere: Machine = None  # type: ignore[assignment]
        self.machines: list[Machine] = []

    # -- the course of a world -----------------------------------------------------------------------------------------

    def run(self) -> Result:
        self.workload(self)
        self._supply()
        if self.laptop is None:
            raise AssertionError("a shape begins with `settle_down`")
        self._arrange()
        try:
            self.timeline.run(self.timeline.now + HORIZON_S)
            self._at_the_end()
        except WorldStopped:
            pass
        unclaimed = [(bound.layer, took, bound.allowed_s) for took, bound in self.verdicts.values()]
        return Result(self.seed, self.violations, self.timeline.events, self.crash_points, unclaimed, self.trace or [])

    def _supply(self) -> None:
        plan, supply, now = self.plan, self.cloud.state.supply, self.timeline.now
        supply.capacity = [Capacity(zone=z, from_s=a, until_s=b, added_at=now) for z, a, b in plan.full]
        supply.closed_queues = [ClosedQueue(zone=zone) for zone in plan.closed]
        supply.quotas = [Quota(zone=zone, limit=0) for zone in plan.no_quota]

    def start_machines(self, *, timer_s: float | None = None, gc_every_s: float | None = None) -> Machine:
        """Create the machines. The workload calls it once."""
        self.timer_s = timer_s if self.layers.timer else None
        self.laptop = Machine(self, "laptop", "laptop-api", timer_s=self.timer_s)
        self.machines = [self.laptop]
        self.gc_every_s = gc_every_s if self.layers.gc else None
        if self.gc_every_s is not None:
            from tests.simulation.scenarios.commands import run_gc_elsewhere

            self.elsewhere = Machine(self, "elsewhere", "ci-api", correct_clock=True)
            self.machines.append(self.elsewhere)
            first_s = self.rng.uniform(0.0, self.gc_every_s)
            self.timeline.after(first_s, run_gc_elsewhere, self, self.gc_every_s)
        return self.laptop

    def _arrange(self) -> None:
        """Schedule everything in the plan that happens at a time."""
        plan, at = self.plan, self._at
        for name, when, what in plan.crashes:
            if name is None:
                at(when, self.crash, what, None)
            else:
                self.crash_steps[name] = (int(when), what)
        for when in plan.signals:
            at(when, self._signal)
        for begin, end in plan.stopped:
            at(begin, self._stop_main)
            at(end, self._continue_main)
        for begin, end in plan.asleep:
            at(begin, self._sleep)
            at(end, self._wake)
        for worker, when, back_s in plan.watchdog_dies:
            at(when, self._watchdog_dies, worker, back_s)
        for worker, when, back_s in plan.worker_dies:
            at(when, self._worker_dies, worker, back_s)
        if plan.disk_full is not None:
            at(plan.disk_full[0], self._fill_disk, True)
            at(plan.disk_full[1], self._fill_disk, False)
        if plan.ledger_lost_at is not None:
            at(plan.ledger_lost_at, self._lose_ledger)
        for when, by_s in plan.clock_steps:
            at(when, self._set_clock, by_s)
        if plan.preempt_at is not None:
            at(plan.preempt_at, self._preempt, 0.0, "READY")
        for when, notice_s in plan.preemptions:
            at(when, self._preempt, notice_s, "READY", "CREATING")
        if plan.user_deletes_at is not None:
            at(plan.user_deletes_at, self._user_deletes)

    def _at(self, when: float, act: Callable[..., None], *args: Any) -> None:
        self.scheduled += 1

        def happen() -> None:
            self.scheduled -= 1
            act(*args)
            self.stop_when_done()

        self.timeline.at(self.faults.begun_at + when, happen)

    def _at_the_end(self) -> None:
        for resource in self.oracle.existing():
            self.oracle.judge(resource)
        now, nodes = self.timeline.now, self.oracle.nodes()
        billed = sum((bill.until or now) - bill.since for bill in self.cloud.state.meter.bills)
        present = [node for node in nodes if node.gone_at is None]
        lived = self.oracle.billed_s + sum((node.billed_until or now) - node.created_at for node in present)
        if abs(billed - lived) > 1e-3 * (1 + len(nodes)):
            self.violated(Invariant.METER, f"the meter says {billed:.3f} s, nodes existed for {lived:.3f} s")

    def stop_when_done(self) -> None:
        """Stop when no process runs, nothing exists and nothing is planned."""
        if self.scheduled or self.oracle.existing() or self.cloud.state.delayed_creates:
            return
        for machine in self.machines:
            if machine.processes or any(guardian.alive for guardian in machine.guardians if not guardian.watched.alive):
                return
        self.timeline.after(self.capabilities.visible_within_s, self._stop_if_done)

    def _stop_if_done(self) -> None:
        if (
            not self.scheduled
            and not self.oracle.existing()
            and not any(machine.processes for machine in self.machines)
        ):
            self.timeline.stop()

    def watch_resources(self) -> None:
        if not self._watching:
            self._watching = True
            self.timeline.after(WATCH_EVERY_S, self._watch)

    def _watch(self) -> None:
        self._watching = False
        alive = self.oracle.existing()
        if not alive:
            return
        hope = [self.oracle.judge(resource) or resource.may_still_get_node(self.timeline.now) for resource in alive]
        if not any(hope) and not self.scheduled and not any(machine.processes for machine in self.machines):
            self.timeline.stop()  # no layer is left that could act, and none promised to
            return
        self.watch_resources()

    # -- checks --------------------------------------------------------------------------------------------------------

    def violated(self, invariant: str, text: str) -> None:
        self.violations.append(Violation(invariant, self.timeline.now - self.faults.begun_at, text))
        self.log(f"!! {invariant}: {text}")
        raise WorldStopped

    def log(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.timeline.now - self.faults.begun_at:9.3f}  {text}")

    def count_call(self, caller: Any) -> None:
        """Check the call rate: at most one call a second in the long run, for each slice asked for."""
        since, calls = self._calls.get(caller, (self.timeline.now, 0))
        calls += 1
        self._calls[caller] = (since, calls)
        rate = 60.0 / self.timings.heartbeat_s if isinstance(caller, Worker) else 1.0
        burst = BURST_CALLS * max(1, len(self.oracle.intents))
        if calls > burst + self.slices * rate * (self.timeline.now - since):
            who = caller.name if isinstance(caller, Process) else f"the watchdog of worker {caller.index}"
            self.violated(Invariant.CALL_RATE, f"{who} spins: {calls} calls in {self.timeline.now - since:.0f} s")

    def process_ended(self, process: Process) -> None:
        """Check that the exit code is honest."""
        self.stop_when_done()
        result, failure = process.result, process.error
        if isinstance(failure, Exception) and not isinstance(failure, TpujobError):
            self.violated(Invariant.NO_BUG, f"{process.name} ended with {failure!r}")
        if str(getattr(result, "error", "")).startswith("a bug in tpujob"):
            self.violated(Invariant.NO_BUG, f"{process.name}: {result.error}")
        if process.killed or process.role not in ("cli", "collector"):
            return
        code = 75 if isinstance(process.error, Abandoned) else getattr(result, "exit_code", None)
        claim = next((claim for claim in self.oracle.claims if claim.owner is process), None)
        if code is None or claim is None:
            return
        self.log(f"{process.name} exits with {code}: {getattr(result, 'error', None)}")
        if isinstance(process.error, Exception):
            return
        assert isinstance(result, Outcome | UpOutcome) or result is None
        kept_until = result.owed.kept_until if isinstance(result, UpOutcome) else getattr(result, "kept_until", None)
        kept = kept_until is not None or getattr(result, "detached", False)
        stays = result.lease.id if kept and result is not None and result.lease is not None else None
        if isinstance(result, UpOutcome) and result.error is None and result.lease is not None:
            stays = result.lease.id
        mine = [lease_id for lease_id in claim.lease_ids if lease_id != stays]
        if code == 75 and process.error is None:
            ledger = process.ledger.leases
            if all(lease_id not in ledger or not ledger[lease_id].open for lease_id in claim.lease_ids):
                self.violated(
                    Invariant.HONEST_EXIT_CODE, f"{process.name} exits with 75 though everything of its is proven gone"
                )
        if code == 75:
            return
        for lease_id in mine:
            for resource in self.oracle.existing():
                if resource.lease_id == lease_id:
                    self.violated(
                        Invariant.HONEST_EXIT_CODE, f"{process.name} exits with {code} while {resource} exists"
                    )
            self.oracle.reported_gone[lease_id] = process.name

    # -- scheduled faults, and crash points ----------------------------------------------------------------------------

    def passes_crash_point(self, process: Process) -> bool:
        """Count one more point at which this process can die. Return whether it died."""
        crash_at = self.crash_steps.get(process.name)
        return crash_at is not None and self.tick(process, crash_at)

    def tick(self, process: Process, crash_at: tuple[int, str]) -> bool:
        count = self.crash_points[process.name] = self.crash_points.get(process.name, 0) + 1
        if count == crash_at[0]:
            self.crash(crash_at[1], process)
        return not process.alive

    def crash(self, what: str, process: Process | None) -> None:
        process = process or self.main
        guardian = self.laptop.guardian_of(process) if process is not None else None
        if what != "cli":
            all_of_them = what == "machine" or process is None or process.role != "cli"
            self._guardians_killed[None if all_of_them else process] = self.timeline.now
        if what == "machine":
            self.laptop.crash(self.plan.reboot_after_s)
        if what in ("guardian", "cli+guardian"):
            for one in [guardian] if guardian is not None else list(self.laptop.guardians):
                one.kill()
        if what in ("cli", "cli+guardian") and process is not None:
            process.kill()
        if what != "machine":
            self.after_restart(self.laptop)

    def guardians_killed_at(self, owner: Process | None, *, anybody: bool) -> float | None:
        """Return when the plan killed the guardian of this process (or any guardian), whether or not it existed."""
        killed = self._guardians_killed
        times = [at for process, at in killed.items() if anybody or process is None or process is owner]
        return max(times, default=None)

    def after_restart(self, machine: Machine) -> None:
        """Schedule the next command after a crash."""
        if self.plan.command_after_s is not None and machine is self.laptop:
            at = self.timeline.now - self.faults.begun_at + self.plan.command_after_s
            self._at(at, self.laptop.type_command)

    def _signal(self) -> None:
        if self.main is not None:
            self.main.signal(2)

    def _stop_main(self) -> None:
        if self.main is not None and self.main.alive:
            self.frozen_since = self.timeline.now
            self.main.freeze()

    def _continue_main(self) -> None:
        self.thawed_at = self.timeline.now
        if self.main is not None and not self.laptop.asleep:
            self.main.thaw()

    def _set_clock(self, by_s: float) -> None:
        self.log(f"the laptop's wall clock is set, by {by_s:+.0f} s")
        self.laptop.clock.offset_s += by_s

    def _sleep(self) -> None:
        self.frozen_since = self.timeline.now
        self.laptop.sleep()

    def _wake(self) -> None:
        self.thawed_at = self.timeline.now
        self.laptop.wake_up()

    def _workers(self, index: int) -> list[Worker]:
        return [vm.workers[index] for vm in self.cloud.vms.values() if index < len(vm.workers) and vm.on]

    def _watchdog_dies(self, index: int, back_s: float | None) -> None:
        for worker in self._workers(index):
            worker.kill_watchdog(back_s)

    def _worker_dies(self, index: int, back_s: float | None) -> None:
        for worker in self._workers(index):
            self.log(f"worker {index} dies")
            worker.off()
            if back_s is not None:
                self.timeline.after(back_s, self._worker_back, worker)

    def _worker_back(self, worker: Worker) -> None:
        if worker.vm.on:
            worker.boot()

    def _fill_disk(self, full: bool) -> None:
        self.log("the disk is full" if full else "there is room on the disk again")
        self.laptop.ledger.full = full

    def _lose_ledger(self) -> None:
        self.ledger_was_lost = True
        self.laptop.lose_ledger()

    def _victims(self, *states: str) -> list[tuple[Node, Resource]]:
        nodes, resources = self.cloud.state.nodes.values(), self.oracle.resources
        return [(n, resources[n.uid]) for n in nodes if n.state in states and not resources[n.uid].foreign]

    def _preempt(self, notice_s: float, *states: str) -> None:
        for node, _ in self._victims(*states):
            if node.hidden_until is not None and node.hidden_until > self.timeline.now:
                continue  # a node that is being deleted is not preempted
            self.log(f"{node.node_id} is to be preempted, {notice_s:.0f} s from now")
            self.cloud.state.preempt(node.name, self.timeline.now, notice_s)
        self.cloud.settle()

    def _user_deletes(self) -> None:
        for node, known in self._victims("READY"):
            self.log(f"{node.node_id} is deleted in the console")
            known.lost_at = self.timeline.now
            for resource in self.oracle.existing():
                if resource.node is known:
                    resource.lost_at = self.timeline.now
            self.cloud.state.vanish(node.name, self.timeline.now)
        self.cloud.settle()
