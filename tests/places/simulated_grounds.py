"""Simulated grounds: a slice and a JobSet under virtual time. What waits for `let_go` ends by itself after a while."""

from __future__ import annotations

import itertools
import signal
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from orchestrator.places.gke.traits import TRAITS as OF_GKE
from orchestrator.places.place import STATES, Phase
from orchestrator.places.tpu.traits import TRAITS as OF_TPU
from orchestrator.places.vms.stay import VmStay
from orchestrator.promise.effects.base import Lock
from orchestrator.promise.effects.interpreter import Abandoned
from orchestrator.promise.lease.run_and_attempt import RunRecord
from orchestrator.run.job_run import JobRun
from orchestrator.run.program import run_job
from tests.places.ground import CREATED, KILLED, Command, Ground, Job
from tests.simulation.model import scheduled_faults
from tests.simulation.model.cluster import ClusterPlan
from tests.simulation.model.cluster_world import ClusterWorld
from tests.simulation.model.faults import FOREVER, FaultPlan, cloud_fault
from tests.simulation.model.process import Process
from tests.simulation.model.world import ZONES, World, WorldStopped
from tests.simulation.scenarios import clusters, commands
from tests.simulation.scenarios.clusters import ClusterWorkload
from tests.simulation.scenarios.commands import Candidates
from tests.simulation.scenarios.random_worlds import Workload

QUICK_S, WAITS_S, LIMIT_S = 3.0, 100.0, 60.0
OFF_S, HORIZON_S, LOOK_S = 6 * 3600.0, 24 * 3600.0, 0.05


@dataclass
class SimulatedCommand:
    ground: SimulatedGround
    process: Process
    verb: str
    at: str

    def until_begun(self) -> None:
        self.ground.until(lambda: bool(self.process.fleets) and self.ground.is_running())

    def press(self, number: int = signal.SIGINT) -> None:
        self.process.signal(number)

    def kill(self) -> None:
        scheduled_faults.crash(self.ground.world, "cli+guardian", self.process)

    def code(self) -> int:
        if self.at == CREATED:
            self.ground.until(lambda: bool(self.ground.left()))
            self.kill()
        self.ground.until(lambda: not self.process.alive)
        if self.process.killed:
            return KILLED
        if isinstance(self.process.error, Abandoned):
            return 75
        if (code := getattr(self.process.result, "exit_code", None)) is not None:
            return int(code)
        return 75 if self.verb == "status" and self.ground.is_releasing() else 0

    @property
    def said(self) -> str:
        result = self.process.result
        told = str(getattr(result, "error", None) or "")
        unproven = getattr(result, "unproven", False)
        return f"{told}\nNOT VERIFIED GONE: {result.released.verdict.last_seen}" if unproven else told


class SimulatedGround(Ground):
    has_bytes = False
    world: World

    def begin(self, job: Job, world: World) -> None:
        """Begin the world in which this is the job."""
        self.of, self.world = job, world
        self.lasts_s = inf if job.is_short else WAITS_S if job.waits else QUICK_S
        world.workload(world)
        world._supply()
        scheduled_faults.schedule(world)
        world.plan.reboot_after_s = OFF_S

    def until(self, happened: Callable[[], bool]) -> None:
        """Let virtual time pass until this has happened."""
        timeline = self.world.timeline
        ends_at = timeline.now + HORIZON_S

        def look() -> None:
            if happened() or timeline.now > ends_at:
                timeline.stop()
            else:
                timeline.after(LOOK_S, look)

        timeline.after(0.0, look)
        try:
            while not happened():
                assert timeline.now < ends_at, "it never happened"
                timeline.stopped = False
                timeline.run(inf)
        except WorldStopped:
            raise AssertionError(str(self.world.violations)) from None

    def later(self, seconds: float) -> None:
        """Let so much virtual time pass."""
        at = self.world.timeline.now + seconds
        self.until(lambda: self.world.timeline.now >= at)

    def next_commands(self) -> None:
        while self.play("status")[0] == 75:
            self.later(10.0)

    def start(self, verb: str, at: str = "") -> SimulatedCommand:
        self.until(lambda: self.world.laptop.on)
        if at.isdigit():
            self.world.crash_steps[verb] = (int(at), "cli+guardian")
        before = list(self.world.laptop.processes)
        self.type(verb)
        (process,) = (each for each in self.world.laptop.processes if each not in before)
        return SimulatedCommand(self, process, verb, at)

    @abstractmethod
    def type(self, verb: str) -> None:
        """Type a command."""

    @abstractmethod
    def is_running(self) -> bool:
        """Return whether the job runs."""

    def points(self) -> Iterator[str]:
        return map(str, itertools.count(1))

    def power_cut(self, command: Command) -> None:
        scheduled_faults.crash(self.world, "machine", None)

    def until_it_ends_by_itself(self) -> None:
        """The oracle of the world knows the bound."""
        self.until(lambda: not self.bills())

    def bills(self) -> bool:
        return bool(self.left())

    def let_go(self) -> None:
        """Nothing: it ends by itself."""

    @property
    def ledger(self) -> Any:
        return self.world.laptop.ledger

    def asked(self) -> set[str]:
        return {lease.name.node for lease in self.ledger.leases.values()}

    def attempt(self) -> Any:
        return list(self.ledger.attempts.values())[-1]

    def has_runs(self) -> bool:
        return bool(self.ledger.attempts)


class SimulatedSlice(SimulatedGround):
    place, traits = "tpu", OF_TPU

    def job(self, job: Job) -> None:
        self.begin(job, World(7, lambda world: world.start_machines(), FaultPlan(provision_s=2.0, delete_s=0.5)))

    def type(self, verb: str) -> None:
        world = self.world
        if verb in ("run", "submit"):
            life_s = LIMIT_S if self.of.is_short else 1200.0
            asked = Candidates(ZONES[:1])
            commands.type_run(
                world, candidates=asked, lasts_s=min(self.lasts_s, 1e6), rc=self.of.code, life_s=life_s, name=verb,
                detach=verb == "submit",
            )  # fmt: skip
            owner = world.oracle.claims[-1].owner
            assert owner is not None
            owner.on_exit = None  # no process that collects follows it
        elif verb == "attach":
            (lease,), attempt = self.ledger.open_leases(), self.attempt()
            run = RunRecord(attempt.run_id, "submit", "job.yaml", "emulated", 0.0, "runs/x")
            main, sink = Phase("main", STATES["main"]), lambda worker, piece: None
            job = JobRun(run, attempt, VmStay(OF_TPU), (main,), ("*",), Path("runs"), sink, 1200.0, attached_to=lease)

            async def attach() -> Any:
                return await run_job(job, world.capabilities) if await Lock(attempt.id) else None

            world.laptop.run("attach", attach(), role="collector")
        elif verb == "cancel":
            commands.type_down(world)
            world.laptop.processes[-1].name = "cancel"
        else:
            world.laptop.type_command()

    def is_running(self) -> bool:
        now = self.world.timeline.now
        jobs = [job for vm in self.world.cloud.vms.values() for worker in vm.workers for job in worker.jobs.items()]
        return any(name == "main" and job.ends_at > now for name, job in jobs)

    def left(self) -> list[str]:
        return [str(each) for each in self.world.oracle.existing()]

    def delete_slowly(self, *, never: bool = False) -> None:
        if never:
            self.world.plan.delete_effects.extend([cloud_fault("operation_fails", "nodes.delete")] * 10_000)
        else:
            self.world.settings.delete_s = 300.0

    def delete_again(self) -> None:
        self.world.plan.delete_effects.clear()


class SimulatedJobSet(SimulatedGround):
    place, traits = "gke", OF_GKE
    world: ClusterWorld

    def job(self, job: Job, **plan: Any) -> None:
        """`plan`: what goes wrong in the cluster."""
        self.begin(job, ClusterWorld(7, lambda world: world.start_machines(), ClusterPlan(**plan), trace=True))

    def type(self, verb: str) -> None:
        workload = ClusterWorkload(
            Workload("run", lasts_s=min(self.lasts_s, 1e6), rc=self.of.code), detach=verb == "submit",
            max_s=LIMIT_S if self.of.is_short else 300.0,
        )  # fmt: skip
        if verb in ("run", "submit"):
            clusters.type_run(self.world, workload, verb)
        elif verb == "attach":
            clusters.type_attach(self.world, workload)
        elif verb == "cancel":
            clusters.type_cancel(self.world)
        else:
            self.world.laptop.type_command()

    def is_running(self) -> bool:
        return any(
            pod.started_at is not None and pod.ended_at is None for each in self.world.cluster.sets for pod in each.pods
        )

    def left(self) -> list[str]:
        return [each.name for each in self.world.judge.existing()]

    def bills(self) -> bool:
        return any(pod.holds_tpu for each in self.world.cluster.sets for pod in each.pods)

    def delete_slowly(self, *, never: bool = False) -> None:
        since = self.world.timeline.now - self.world.faults.begun_at
        self.world.cluster_plan.finalizer_until = FOREVER if never else since + 400.0

    def delete_again(self) -> None:
        self.world.cluster_plan.finalizer_until = None
