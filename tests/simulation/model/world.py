"""One simulated world: a cloud, a laptop with its user, optionally gc on another machine, and the faults.

`World(seed, workload, plan).run()` plays it to its end and returns the violated invariants. The same arguments give the
same world, event for event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from cloud_tpu_emulator.model.records import Settings
from cloud_tpu_emulator.model.supply import Capacity, Quota, Selector
from orchestrator.errors import TpujobError
from orchestrator.promise.effects.interpreter import Abandoned
from orchestrator.promise.lease.access import NO_WISH
from orchestrator.promise.lease.cloud_api import Capabilities
from orchestrator.promise.lease.periods import Timings, emulated
from orchestrator.promise.lease.run_and_attempt import AttemptState
from orchestrator.run.progress import Outcome
from orchestrator.run.up_and_down import UpOutcome
from tests.simulation.model import scheduled_faults
from tests.simulation.model.cloud import FakeCloud
from tests.simulation.model.cloud_client import CloudClient
from tests.simulation.model.faults import TRAVEL_S, FaultInjector, FaultPlan
from tests.simulation.model.fleet import SimFleet
from tests.simulation.model.hosts import Worker
from tests.simulation.model.machine import Machine
from tests.simulation.model.process import Process
from tests.simulation.model.scheduled_faults import Timeline
from tests.simulation.oracle.bounds import Allowance
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
    cloud_kind = "emulated"  # of its leases

    def __init__(
        self,
        seed: int,
        workload: Callable[[World], object],
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
        self.capabilities = Capabilities(10.0 + TRAVEL_S, settles_within_s=60.0, timings=self.timings)
        self.workers = 1
        self.zones: tuple[str, ...] = ZONES
        self.slices = 1  # slices that one command asks for at once
        self.queues = False  # whether any slice is queued
        self.boot_s, self.collect_s = 2.0, 1.0
        self.save_s: float | None = None  # how long a copy of the work takes; None: as long as the results, 2 s at most
        self.no_room_until = 0.0  # until then the laptop has no disk space for results
        self.gc_every_s: float | None = None
        self.timer_s: float | None = None
        self.faults = FaultInjector(self, plan, seed)
        self.settings = Settings(
            provision_s=plan.provision_s, delete_s=plan.delete_s, accept_s=plan.accept_s, queue_s=plan.queue_s,
            suspend_s=plan.suspend_s, refuse_s=plan.refuse_s, no_capacity=[f"{zone}/*" for zone in plan.stockouts],
            forbid_external_ips=plan.forbid_external_ips, require_os_login=plan.require_os_login,
        )  # fmt: skip
        self.violations: list[Violation] = []
        self.verdicts: dict[str, tuple[float, Allowance]] = {}
        self.fleets: list[SimFleet] = []
        self.authorized: set[Process] = set()
        self.crash_steps: dict[str, Any] = {}
        self.crash_points: dict[str, int] = {}
        self.frozen_since = self.thawed_at = 0.0
        self.ledger_was_lost = False
        self.wish = NO_WISH  # how the user wants to reach the workers
        self.foreign: set[str] = set()  # names of nodes that tpujob did not create
        self.guardians_killed: dict[Any, float] = {}
        self.main: Process | None = None
        self.acting: Process | None = None  # the process whose effect is being performed
        self.scheduled = 0  # number of planned acts that are still to come
        self._calls: dict[Any, tuple[float, int]] = {}
        self._watching = False
        self.oracle = Oracle(self)
        self.cloud = FakeCloud(self, self.settings)
        self.workload = workload
        self.laptop: Machine = None  # type: ignore[assignment]  # the workload decides about its timer
        self.elsewhere: Machine = None  # type: ignore[assignment]
        self.machines: list[Machine] = []

    # -- the cloud, as processes reach it -------------------------------------------------------------------------------

    def client(self, process: Process) -> Any:
        """Return what a process has of the cloud."""
        return CloudClient(self.cloud, process)

    def ask_workers(self, process: Process, effect: Any, token: int) -> None:
        """Begin an effect on workers."""
        SimFleet.begin(process, effect, token)

    # -- the course of a world -----------------------------------------------------------------------------------------

    def run(self) -> Result:
        self.workload(self)
        self._supply()
        if self.laptop is None:
            raise AssertionError("a workload begins with `start_machines`")
        scheduled_faults.schedule(self)
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
        supply.closed_queues = [Selector(zone=zone) for zone in plan.closed]
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

    def at(self, when: float, act: Callable[..., object], *args: Any) -> None:
        self.scheduled += 1

        def happen() -> None:
            self.scheduled -= 1
            act(*args)
            self.stop_when_done()

        self.timeline.at(self.faults.begun_at + when, happen)

    def _at_the_end(self) -> None:
        for resource in self.oracle.existing():
            self.oracle.judge(resource)
        self.oracle.logins.at_the_end()
        now, nodes = self.timeline.now, self.oracle.nodes()
        billed = sum((bill.until or now) - bill.since for bill in self.cloud.state.meter.bills)
        present = [node for node in nodes if node.gone_at is None]
        lived = self.oracle.billed_s + sum((node.billed_until or now) - node.created_at for node in present)
        if abs(billed - lived) > 1e-3 * (1 + len(nodes)):
            self.violated(Invariant.METER, f"the meter says {billed:.3f} s, nodes existed for {lived:.3f} s")

    def stop_when_done(self) -> None:
        """Stop when no process runs, nothing exists and nothing is planned."""
        if self.scheduled or self.oracle.existing() or self.creates_under_way():
            return
        for machine in self.machines:
            if machine.processes or any(guardian.alive for guardian in machine.guardians if not guardian.command.alive):
                return
        self.timeline.after(self.capabilities.visible_within_s, self._stop_if_done)

    def creates_under_way(self) -> bool:
        return bool(self.cloud.state.delayed_creates)

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
        if not self.oracle.existing():
            return
        if not any(self._pending()) and not self.scheduled and not any(machine.processes for machine in self.machines):
            self.timeline.stop()  # no layer is left that could act, and none promised to
            return
        self.watch_resources()

    def _pending(self) -> list[bool]:
        """Return of everything that exists whether it may still change, or exceed its bound."""
        now, alive = self.timeline.now, self.oracle.existing()
        return [self.oracle.judge(resource) or resource.may_still_get_node(now) for resource in alive]

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
        if code is not None:
            self.check_exit(process, code)

    def check_exit(self, process: Process, code: int) -> None:
        result = process.result
        claim = next((claim for claim in self.oracle.claims if claim.owner is process), None)
        if claim is None:
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
        if isinstance(result, Outcome) and not (result.detached or self.plan.disk_full or self.ledger_was_lost):
            said = {each.state for each in process.ledger.attempts.values() if each.run_id == result.run.id}
            if (AttemptState.CANCELED in said) is not (result.state is AttemptState.CANCELED):
                self.violated(Invariant.HONEST_EXIT_CODE, f"{process.name} ends as {result.state}, its run {said}")
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

    # -- crash points ----------------------------------------------------------------------------------------------------

    def passes_crash_point(self, process: Process) -> bool:
        """Count one more point at which this process can die. Return whether it died."""
        crash_at = self.crash_steps.get(process.name)
        return crash_at is not None and self.tick(process, crash_at)

    def tick(self, process: Process, crash_at: tuple[int, str]) -> bool:
        count = self.crash_points[process.name] = self.crash_points.get(process.name, 0) + 1
        if count == crash_at[0]:
            scheduled_faults.crash(self, crash_at[1], process)
        return not process.alive
