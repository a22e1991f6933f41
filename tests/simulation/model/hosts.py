"""The hosts of a node: the job on them and the watchdog, which is the production program.

The watchdog reads the configuration that is part of the startup script in the create request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloud_tpu_emulator.faults.api_errors import ApiError
from cloud_tpu_emulator.faults.fault import NoReply
from cloud_tpu_emulator.model.records import Node
from orchestrator.errors import AuthError
from orchestrator.promise import watchdog

if TYPE_CHECKING:
    from tests.simulation.model.world import World


STOPPING_S, TERMINATED = 0.3, 143
_CONFIG = re.compile(r"^\{$.*?^\}$", re.DOTALL | re.MULTILINE)
_configs: dict[str, dict[str, Any]] = {}


def config_of(script: str) -> dict[str, Any]:
    """Return the configuration of the watchdog in a startup script."""
    found = _CONFIG.search(script)
    assert found is not None, "the startup-script carries no configuration for the watchdog"
    return dict(json.loads(found.group()))


class NodeVms:
    """The VMs of all workers of one node."""

    def __init__(self, world: World, node: Node) -> None:
        self.world, self.node, self.on = world, node, False
        self.created_at = world.timeline.now
        self.ready_at: float | None = None
        self.workers = [Worker(self, index) for index in range(node.workers)]

    def boot(self, node: Node) -> None:
        self.on = True
        self.ready_at = self.world.timeline.now
        for worker in self.workers:
            worker.boot()

    def off(self) -> None:
        self.on = False
        for worker in self.workers:
            worker.off()


@dataclass
class Job:
    started_at: float
    ends_at: float
    rc: int
    attempt: str = ""

    def state(self, now: float) -> tuple[str, float | None, int | None]:
        return ("running", None, None) if now < self.ends_at else ("ended", now - self.ends_at, self.rc)


class Worker:
    """One host. It may die alone, and so may its watchdog."""

    def __init__(self, vm: NodeVms, index: int) -> None:
        self.vm, self.world, self.index = vm, vm.world, index
        self.up = False
        self.booted_at = 0.0
        self.last_heartbeat: str | None = None
        self.jobs: dict[str, Job] = {}
        self.watchdog: WatchdogRun | None = None

    @property
    def internal(self) -> str:
        """Its address, as a WorkerAddress has it."""
        return f"10.0.0.{self.index}"

    def boot(self) -> None:
        self.up, self.booted_at, self.last_heartbeat = True, self.world.timeline.now, None
        if self.world.plan.script_runs:
            self.world.timeline.after(self.world.boot_s, self.start_watchdog, self.booted_at)

    def start_watchdog(self, booted_at: float) -> None:
        """Start the watchdog of this boot. `booted_at` tells it from later boots."""
        if (
            not self.up
            or booted_at != self.booted_at
            or not self.world.layers.watchdog
            or not self.world.plan.script_runs
        ):
            return
        script = self.vm.node.spec.get("metadata", {}).get("startup-script")
        if not script:
            return
        config = _configs.get(script) or _configs.setdefault(script, config_of(script))
        if len(_configs) > 64:
            _configs.clear()
        self.watchdog = WatchdogRun(self, dict(config))
        self.watchdog.advance(None)

    def kill_watchdog(self, back_s: float | None) -> None:
        if self.watchdog is not None:
            self.world.log(f"the watchdog on worker {self.index} is killed")
            self.watchdog.alive = False
            self.watchdog = None
        if back_s is not None:
            self.world.timeline.after(back_s, self.start_watchdog, self.booted_at)

    def off(self) -> None:
        self.up = False
        if self.watchdog is not None:
            self.watchdog.alive = False
            self.watchdog = None
        now = self.world.timeline.now
        for job in self.jobs.values():
            if job.ends_at > now:
                job.ends_at, job.rc = now, 137

    def stop_job(self) -> bool:
        """Send SIGTERM to the job, which then ends soon."""
        job, now = self.jobs.get("main"), self.world.timeline.now
        if job is not None and job.ends_at > now:
            job.ends_at, job.rc = min(job.ends_at, now + STOPPING_S), TERMINATED
            self.world.oracle.job_started(self.vm, job.ends_at)
        return True

    def job_state(self) -> tuple[str, float | None, int | None]:
        main = self.jobs.get("main")
        return ("none", None, None) if main is None else main.state(self.world.timeline.now)

    def job_report(self) -> dict[str, Any] | None:
        state, _, rc = self.job_state()
        return None if state == "none" else {"attempt": self.jobs["main"].attempt, "state": state, "rc": rc}


class WatchdogRun:
    """Drives the production `watchdog.program` under virtual time."""

    __slots__ = ("alive", "program", "started_at", "token", "worker", "world")

    def __init__(self, worker: Worker, config: dict[str, Any]) -> None:
        self.worker, self.world, self.alive = worker, worker.world, True
        self.started_at = self.world.timeline.now
        self.program: Generator[tuple[Any, ...], Any, Any] = watchdog.program(config, worker.index)

    def advance(self, answer: Any) -> None:
        worker, world = self.worker, self.world
        timeline = world.timeline
        if world.plan.vms_paused and (wait_s := world.faults.vms_resume_in_s()):
            timeline.after(wait_s + 1e-6, self.advance, answer)
            return
        drift = 1.0 + world.plan.vm_drift
        send = self.program.send
        while self.alive:
            effect = send(answer)
            kind = effect[0]
            if kind == "clock":
                answer = (timeline.now - worker.booted_at) * drift
            elif kind == "sleep":
                timeline.after(max(effect[1], 0.001) / drift, self.advance, None)
                return
            elif kind == "call":
                self._call(effect)
                return
            elif kind == "heartbeat":
                answer = worker.last_heartbeat
            elif kind == "job":
                answer = worker.job_state()
            elif kind == "report":
                answer = worker.job_report(), {}
            elif kind == "publish":
                worker.vm.node.hosts[worker.index].attributes[f"tpujob/{effect[1]}"] = json.dumps(effect[2])
                answer = True
            elif kind == "busy":
                answer = any(not fleet.disconnected for fleet in world.fleets if fleet.vm is worker.vm)
            elif kind == "preempted":
                answer = worker.vm.node.preempted_at is not None
            elif kind == "stop":
                answer = worker.stop_job()
            elif kind == "log":
                if world.trace is not None:
                    world.log(f"watchdog{worker.index}: {effect[1]}")
                answer = None
            else:
                raise NotImplementedError(f"the simulator does not know the effect of the watchdog {effect!r}")

    def _call(self, effect: tuple[Any, ...]) -> None:
        _, method, path, _body = effect
        world = self.world
        world.count_call(self.worker)
        of_request = "/queuedResources/" in path
        verb = "nodes.get" if method == "GET" else "queuedResources.delete" if of_request else "nodes.delete"
        outcome = world.faults.outcome_of_call(verb, "vm", "vm-api")
        if outcome.reaches:
            world.timeline.after(outcome.there_s, self._arrive, method, path, outcome)
            return
        world.faults.note_failed_call(None, outcome)
        answer = (403, None, self._date()) if isinstance(outcome.error, AuthError) else (0, None, None)
        world.timeline.after(outcome.there_s + outcome.back_s, self._reply, answer)

    def _date(self) -> float:
        return float(int(self.world.timeline.now))

    def _arrive(self, method: str, path: str, outcome: Any) -> None:
        cloud = self.world.cloud
        name = path.removeprefix("/v2/")
        try:
            if method == "DELETE":
                record = self._delete(name, outcome)
                answer: tuple[Any, ...] = (200, {"name": record.name}, self._date())
            else:
                node = cloud.node(name)
                body = {"name": node.name, "state": node.state, "labels": dict(node.spec.get("labels", {}))}
                if node.queued_resource is not None:
                    body["queuedResource"] = node.queued_resource
                answer = (200, body, self._date())
        except ApiError as refusal:
            answer = (refusal.http, None, self._date())
        except NoReply:
            answer = (0, None, None)
        if outcome.error is not None:
            self.world.faults.note_failed_call(None, outcome)
            answer = (0, None, None)
        self.world.timeline.after(outcome.back_s, self._reply, answer)

    def _delete(self, name: str, outcome: Any) -> Any:
        cloud, caller = self.world.cloud, f"watchdog{self.worker.index}"
        name, _, query = name.partition("?")
        if "/queuedResources/" in name:
            return cloud.delete_request(name, outcome, caller, None, force=query == "force=true")
        return cloud.delete(name, outcome, caller, None)

    def _reply(self, answer: tuple[Any, ...]) -> None:
        if self.alive:
            self.advance(answer)
