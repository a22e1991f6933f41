"""A simulated world in which a test drives one program after another, and looks and acts between their effects.

Its periods are those of Google Cloud. No layer works but the command, and what watchdogs publish is made up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from cloud_tpu_emulator.model.records import Node
from cloud_tpu_emulator.model.supply import Capacity
from orchestrator.errors import TpujobError
from orchestrator.places.place import STATES, Phase
from orchestrator.places.tpu.traits import TRAITS as OF_TPU
from orchestrator.places.vms.stay import VmStay
from orchestrator.promise.effects import base, cloud
from orchestrator.promise.effects.base import Effect, Program
from orchestrator.promise.lease.changes import Created, CreateSent, Intent, NotAllowed, Ready
from orchestrator.promise.lease.cloud_api import Capabilities
from orchestrator.promise.lease.lease import Lease, Purpose, SliceName
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.promise.ledger.clocks import Clocks
from orchestrator.promise.obtain.drafts import Draft
from orchestrator.run.job_run import JobRun
from orchestrator.run.program import run_job
from orchestrator.run.progress import Outcome
from orchestrator.run.up_and_down import UpRequest, up
from tests.fakes.leases import ZONE, LedgerInMemory, lease_and_request
from tests.simulation.model.cloud_client import CloudClient
from tests.simulation.model.faults import CallOutcome, FaultPlan
from tests.simulation.model.fleet import SimCollection, SimFleet, SimStartRequest
from tests.simulation.model.hosts import Job
from tests.simulation.model.process import Process
from tests.simulation.model.world import NO_LAYER, World

T = TypeVar("T")
CAN = Capabilities(visible_within_s=300, settles_within_s=2700)
A_YEAR_S = 365 * 86400.0
Between = Callable[["Bench"], Any]


def driven(program: Program[T], answer: Callable[[Effect[Any]], Any]) -> T:
    """Run a program to its end on the answers, and errors of tpujob, that `answer` has for its effects."""
    value: Any = None
    error: Exception | None = None
    for _ in range(20_000):
        try:
            effect = program.send(value) if error is None else program.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        value, error = None, None
        try:
            value = answer(effect)
        except (TpujobError, NotAllowed) as raised:
            error = raised
    raise AssertionError("it never ended")


class Crash(Exception):
    """The process was killed: none of its later effects happens."""


class BenchClient(CloudClient):
    """The cloud, with a watchdog on each worker that has proved everything and has read the labels."""

    __slots__ = ()

    def guest_attributes(self, name: SliceName) -> tuple[Mapping[str, str], ...]:
        world: Any = self.cloud.world
        node = world.nodes.get(name.node)
        if node is None or not world.armed:
            return ()
        if node.preempted_at is not None:
            return ({"tpujob/notice": "{}"},) * node.workers
        record = {"armed": True, "route": True, "permission": True, "mode": node.spec["labels"].get("tpujob-mode", "")}
        return tuple({"tpujob/watchdog": json.dumps({**record, "worker": each})} for each in range(node.workers))


class Bench(World):
    def __init__(self, **plan: Any) -> None:
        plan = {"provision_s": 60.0, "delete_s": 20.0, "queue_s": 0.0, **plan}
        super().__init__(7, lambda world: None, FaultPlan(**plan), layers=NO_LAYER)
        self.timings, self.capabilities = CAN.timings, CAN
        self.start_machines()
        self.ledger = LedgerInMemory()
        self.laptop.ledger = self.ledger  # type: ignore[assignment]  # the production one, for what is read from it
        self.laptop.clocks = Clocks(self.ledger, self.laptop.clock)
        self.laptop.now()  # a command ran before: this machine's time is known
        self.armed = True  # whether watchdogs have published
        self.lasts_s, self.rc = 100.0, 0  # of jobs that start
        self.collect_s, self.queues = 0.0, True
        self.effects: list[Effect[Any]] = []
        self._driven = 0

    # -- time and programs -----------------------------------------------------------------------------------------------

    @property
    def time(self) -> float:
        return self.timeline.now

    @time.setter
    def time(self, when: float) -> None:
        self.timeline.at(when, self.timeline.stop)
        self._until(lambda: self.timeline.now >= when)

    def _until(self, happened: Callable[[], bool]) -> None:
        late = self.timeline.now + A_YEAR_S
        while not happened():
            self.timeline.stopped = False
            self.timeline.run(late)
            assert self.timeline.now < late, "it never ended"

    def drive(
        self,
        program: Program[T],
        *,
        between: Between | None = None,
        killed_at: int = 0,
        signalled_at: int | str = 0,
    ) -> T:
        """Run a program to its end as a process.

        `killed_at`: the n-th point at which it can die. `signalled_at`: the effect in which it hears a signal, by its number
        from 1 on, or the first one of that kind.
        """
        self._driven += 1
        name = f"program {self._driven}"
        if killed_at:
            self.crash_steps[name] = (killed_at, "cli")
        ended: list[Process] = []

        def end(process: Process) -> None:
            ended.append(process)
            self.timeline.stop()

        self.laptop.run(name, self._watched(program, between, signalled_at), on_exit=end)  # type: ignore[arg-type]
        self._until(lambda: bool(ended))
        if ended[0].killed:
            raise Crash
        if ended[0].error is not None:
            raise ended[0].error
        return ended[0].result  # type: ignore[no-any-return]

    def ran(self, prepared: JobRun | None = None, between: Between | None = None, **how: Any) -> Outcome:
        """Run a job to its end; return its outcome."""
        return self.drive(run_job(prepared or job(self), CAN), between=between, **how)

    def _watched(
        self, program: Program[T], between: Between | None, signalled_at: int | str
    ) -> Generator[Effect[Any], Any, T]:
        answer: Any = None
        error: BaseException | None = None
        process = self.laptop.processes[-1]
        for number in range(1, 40_000):
            try:
                effect = program.send(answer) if error is None else program.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            self.effects.append(effect)
            if signalled_at in (number, self.last):
                signalled_at = 0
                process.signal(2)
            answer, error = None, None
            try:
                answer = yield effect
            except Exception as raised:
                error = raised
            if between is not None:
                between(self)
        raise AssertionError("the program spins")

    def process_ended(self, process: Process) -> None:
        """The test looks at how it ended."""

    def violated(self, invariant: str, text: str) -> None:
        """The oracle knows nothing of what this test promises."""

    def client(self, process: Process) -> Any:
        return BenchClient(self.cloud, process)

    def ask_workers(self, process: Process, effect: Any, token: int) -> None:
        """Workers that the test made up answer at once. A connection outlives its program, as it does inside one process."""
        asked = getattr(effect, "fleet", getattr(effect, "collection", None))
        if isinstance(asked, SimFleet):
            asked.process = process
        if asked is None or isinstance(asked, SimFleet | SimCollection):
            super().ask_workers(process, effect, token)
        else:
            self.timeline.after(0.001, process._perform_and_answer, token, effect)

    # -- what happened -----------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """Return the kinds of all effects so far."""
        return [type(effect).__name__ for effect in self.effects]

    @property
    def last(self) -> str:
        return type(self.effects[-1]).__name__

    @property
    def told(self) -> list[str]:
        return [f"{effect.stage} {effect.text}" for effect in self.effects if isinstance(effect, base.Report)]

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Return the calls about slices: their kind, and the node."""
        found: list[tuple[str, str]] = []
        for effect in self.effects:
            if isinstance(effect, cloud.Create):
                found.append(("Create", effect.request.name.node))
            elif isinstance(effect, cloud.DeleteAll):
                found += [("Delete", name.node) for name in effect.names]
            elif isinstance(effect, cloud.SliceEffect):
                found.append((type(effect).__name__, effect.name.node))
        return found

    def count(self, call: str) -> int:
        return [kind for kind, _ in self.calls].count(call)

    @property
    def locked(self) -> set[str]:
        """Return the locks that a program took and left."""
        held: set[str] = set()
        for effect in self.effects:
            if isinstance(effect, base.Lock):
                held.add(effect.lease_id)
            elif isinstance(effect, base.Unlock):
                held.discard(effect.lease_id)
        return held

    @property
    def nodes(self) -> dict[str, Node]:
        """Return the nodes that exist, by their short names."""
        return {node.node_id: node for node in self.cloud.look().nodes.values()}

    def key_expires_at(self, lease: Lease) -> float:
        """Return when the key of a lease in the OS Login profile expires."""
        keys = self.cloud.state.logins.keys(self.time).values()
        return next((key.expires_usec or 0) / 1e6 for key in keys if key.line.endswith(lease.id))

    @property
    def attempt(self) -> Attempt:
        ((_, attempt),) = self.ledger.runs()
        return attempt

    @property
    def job(self) -> Job | None:
        """Return the job that runs."""
        jobs = [worker.jobs.get("main") for vm in self.cloud.vms.values() for worker in vm.workers]
        return next((job for job in jobs if job is not None and job.ends_at > self.time), None)

    def ran_s(self) -> float:
        """Return for how long the job that runs has run; 0: none runs."""
        return self.time - self.job.started_at if self.job is not None else 0.0

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def full(self, *zones: str, for_s: float = A_YEAR_S) -> None:
        """Let zones have no capacity for so long; a queued request waits there."""
        now = self.timeline.now
        self.cloud.state.supply.capacity += [Capacity(zone=z, from_s=0.0, until_s=for_s, added_at=now) for z in zones]

    def preempt(self, node: str | None = None, notice_s: float = 0.0) -> None:
        for each in self.nodes.values():
            if node in (None, each.node_id) and each.state in ("CREATING", "READY"):
                self.cloud.state.preempt(each.name, self.time, notice_s)
        self.cloud.settle()

    def vanish(self) -> None:
        """Delete all slices, from outside."""
        for node in self.nodes.values():
            self.cloud.state.vanish(node.name, self.time)
        self.cloud.settle()

    def fail(self, worker: int, rc: int) -> None:
        """End the job on one worker, with this code."""
        for vm in self.cloud.vms.values():
            vm.workers[worker].jobs["main"].ends_at, vm.workers[worker].jobs["main"].rc = self.time, rc

    def cut_off(self, edge: str, for_s: float = A_YEAR_S) -> None:
        since = self.faults.elapsed_s()
        self.plan.cut[edge] = [(since, since + for_s)]


def created(world: Bench, draft: Draft, *, ready: bool = False) -> Lease:
    """A lease with its slice in the cloud, as `create_slice` leaves it, or `acquire`."""
    lease, request = draft
    world.ledger.record(Intent(lease), CreateSent(lease.id, world.time))
    create = world.cloud.create if request.queue is None else world.cloud.ask
    world.ledger.record(Created(lease.id, world.time, create(request, CallOutcome()).name))
    if ready:
        world.time += world.plan.provision_s
        world.ledger.record(Ready(lease.id, world.time))
    return world.ledger.lease(lease.id)


def job(world: Bench, *, zones: Sequence[str] = (ZONE,), held: Lease | None = None, detach: bool = False) -> JobRun:
    run = RunRecord("0123456789", "mnist", "jobs/mnist.yaml", "emulated", world.time, "runs/x")
    made = [lease_and_request(n, zone=zone, now=world.time) for n, zone in enumerate(zones)]
    drafts = tuple(Draft(replace(lease, run=run.id), request) for lease, request in made)
    request: Any = lambda attempt, *_: SimStartRequest(attempt.id, "main", world.lasts_s, world.rc)  # noqa: E731
    return JobRun(
        run=run, attempt=Attempt("0123456789-1", run.id), stay=VmStay(OF_TPU, drafts), held=held,
        phases=(Phase("main", STATES["main"], request),), artifacts=(), directory=Path("runs/x"),
        sink=lambda worker, data: None, max_duration_s=24 * 3600, detach=detach,
    )  # fmt: skip


def held(world: Bench, n: int = 0, for_s: float = 36000.0) -> Lease:
    """Return a slice that `up` has made and holds."""
    drafts = (lease_and_request(n, now=world.time, purpose=Purpose.HOLD),)
    lease = world.drive(up(UpRequest("alice", drafts, None, for_s), CAN)).lease
    assert lease is not None
    return lease


def asking(job_run: JobRun, *drafts: Draft, **stay: Any) -> JobRun:
    """Return the same job with these candidates."""
    assert isinstance(job_run.stay, VmStay)
    return replace(job_run, stay=replace(job_run.stay, drafts=drafts or job_run.stay.drafts, **stay))


def attachment(world: Bench) -> JobRun:
    """Return the attachment to the only run of the ledger, which is detached."""
    ((run, attempt),), (lease,) = world.ledger.runs(), world.ledger.open_leases()
    main = Phase("main", STATES["main"])
    return replace(job(world), run=run, attempt=attempt, stay=VmStay(OF_TPU), phases=(main,), attached_to=lease)
