"""What users do in a world: run a job, keep its slice, up and down, submit, extend, collect, two runs at once."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloud_tpu_emulator.model.records import Node
from orchestrator.errors import CloudError, DeadlineExceeded, ExternalAddressRefused, Interrupted
from orchestrator.hosts.transfer.collect import CollectRequest
from orchestrator.places.place import STATES, Phase
from orchestrator.places.tpu.place import PLACE as CLOUD_TPU
from orchestrator.places.tpu.traits import TRAITS as OF_TPU
from orchestrator.places.vms.stay import VmStay
from orchestrator.promise.effects.base import Lock, UnmaskSignals
from orchestrator.promise.gc import collect_garbage
from orchestrator.promise.lease import access, claim_labels
from orchestrator.promise.lease.access import AccessWish, ProjectRules, Route, Via
from orchestrator.promise.lease.cloud_api import QueueTerms, SliceRequest
from orchestrator.promise.lease.lease import CANCEL, HeldFor, Lease, LeaseState, Purpose, SliceName
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord, has_uncollected_results
from orchestrator.promise.obtain.drafts import Draft
from orchestrator.promise.obtain.startup_script import startup_script, watchdog_config
from orchestrator.promise.standing import record_cancel
from orchestrator.run.collection import UncollectedRun, collect_again
from orchestrator.run.job_run import JobRun, Lane, release_lane
from orchestrator.run.program import run_job
from orchestrator.run.progress import Outcome
from orchestrator.run.up_and_down import UpRequest, down, extend, up
from orchestrator.text import names
from tests.simulation.model.cloud import PROJECT
from tests.simulation.model.fleet import SimSavedWork, SimStartRequest
from tests.simulation.model.machine import command
from tests.simulation.model.world import ZONES
from tests.simulation.oracle.claims import Claim

if TYPE_CHECKING:
    from tests.simulation.model.process import Process
    from tests.simulation.model.world import World

OWNER = "0wner0"
IN_QUEUE_S = 60.0  # default wait of a queued request
LEAST_LEFT_S = 5.0  # least time of the job for another attempt
TYPE, RUNTIME = "v5litepod-8", "v2-alpha-tpuv5-lite"


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates of a command in their order, and how they are asked for."""

    zones: tuple[str, ...]
    queued: int = 0  # so many of them are queued, the last ones
    wait_s: float = 0.0  # for capacity, in total
    race: bool = False
    spot: bool = False
    restarts: int = 0

    @property
    def in_queue_s(self) -> float:
        """Return how long a queued request may wait."""
        return self.wait_s or IN_QUEUE_S


def drafts(
    world: World,
    candidates: Candidates,
    *,
    life_s: float,
    purpose: Purpose = Purpose.RUN,
    handle: str = "mnist",
    run: str | None = None,
    maker: Process | None = None,
) -> tuple[Draft, ...]:
    """Return drafts as `promise.obtain.drafts` makes them, without files and keys. `maker`: the command, once it runs."""
    now, anchor = (maker or world.laptop).now(), world.laptop.clocks._anchor(world.cloud_kind)
    if maker is None and not anchor.sure and anchor.ahead_s is not None:
        now = (
            world.timeline.now - anchor.ahead_s
        )  # a real command has asked the cloud for the time before it makes drafts
    first = len(candidates.zones) - candidates.queued
    queued = [number >= first for number in range(len(candidates.zones))]
    zones = zip(candidates.zones, queued, strict=True)
    return tuple(_draft(world, candidates, *each, now, life_s, purpose, handle, run) for each in zones)


def _draft(
    world: World,
    candidates: Candidates,
    zone: str,
    queued: bool,
    now: float,
    life_s: float,
    purpose: Purpose,
    handle: str,
    run: str | None,
) -> Draft:
    lease_id = names.new_run_id(world.rng.getrandbits(names.RUN_BITS))
    name = SliceName(PROJECT, zone, names.node_name(OWNER, lease_id), queued)
    taken = access.route(world.wish, world.laptop.rules)
    lease = Lease(
        id=lease_id, handle=handle, purpose=purpose, cloud="emulated", name=name, accelerator_type=TYPE,
        runtime_version=RUNTIME, spot=candidates.spot, owner=OWNER, deadline=now + life_s, created_at=now, usd_per_hour=9.6,
        run=run, route=taken,
    )  # fmt: skip
    labels = claim_labels.labels(lease, now, world.timings)
    metadata = {
        "startup-script": startup_script(watchdog_config(lease, labels, world.timings, CLOUD_TPU.watched, idle_s=None)),
        "enable-oslogin": "TRUE" if taken.os_login else "FALSE",
    }
    queue = None
    if queued:
        queue = QueueTerms(candidates.in_queue_s, str(uuid.UUID(int=world.rng.getrandbits(128), version=4)))
    request = SliceRequest(name, TYPE, RUNTIME, candidates.spot, labels=labels, metadata=metadata, queue=queue)
    return Draft(lease, replace(request, external_ips=taken.via is Via.EXTERNAL))


def type_run(
    world: World,
    *,
    candidates: Candidates,
    lasts_s: float,
    rc: int = 0,
    life_s: float = 1200.0,
    keep_s: float | None = None,
    keep_on_failure_s: float | None = None,
    held: Lease | None = None,
    detach: bool = False,
    name: str = "run",
) -> None:
    """Type `tpujob run`. `held`: the slice on which the job failed before."""
    claim = Claim(
        name,
        life_s,
        world.timeline.now,
        keep_s=keep_s if rc == 0 else keep_on_failure_s,
        detach=detach,
        saves_work=candidates.restarts > 0,
        wait_s=candidates.in_queue_s,
    )

    made = _job(world, claim, name, candidates, lasts_s, rc, life_s)
    job = replace(made, held=held, keep_s=keep_s, keep_on_failure_s=keep_on_failure_s, detach=detach)
    world.queues |= candidates.queued > 0
    world.slices = max(world.slices, candidates.queued if candidates.race else 1)
    world.oracle.claims.append(claim)
    claim.owner = world.laptop.type_command(lambda: run_job(job, world.capabilities), name)
    world.main = world.main or claim.owner
    if held is not None and claim.owner is not None:
        world.authorized.add(claim.owner)  # it may release the slice of the run that failed
    if detach and claim.owner is not None:
        claim.owner.on_exit = lambda process: start_collector(world, process, job)


def _job(
    world: World, claim: Claim, name: str, candidates: Candidates, lasts_s: float, rc: int, life_s: float
) -> JobRun:
    run = RunRecord(
        names.new_run_id(world.rng.getrandbits(names.RUN_BITS)), name, "job.yaml", "emulated", 0.0, "runs/x"
    )
    attempt = Attempt(f"{run.id}-1", run.id)
    drafter = _Drafter(world, candidates, life_s, claim, run.name, run.id)
    setup_s = min(1.0, lasts_s / 5)

    def phase(title: str, state: AttemptState, seconds: float, code: int) -> Phase:
        request: Any = lambda attempt, lease, workers, coordinator: SimStartRequest(attempt.id, title, seconds, code)  # noqa: E731
        return Phase(title, state, request)

    return JobRun(
        run=run, attempt=attempt, stay=VmStay(OF_TPU, drafter.make(), drafter, candidates.wait_s, candidates.race),
        phases=(phase("setup", AttemptState.SETUP, setup_s, 0), phase("main", AttemptState.RUNNING, lasts_s, rc)),
        artifacts=("*",), directory=Path("runs"), sink=_no_sink, max_duration_s=life_s,
        max_restarts=candidates.restarts,
        saved_work=SimSavedWork() if candidates.restarts else None,  # type: ignore[arg-type]
    )  # fmt: skip


def type_sweep(world: World, *, candidates: Candidates, lasts_s: float, rc: int = 0, life_s: float = 1200.0) -> None:
    """Type `tpujob run` of a sweep of two jobs: the second one gets the slice of the first, which ends with `rc`."""
    claim = Claim("run", 2 * life_s, world.timeline.now, certain_life_s=life_s, wait_s=candidates.in_queue_s)
    jobs: list[JobRun] = []
    lane = Lane(lambda: len(jobs) == 1)

    def job(code: int) -> JobRun:
        made = _job(world, claim, "run", candidates, lasts_s, code, life_s)
        jobs.append(made)
        return replace(made, lane=lane)

    async def two_jobs() -> Any:
        try:
            first = await run_job(job(rc), world.capabilities)
            kept = first.kept_until is not None  # it counts as one of `parallel:`, so this lane gets no other
            if first.unproven or kept or isinstance(first.error, Interrupted):
                return first
            await UnmaskSignals()  # a signal during the end of the first one ends the sweep
            return await run_job(job(0), world.capabilities)
        except Exception:  # between the two: a signal, or a ledger that cannot be written
            if lane.lease is not None:
                await release_lane(lane, world.capabilities)
            raise

    world.queues |= candidates.queued > 0
    world.slices = max(world.slices, candidates.queued if candidates.race else 1)
    world.oracle.claims.append(claim)
    claim.owner = world.laptop.type_command(two_jobs, "run")
    world.main = world.main or claim.owner


def type_again(world: World, **job: Any) -> None:
    """Type `tpujob run` again for the job whose slice is held since it failed; nothing if there is none (any more)."""
    for lease in world.laptop.ledger.open_leases():
        if lease.state is LeaseState.READY and lease.held_for is HeldFor.FAILURE:
            type_run(world, held=lease, name="again", **job)
            return


@dataclass(frozen=True, slots=True)
class _Drafter:
    """The drafter of one run or one `up`. It reports each name to the oracle."""

    world: World
    candidates: Candidates
    life_s: float
    claim: Claim
    handle: str
    run: str | None = None

    def make(self, used_s: float = 0.0, spent_usd: float = 0.0) -> tuple[Draft, ...]:
        left_s = self.life_s - used_s
        if left_s < LEAST_LEFT_S:
            raise DeadlineExceeded(f"too little is left for another attempt: {used_s:.0f} s went to lost slices")
        purpose = Purpose.RUN if self.run is not None else Purpose.HOLD
        more = {"handle": self.handle, "run": self.run, "purpose": purpose}
        made = drafts(self.world, self.candidates, life_s=left_s, maker=self.claim.owner, **more)  # type: ignore[arg-type]
        self.claim.ask_for(made, self.world.timeline.now, race=self.candidates.race)
        return made

    def reroute(self, refused: Route, refusal: CloudError) -> Route | None:
        laptop = self.world.laptop
        laptop.rules, found = rerouted(self.world.wish, laptop.rules, refused, refusal)
        return found


def rerouted(
    wish: AccessWish, rules: ProjectRules, refused: Route, refusal: CloudError
) -> tuple[ProjectRules, Route | None]:
    """Return the rules that are known after a refusal, and the way that is left; None: the same."""
    policy = "no_external_addresses" if isinstance(refusal, ExternalAddressRefused) else "os_login"
    rules = replace(rules, **{policy: True})
    found = access.route(wish, rules)
    return rules, None if found == refused else found


def start_collector(world: World, process: Process, job: JobRun) -> None:
    """Start what `tpujob submit` leaves behind: a process that waits for the end of the job. Nothing depends on it."""
    outcome = process.result
    if not isinstance(outcome, Outcome) or not outcome.detached or outcome.lease is None or not world.laptop.on:
        return
    attempt = process.ledger.attempts[job.attempt.id]  # as it is now: RUNNING
    to = replace(
        job,
        attempt=attempt,
        stay=VmStay(OF_TPU),
        phases=(Phase("main", STATES["main"]),),
        attached_to=outcome.lease,
        detach=False,
    )

    async def collector() -> Any:
        return await run_job(to, world.capabilities) if await Lock(job.attempt.id) else None

    world.laptop.run("collector", collector(), role="collector")


def type_collect(world: World) -> None:
    """Type `tpujob collect` for every run whose results wait on a slice (api/jobs/results.py)."""
    machine = world.laptop
    for lease in machine.ledger.open_leases():
        for attempt in machine.ledger.attempts.values():
            if not has_uncollected_results(attempt, lease):
                continue
            run = RunRecord(attempt.run_id, "run", "job.yaml", "emulated", 0.0, "runs/x")
            left = UncollectedRun(run, attempt, lease, CollectRequest(attempt.id, Path("runs"), ("*",)))

            async def collect(left: UncollectedRun = left) -> Any:
                return await collect_again(left, world.capabilities) if await Lock(left.attempt.id) else None

            process = machine.type_command(collect, "collect", look=True)
            if process is not None:
                world.authorized.add(process)


def type_up(world: World, *, candidates: Candidates, hold_s: float, life_s: float = 1200.0) -> None:
    """Type `tpujob up`."""
    claim = Claim("up", life_s, world.timeline.now, for_hold=True, wait_s=candidates.in_queue_s)
    drafter = _Drafter(world, replace(candidates, race=False), life_s, claim, "alice")
    made = drafter.make()
    world.queues |= candidates.queued > 0
    world.oracle.claims.append(claim)
    claim.owner = world.laptop.type_command(
        lambda: up(UpRequest("alice", made, None, hold_s, drafter=drafter), world.capabilities), "up"
    )
    world.main = world.main or claim.owner


def type_down(world: World) -> None:
    """Type `tpujob down` for every open lease."""
    leases = tuple(world.laptop.ledger.open_leases())
    if not leases or not world.laptop.on or world.laptop.asleep:
        return
    process = world.laptop.run("down", _down_and_recover(world, leases))
    assert process is not None
    world.authorized.add(process)
    for lease in leases:
        claim = world.oracle.claim_of(lease.id)
        if claim is not None:
            claim.down_processes.setdefault(lease.id, process)


async def _down_and_recover(world: World, leases: tuple[Lease, ...]) -> None:
    """As api/slices/down.py does: first the named slices, then recovery."""
    await down(leases, world.capabilities, reason="tpujob down")
    await command(world, None, look=False)


def type_cancel(world: World) -> None:
    """Type `tpujob cancel` for every run that goes on."""
    for attempt in world.laptop.ledger.attempts_open():
        process = world.laptop.run("cancel", cancel(world, attempt.run_id))
        assert process is not None
        world.authorized.add(process)
        for claim in world.oracle.claims:
            claim.down_processes |= dict.fromkeys(claim.lease_ids, process)


async def cancel(world: World, run: str) -> None:
    """As api/jobs/ending.py does: the end of the run is recorded, then its slices are released."""
    await record_cancel(run)
    if leases := tuple(lease for lease in world.laptop.ledger.open_leases() if lease.run == run):
        await down(leases, world.capabilities, reason=CANCEL)
    await command(world, None, look=False)


def type_extend(world: World, by_s: float) -> None:
    """Type `tpujob extend` for every open lease."""
    for lease in world.laptop.ledger.open_leases():
        claim = world.oracle.claim_of(lease.id)
        process = world.laptop.type_command(lambda lease=lease: extend(lease, by_s, world.capabilities), "extend")  # type: ignore[misc]
        if claim is not None and process is not None:
            claim.certain_life_s = claim.certain_life_s or claim.life_s
            claim.extension_requested_s = by_s * 1.01
            claim.life_s = max(claim.life_s, world.laptop.now() + by_s + claim.life_s - lease.created_at)


def run_gc_elsewhere(world: World, every_s: float) -> None:
    """Run gc on another machine, periodically, with no knowledge but the project; only when something exists."""
    if world.oracle.existing() and not world.elsewhere.processes:
        deadline_s = max(every_s * 0.9, 5.0)
        world.elsewhere.run("gc", collect_garbage(PROJECT, None, world.capabilities, deadline_s=deadline_s), role="gc")
    world.timeline.after(every_s, run_gc_elsewhere, world, every_s)


def place_foreign_slices(world: World) -> None:
    """Create foreign slices: one with a name like ours, one with our label, one with neither."""
    now = world.timeline.now
    over = {"tpujob-claimed-until": str(int(now - 9e5)), "tpujob-deadline": str(int(now - 8e5))}
    for node_id, labels in (
        ("tpujob-of-a-friend", {"owner": "friend", **over}),
        ("training-7", {"tpujob": "1", **over}),
        ("inference", {}),
    ):
        world.foreign.add(f"projects/{PROJECT}/locations/{ZONES[0]}/nodes/{node_id}")
        spec: dict[str, Any] = {"acceleratorType": TYPE, "runtimeVersion": RUNTIME, "labels": labels}
        world.cloud.state.create(Node("", PROJECT, ZONES[0], node_id, spec, 1, usd_per_hour=9.6), "v2", now)
    world.cloud.settle()


def _no_sink(worker: int, piece: bytes) -> None:
    """Discard logs."""


def take_name(world: World) -> None:
    """Create a foreign slice with the very name that the run has chosen."""
    lease_id = world.oracle.claims[0].lease_ids[0]
    node_id = names.node_name(OWNER, lease_id)
    full = f"projects/{PROJECT}/locations/{ZONES[0]}/nodes/{node_id}"
    world.foreign.add(full)
    spec: dict[str, Any] = {"acceleratorType": TYPE, "runtimeVersion": RUNTIME, "labels": {"owner": "friend"}}
    node = Node("", PROJECT, ZONES[0], node_id, spec, 1, usd_per_hour=9.6)
    world.cloud.state.create(node, "v2", world.timeline.now)
    world.cloud.settle()
