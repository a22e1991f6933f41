"""Worlds with a cluster: what users do there, and the families of faults that such a world draws.

Faults of this side (crashes, clocks, calls) are those of `random_worlds`. The order of the families is part of every seed.
"""

import functools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from orchestrator.places.gke.objects.manifest import Deadlines, deadlines, documents
from orchestrator.places.gke.stay import ClusterStay
from orchestrator.places.place import STATES, Phase
from orchestrator.promise.effects.base import Lock
from orchestrator.promise.lease.cloud_api import QueueTerms, SliceRequest
from orchestrator.promise.lease.lease import Lease, Purpose, SliceName
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.promise.obtain.drafts import Draft
from orchestrator.run.job_run import JobRun
from orchestrator.run.program import run_job
from orchestrator.text import names
from tests.fakes.cluster_jobs import job
from tests.simulation.model.cluster import ClusterPlan
from tests.simulation.model.cluster_world import ClusterWorld
from tests.simulation.model.faults import FOREVER, Window
from tests.simulation.model.jobsets import NAMESPACE
from tests.simulation.oracle.clusters import ClusterClaim
from tests.simulation.scenarios import random_worlds
from tests.simulation.scenarios.commands import cancel
from tests.simulation.scenarios.random_worlds import CRASHES, STEPPED, Workload, set_clock

OWNER, CONTEXT = "0wner0", "kind@https://k8s.test"
GRACE_S = 180.0  # of a lease, beyond what the control plane keeps: places/gke/place.py
TYPES = {1: "v6e-8", 2: "v5p-16", 4: "v6e-16"}  # by hosts
OF_THIS_SIDE = (
    "api_outage", "clock_offset", "clock_drifts", "crash", "crash_again", "disk_full", "flaky_calls", "hanging_calls",
    "ledger_lost", "laptop_asleep", "no_guardian", "partition", "revoked", "signals", "stopped",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClusterWorkload:
    """What users do on a cluster. Times are seconds after the start. `job`: whose moments the faults of this side draw."""

    job: Workload
    detach: bool = False
    hosts: int = 2
    slices: int = 1
    wait_s: float = 60.0
    max_s: float = 300.0
    linger_s: float = 600.0
    queued: bool = True  # does Kueue admit it?
    fails_on: int = 0
    attach_at: tuple[float, ...] = ()
    cancel_at: float | None = None
    second_at: float | None = None  # when a second run begins
    foreign: bool = False  # are there objects that tpujob did not make?

    def __call__(self, world: ClusterWorld) -> None:
        world.collect_s = self.job.collect_s
        world.no_room_until = world.timeline.now + self.job.no_room_until
        world.start_machines(timer_s=self.job.timer_s, gc_every_s=self.job.gc_every_s)
        if self.foreign:
            place_foreign_objects(world)
        type_run(world, self, "run")
        if self.second_at is not None:
            world.at(self.second_at, type_run, world, self, "second")
        for at in self.attach_at:
            world.at(at, type_attach, world, self)
        if self.cancel_at is not None:
            world.at(self.cancel_at, type_cancel, world)


# -- what users do ---------------------------------------------------------------------------------------------------------


def deadlines_of(workload: ClusterWorkload) -> Deadlines:
    return deadlines(workload.max_s, wait_s=workload.wait_s, linger_s=workload.linger_s, queued=workload.queued)


@functools.cache
def _objects(hosts: int, slices: int, limits: Deadlines, queued: bool) -> tuple[dict[str, Any], ...]:
    """Return the objects of such a job, made by the production code under a name that is replaced."""
    queue = "tpu" if queued else None
    return documents(job(TYPES[hosts], slices=slices, limits=limits, queue=queue, namespace=NAMESPACE))


def _named(made: dict[str, Any], name: str, lease_id: str) -> dict[str, Any]:
    labels = {**made["metadata"]["labels"], names.LEASE_ID: lease_id}
    return {**made, "metadata": {**made["metadata"], "name": name, "labels": labels}}


def _draft(world: ClusterWorld, workload: ClusterWorkload, run: str) -> Draft:
    limits, now = deadlines_of(workload), world.laptop.now()
    lease_id = names.new_run_id(world.rng.getrandbits(names.RUN_BITS))
    name = SliceName(CONTEXT, NAMESPACE, names.node_name(OWNER, lease_id), queued=True)
    lease = Lease(
        id=lease_id, handle="mnist", purpose=Purpose.RUN, cloud="gke", name=name, accelerator_type=TYPES[workload.hosts],
        runtime_version="", spot=False, owner=OWNER, deadline=now + limits.life_s + GRACE_S - limits.wait_s, created_at=now,
        run=run,
    )  # fmt: skip
    objects = _objects(workload.hosts, workload.slices, limits, workload.queued)
    queue = QueueTerms(limits.wait_s, str(uuid.UUID(int=world.rng.getrandbits(128), version=4)))
    request = SliceRequest(
        name, lease.accelerator_type, "", labels={names.LEASE_ID: lease_id}, queue=queue,
        manifests=tuple(_named(each, name.node, lease_id) for each in objects),
    )  # fmt: skip
    return Draft(lease, request)


def type_run(world: ClusterWorld, workload: ClusterWorkload, name: str) -> None:
    """Type `tpujob run`, or `tpujob submit`."""
    if not world.laptop.on:
        return
    run_id = names.new_run_id(world.rng.getrandbits(names.RUN_BITS))
    draft = _draft(world, workload, run_id)
    lease_id, wait_s = draft.lease.id, deadlines_of(workload).wait_s
    world.workloads[lease_id] = world.workloads[""] = workload
    claim = ClusterClaim(name, lease_id, world.timeline.now, wait_s, workload.max_s, workload.queued)
    run, attempt = RunRecord(run_id, name, "job.yaml", "gke", 0.0, "runs/x"), Attempt(f"{run_id}-1", run_id)
    made = replace(_job(run, attempt, ClusterStay((draft,)), workload), detach=workload.detach)
    world.judge.claims.append(claim)
    claim.owner = world.laptop.type_command(lambda: run_job(made, world.capabilities), name)
    world.main = world.main or claim.owner


def type_attach(world: ClusterWorld, workload: ClusterWorkload) -> None:
    """Type `tpujob attach` for every detached run."""
    machine = world.laptop
    for lease in machine.ledger.open_leases():
        attempt = next((each for each in machine.ledger.attempts.values() if each.lease_id == lease.id), None)
        if attempt is None or attempt.state.ended or not lease.runs_detached:
            continue
        run = RunRecord(attempt.run_id, "run", "job.yaml", "gke", 0.0, "runs/x")
        to = replace(_job(run, attempt, ClusterStay(), workload), attached_to=lease)

        async def attach(to: JobRun = to) -> Any:
            return await run_job(to, world.capabilities) if await Lock(to.attempt.id) else None

        process = machine.type_command(attach, "attach", look=True)
        claim = world.judge.claim_of(lease.id)
        if process is not None and claim is not None:
            world.judge.attached[process] = claim


def type_cancel(world: ClusterWorld) -> None:
    """Type `tpujob cancel` for every run."""
    for lease in world.laptop.ledger.open_leases():
        if lease.run is None or not world.laptop.on or world.laptop.asleep:
            continue
        process = world.laptop.run("cancel", cancel(world, lease.run))
        claim = world.judge.claim_of(lease.id)
        if claim is not None:
            claim.canceler = claim.canceler or process


def place_foreign_objects(world: ClusterWorld) -> None:
    """Create JobSets of another user, one of them with a name as ours."""
    template = _objects(1, 1, deadlines_of(ClusterWorkload(Workload("run"))), False)[0]
    for name in ("training-7", "tpujob-of-a-friend"):
        world.create_foreign(template, name)


def _job(run: RunRecord, attempt: Attempt, stay: ClusterStay, workload: ClusterWorkload) -> JobRun:
    main = Phase("main", STATES["main"])
    return JobRun(run, attempt, stay, (main,), ("*",), Path("runs"), lambda worker, piece: None, workload.max_s)


# -- faults of a cluster ---------------------------------------------------------------------------------------------------


def _moment(rng: Random, of: ClusterWorkload) -> float:
    return rng.uniform(0.0, 15.0 + of.job.lasts_s * (1.0 if rng.random() < 0.8 else 2.0))


def _evictions(rng: Random, of: ClusterWorkload) -> list[tuple[float, float | None]]:
    return [(_moment(rng, of), rng.choice((None, 1.0, 30.0, 400.0))) for _ in range(rng.choice((1, 1, 3)))]


def _taken(rng: Random, of: ClusterWorkload) -> list[tuple[float, int, str]]:
    worker = rng.randrange(of.hosts * of.slices)
    return [(_moment(rng, of), worker, rng.choice(("evicted", "deleted", "lost")))]


def _outage(rng: Random, of: ClusterWorkload) -> dict[str, list[Window]]:
    """The API server is upgraded."""
    begin = _moment(rng, of)
    return {"api": [(begin, begin + rng.choice((60.0, 300.0, 900.0)))]}


def _late_posts(rng: Random, of: ClusterWorkload) -> list[float]:
    """The client gives up after 15 s, and the server has accepted it: it may take effect for a minute, or has at once."""
    return [rng.choice((0.05, rng.uniform(5.0, 85.0))) for _ in range(rng.choice((1, 1, 2, 5)))]


def _one_of(*values: Any) -> Callable[[Random, ClusterWorkload], Any]:
    return lambda rng, of: rng.choice(values)


# Family → fields of the plan, and how each is drawn.
FAMILIES: dict[str, dict[str, Callable[[Random, ClusterWorkload], Any]]] = {
    # About when its wait is over, or long after it.
    "admitted_late": {"admitted_after": lambda rng, of: of.wait_s * rng.choice((0.5, 0.95, 1.0, 1.05, 3.0, 30.0))},
    "api_server_upgraded": {"cut": _outage},
    "deleted_outside": {"deleted_at": _moment, "deleted_how": _one_of("Foreground", "Background", "Replaced")},
    "finalizer_stuck": {"finalizer_until": _one_of(100.0, 400.0, 1500.0, FOREVER)},
    "image_missing": {"no_image": _one_of(True)},
    "job_hangs": {"hangs": _one_of(True)},
    "late_posts": {"late_posts": _late_posts},
    "never_admitted": {"admitted_after": _one_of(None)},
    "no_nodes": {"nodes_s": _one_of(30.0, 200.0, 800.0, 1000.0, inf)},
    "nodes_gone": {"nodes_gone_s": _one_of(2.0, 60.0, 300.0)},
    "pods_taken": {"taken": _taken, "node_removed_s": _one_of(100.0, 400.0, 2000.0)},
    "sent_back": {"evictions": _evictions},
    "slow_images": {"pull_s": _one_of(20.0, 120.0, 600.0)},
    "slow_pods": {"pod_stop_s": _one_of(10.0, 40.0, 60.0), "collects_s": _one_of(0.5, 5.0, 20.0)},
}


# -- from a seed to a world ------------------------------------------------------------------------------------------------


def workload_of(rng: Random) -> ClusterWorkload:
    submit, lasts_s, hosts = (
        rng.random() < 0.4,
        rng.choice((5.0, 20.0, 20.0, 60.0, 200.0, 400.0)),
        rng.choice((1, 2, 2, 4)),
    )
    until_s = rng.choice((2.5 * lasts_s + 30.0, 2.5 * lasts_s + 30.0, 3000.0))
    job = Workload(
        "run", lasts_s, rc=rng.choice((0, 0, 0, 1, 7)),
        timer_s=60.0 if rng.random() < 0.3 else None, gc_every_s=600.0 if rng.random() < 0.3 else None,
        collect_s=rng.choice((1.0, 1.0, 20.0)), no_room_until=rng.choice((0.0, 0.0, 0.0, lasts_s + 60.0)),
    )  # fmt: skip
    return ClusterWorkload(
        job, submit, hosts, rng.choice((1, 1, 1, 2)), queued=rng.random() < 0.75, fails_on=rng.randrange(hosts),
        wait_s=rng.choice((30.0, 60.0, 600.0)), linger_s=rng.choice((30.0, 600.0, 3600.0)),
        attach_at=tuple(rng.uniform(0.5, until_s) for _ in range(submit * rng.choice((0, 1, 1, 2)))),
        cancel_at=rng.uniform(1.0, 80.0) if rng.random() < (0.3 if submit else 0.1) else None,
        second_at=rng.uniform(0.5, 15.0) if rng.random() < 0.1 else None, foreign=rng.random() < 0.2,
    )  # fmt: skip


def cluster_world_of(seed: int, *, without: frozenset[str] = frozenset(), trace: bool = False) -> ClusterWorld:
    """Return the world of a seed with a cluster."""
    rng = Random(seed ^ 0xC1057E2)
    workload, plan = workload_of(rng), ClusterPlan()
    chosen = rng.sample(sorted(FAMILIES), rng.choice((0, 0, 1, 1, 1, 2, 3)))
    others = rng.sample(OF_THIS_SIDE, rng.choice((0, 1, 1, 2, 3)))
    if not set(others) & set(CRASHES) and rng.random() < 0.5:
        others.append("crash")
    plan.families = tuple(name for name in (*chosen, *others) if name not in without)
    for name in plan.families:
        for field, drawn in FAMILIES.get(name, {}).items():
            setattr(plan, field, drawn(rng, workload))
        if name not in FAMILIES:
            random_worlds.FAMILIES[name](rng, plan, workload.job)
    if rng.random() < STEPPED and "clock_steps" not in without:
        plan.families = (*plan.families, "clock_steps")
        set_clock(rng, plan, workload.job)
    if not workload.queued:
        plan.evictions.clear()
        workload = replace(workload, wait_s=min(workload.wait_s, 60.0))
    return ClusterWorld(seed, workload, plan, trace=trace)
