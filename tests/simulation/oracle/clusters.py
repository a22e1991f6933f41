"""The oracle of worlds with a cluster: which JobSets hold TPUs, whether they are claimed, and which invariant is broken.

It records what users, processes and the cluster did, never labels and never what the programs under test believe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.errors import DeadlineExceeded, Interrupted
from orchestrator.promise.lease.changes import Detached, Gone, Intent, LeaseEvent, Ready, ReleaseBegan
from orchestrator.promise.lease.lease import Lease
from orchestrator.run.progress import Outcome
from tests.simulation.model.faults import TIMEOUT_S
from tests.simulation.model.jobsets import JobSet, Owned, Pod
from tests.simulation.model.machine import BUDGET_S
from tests.simulation.oracle.bounds import Allowance, without_owner_s
from tests.simulation.oracle.invariants import Invariant
from tests.simulation.oracle.oracle import OracleOfLeases
from tests.simulation.oracle.periods import (
    COMMAND_OWN_S,
    COMMAND_S,
    GC_OWN_S,
    GUARDIAN_OWN_S,
    GUARDIAN_POLL_S,
    LOOK_S,
    NEVER,
    POLL_MOST_S,
    RELEASE_S,
    finish,
    overlap,
    periods,
)

if TYPE_CHECKING:
    from tests.simulation.model.cluster_world import ClusterWorld
    from tests.simulation.model.process import Process

STARTS_S = 900.0  # docs/gke.md: from admission to running pods; beyond it the Job ends
ENDS_S = 120.0  # docs/gke.md: a pod ends so long after `limits.max_duration` at the latest
GRACE_S = 60.0  # of a pod
SPARE_S = 180.0  # beyond the deadline that the control plane keeps, until any command deletes
LATE_S = 60.0  # beyond `limits.max_duration`, until a command that follows gives up
STARTING_S = 2700.0  # from the end of the wait until a command gives pods up that do not start
NOTICE_S = 60.0  # until a command that follows knows that a job was lost, or has ended


@dataclass(eq=False)
class ClusterClaim:
    """One run on a cluster."""

    label: str
    lease_id: str
    begun_at: float  # from its intent on, that of the intent
    wait_s: float
    max_s: float
    queued: bool
    owner: Process | None = None
    detached_at: float | None = None
    canceled_at: float | None = None
    canceler: Process | None = None
    seen_ready_at: float | None = None
    is_waited_out: bool = False  # it was not admitted in time when its release was recorded, whatever ran after that
    ends: list[tuple[float, str]] = field(default_factory=list)

    @property
    def job_s(self) -> float:
        """How long the control plane lets a job last, from its admission on."""
        return self.max_s + (STARTS_S if self.queued else max(self.wait_s, STARTS_S))

    @property
    def wait_until(self) -> float:
        return self.begun_at + self.wait_s * 1.01 + LOOK_S

    @property
    def final_at(self) -> float:
        """From then on any command deletes it. Clocks may run wrong by one percent."""
        return self.begun_at + (self.wait_s + self.job_s + SPARE_S) * 1.01


@dataclass(eq=False)
class Fate:
    """What became of a JobSet."""

    of: ClusterClaim | None  # None: tpujob did not make it
    lost_at: float | None = None
    known_at: float = 0.0  # that can be known then
    why_lost: str = ""
    is_seen: bool = False
    limit_at: float | None = None  # the first pod, or the JobSet, reached a limit
    node_at: float | None = None  # the first of its pods got a node
    ran_at: float | None = None  # every pod ran at once
    ended_at: float | None = None  # since then none of these does
    settled_at: float | None = None  # it is deleted, or over
    deleted_outside: bool = False
    held_s: dict[int, float] = field(default_factory=dict)  # by worker: how long it held its TPU
    created_at: float = 0.0
    # What `disturbances.finish` reads of a resource.
    claim: None = None
    failed_deletes: int = 0
    slow_s: float = 0.0
    ready_at: float | None = None


class ClusterOracle(OracleOfLeases):
    world: ClusterWorld

    def __init__(self, world: ClusterWorld) -> None:
        super().__init__(world)
        self.claims: list[ClusterClaim] = []
        self.fates: dict[JobSet, Fate] = {}
        self.foreign_names: set[str] = set()
        self.attached: dict[Process, ClusterClaim] = {}
        self.told: list[Process] = []  # commands that have ended with an outcome

    def claim_of(self, lease_id: str) -> ClusterClaim | None:
        return next((claim for claim in self.claims if claim.lease_id == lease_id), None)

    def is_foreign(self, jobset: JobSet) -> bool:
        return self.fates[jobset].of is None

    def existing(self) -> list[Any]:
        """Return what exists of tpujob."""
        sets = [each for each in self.world.cluster.sets if each.left and not self.is_foreign(each)]
        return [*sets, *(each for each in self.world.cluster.owned if each.lease_id in self._leases())]

    def _leases(self) -> set[str]:
        return {lease.id for lease in self.intents.values()}

    def left_of(self, lease_id: str) -> list[str]:
        """Return what exists of a lease, in words."""
        cluster = self.world.cluster
        sets = [each for each in cluster.sets if each.lease_id == lease_id and not self.is_foreign(each)]
        found = [f"its JobSet {each.name}" for each in sets if each.exists]
        found += [f"{len(each.pods)} pods" for each in sets if each.pods]
        found += ["its Jobs" for each in sets if each.has_jobs and each.exists]
        return found + [f"{each.kind} {each.name}" for each in cluster.owned if each.lease_id == lease_id]

    # -- what the cluster did ------------------------------------------------------------------------------------------

    def jobset_created(self, made: JobSet) -> None:
        lease_id, now = made.lease_id, self.timeline.now
        self.fates[made] = Fate(self.claim_of(lease_id), created_at=now)
        self.world.log(f"JobSet {made.name} exists{' (suspended)' * made.suspended}")
        self.world.watch_resources()
        if made.name in self.foreign_names and not lease_id:
            return
        if made.name not in self.intents:
            self.violated(Invariant.INTENT_FIRST, f"{made.name} exists, but no intent was committed before")
        if not made.name.startswith("tpujob-") or made.labels.get("tpujob") != "1" or not lease_id:
            self.violated(Invariant.INTENT_FIRST, f"{made.name} lacks a label or the prefix: no list could find it")
        self.check_not_gone(made.name, lease_id)
        for other, known in self.fates.items():
            late = self.world.cluster.arrives_late  # a create that timed out long ago: its name is free again
            # So it is once a job has ended and `limits.linger` is over, while its create is repeated (docs/assumptions.md).
            if (
                other is not made
                and other.lease_id == lease_id
                and not (known.of is None or known.deleted_outside or late or (other.finished and not other.exists))
            ):
                self.violated(Invariant.ONE_SLICE, f"{made.name} is the second JobSet of its lease")

    def made(self, kind: str, name: str, lease_id: str) -> None:
        """A ConfigMap or Secret was created."""
        if lease_id in self._leases():
            self.check_not_gone(f"{kind} {name}", lease_id)

    def lost(self, jobset: JobSet, why: str, known_after_s: float = 0.0) -> None:
        """It was taken away. A command that has not seen it run goes on waiting for one that was sent back to its queue."""
        fate = self.fates[jobset]
        if fate.lost_at is None:
            seen = fate.of is not None and fate.of.seen_ready_at is not None
            fate.lost_at, fate.why_lost, fate.is_seen = self.timeline.now, why, seen or "sent back" not in why
            fate.known_at = self.timeline.now + known_after_s
        elif "sent back" in why and (fate.of is None or fate.of.seen_ready_at is None):
            fate.is_seen = False  # what was wrong with its pods is gone with them
        fate.deleted_outside |= "deleted" in why and "user" in why

    def at_limit(self, jobset: JobSet) -> None:
        fate = self.fates[jobset]
        fate.limit_at = fate.limit_at or self.timeline.now

    def scheduled(self, jobset: JobSet) -> None:
        """A pod got a node."""
        fate = self.fates[jobset]
        fate.node_at = fate.node_at or self.timeline.now

    def running(self, jobset: JobSet) -> None:
        fate = self.fates[jobset]
        fate.ran_at, fate.ended_at = self.timeline.now, None  # also once it was sent back and admitted again

    def changed(self, jobset: JobSet) -> None:
        """A JobSet is being deleted, is over, or has lost a pod."""
        fate = self.fates[jobset]
        settled = jobset.deleting_at is not None or jobset.over
        if settled and fate.settled_at is None:
            self.judge(jobset)
            fate.settled_at = self.timeline.now
        self.world.stop_when_done()

    def pod_ended(self, jobset: JobSet, pod: Pod) -> None:
        """A pod holds its TPU no longer. No pod may hold one for longer than what the control plane was told."""
        fate, now = self.fates[jobset], self.timeline.now
        claim = fate.of
        if claim is None or pod.scheduled_at is None:
            return
        if pod.started_at is not None and now - pod.started_at > claim.max_s + ENDS_S + GRACE_S + 5.0:
            ran_s = now - pod.started_at
            self.violated(
                Invariant.DEADLINE, f"{pod.name} ran for {ran_s:.0f} s; limits.max_duration is {claim.max_s:.0f} s"
            )
        if fate.ended_at is None and not any(each.holds_tpu for each in jobset.pods):
            fate.ended_at = now
        held = fate.held_s
        held[pod.worker] = held.get(pod.worker, 0.0) + now - pod.scheduled_at
        origin = self.world.faults.begun_at
        away_s = sum(overlap(self.world.plan.cut.get("api", []), fate.created_at - origin, now - origin))
        if held[pod.worker] > claim.job_s + (GRACE_S + 5.0) * jobset.epoch + away_s:
            text = f"worker {pod.worker} of {jobset.name} held its TPU for {held[pod.worker]:.0f} s in all"
            self.violated(Invariant.DEADLINE, f"{text}; the control plane ends it after {claim.job_s:.0f} s")
        since_s = now - (jobset.created_at if jobset.admitted_at is None else jobset.admitted_at)
        if since_s > claim.job_s + GRACE_S + 5.0 + away_s:
            text = f"{pod.name} held its TPU until {since_s:.0f} s after the job could begin"
            self.violated(Invariant.DEADLINE, f"{text}; the control plane ends it after {claim.job_s:.0f} s")
        self.changed(jobset)

    # -- what processes did --------------------------------------------------------------------------------------------

    def delete_arrived(self, jobset: JobSet, process: Process) -> None:
        fate = self.fates[jobset]
        self.world.log(f"delete of {jobset.name} by {process.name} arrives")
        if fate.of is None:
            self.violated(Invariant.OURS_ONLY, f"{process.name} deletes {jobset.name}, which is not ours")
        elif jobset.deleting_at is None and self._certainly_claimed(fate.of, jobset, fate, process):
            text = f"{process.name} deletes {jobset.name}, which {fate.of.label} claims"
            self.violated(Invariant.CLAIM_RESPECTED, text)

    def deletes_owned(self, owned: Owned, process: Process) -> None:
        if owned.lease_id not in self._leases():
            self.violated(Invariant.OURS_ONLY, f"{process.name} deletes {owned.kind} {owned.name}, which is not ours")

    def _certainly_claimed(self, claim: ClusterClaim, jobset: JobSet, fate: Fate, process: Process) -> bool:
        now = self.timeline.now
        if claim.canceled_at is not None or process is claim.canceler or fate.lost_at is not None:
            return False
        over = jobset.finished or jobset.failing or jobset.deactivated
        if over or fate.limit_at is not None or self.world.ledger_was_lost:
            return False
        if any(each.of is claim and each.settled_at is not None for each in self.fates.values()):
            return False  # its run has ended, and this is a create that took effect long after it
        began, clocks = claim.begun_at, self.world.plan.clock_offset_s or self.world.plan.clock_steps
        if now >= began + (claim.wait_s + claim.job_s) * 0.97 or (
            fate.ran_at is not None and now >= began + claim.job_s * 0.97
        ):
            return False  # its deadline may have come
        if claim.detached_at is not None:
            waited = claim.is_waited_out or (now >= began + claim.wait_s * 0.97 and fate.ran_at is None)
            late = fate.ran_at is not None and now >= fate.ran_at + (claim.max_s + LATE_S) * 0.97
            if waited or (clocks and fate.ran_at is None):
                return False  # any command releases what was not admitted in time
            return not (process in self.attached and (late or clocks))
        if process is claim.owner:
            return False
        owner = claim.owner
        return owner is not None and owner.alive and not owner.frozen and not claim.ends

    def results_left_behind(self, vm: object) -> None:
        """What is left stays in the logs of the pods."""

    def on_lease_change(self, event: LeaseEvent, before: Lease | None, after: Lease) -> None:
        super().on_lease_change(event, before, after)
        now, claim = self.timeline.now, self.claim_of(after.id)
        match event:
            case Intent() if claim is not None:
                claim.begun_at = now
            case Ready() if claim is not None:
                claim.seen_ready_at = claim.seen_ready_at or now
            case Detached() if claim is not None:
                claim.detached_at = now
                self._check_hand_over(after)
            case ReleaseBegan() if claim is not None and claim.canceled_at is None:
                if self.world.acting is claim.canceler and claim.canceler is not None:
                    claim.canceled_at = now
                has_run = any(fate.of is claim and fate.ran_at is not None for fate in self.fates.values())
                claim.is_waited_out |= not has_run and now >= claim.begun_at + claim.wait_s * 0.97
            case Gone():
                if left := self.left_of(after.id):
                    self.violated(Invariant.GONE_IS_TRUE, f"{after.name.node} is called gone; {left[0]} exists")

    def _check_hand_over(self, lease: Lease) -> None:
        sets = [each for each in self.world.cluster.sets if each.lease_id == lease.id]
        if any(self.fates[each].deleted_outside or self.fates[each].ran_at is not None for each in sets):
            return  # it had what it needs, and may have ended while this machine slept
        if not sets or not any(each.lease_id == lease.id for each in self.world.cluster.owned):
            text = f"{lease.name.node} is handed over, and its JobSet or what its pods need does not exist"
            self.violated(Invariant.ARMED_HANDOVER, text)

    def check_exit(self, process: Process, code: int) -> None:
        """Check that the exit code is honest, and that it tells the end of the job as it was."""
        result, attached = process.result, process in self.attached
        claim = self.attached.get(process) or next((each for each in self.claims if each.owner is process), None)
        if claim is None or isinstance(process.error, Exception):
            return
        self.world.log(f"{process.name} exits with {code}: {getattr(result, 'error', None)}")
        known = process.ledger.leases.get(claim.lease_id)
        if isinstance(result, Outcome):
            self.told.append(process)
        if code == 75:
            if process.error is None and (known is None or not known.open):
                self.violated(
                    Invariant.HONEST_EXIT_CODE, f"{process.name} exits with 75 though everything is proven gone"
                )
            return
        assert isinstance(result, Outcome)
        if result.detached:
            return
        if left := self.left_of(claim.lease_id):
            self.violated(Invariant.HONEST_EXIT_CODE, f"{process.name} exits with {code} while {left[0]} exists")
        self.reported_gone[claim.lease_id] = process.name
        self._check_told(process, result, claim, code, attached=attached)

    def _check_told(self, process: Process, result: Outcome, claim: ClusterClaim, code: int, *, attached: bool) -> None:
        fates = [(each, fate) for each, fate in self.fates.items() if fate.of is claim]
        job = self.world.job_of(claim.lease_id)
        succeeded = any(all(self._ended_well(each)) for each, _ in fates)
        if code == 0 and not succeeded:
            self.violated(Invariant.TRUE_END, f"{process.name} exits with 0, and not every pod has succeeded")
        if isinstance(result.error, DeadlineExceeded) and not any(
            self._limit_was_reached(claim, fate) for _, fate in fates
        ):
            self.violated(Invariant.TRUE_END, f"{process.name} exits with {code}, and no limit was reached")
        undisturbed = not (self.world.plan.families or self.world.plan.cut or self.world.plan.crashes)
        ended = job.rc and not isinstance(result.error, Interrupted) and claim.canceled_at is None
        if undisturbed and not attached and ended and code != job.rc:
            untouched = all(fate.lost_at is None and fate.limit_at is None for _, fate in fates)
            if fates and untouched and all(each.failed_at is not None for each, _ in fates):
                self.violated(Invariant.TRUE_END, f"{process.name} exits with {code}, and the job with {job.rc}")

    def _limit_was_reached(self, claim: ClusterClaim, fate: Fate) -> bool:
        """By the control plane, by the program of a pod, or because every pod ran for so long. Clocks may be wrong by 1%."""
        end = min(each for each in (self.timeline.now, fate.settled_at, fate.ended_at) if each is not None)
        ran_s = 0.0 if fate.ran_at is None else end - fate.ran_at
        return fate.limit_at is not None or ran_s >= 0.97 * claim.max_s

    def _ended_well(self, jobset: JobSet) -> list[bool]:
        return [
            self.world.cluster.ended_well.get((jobset.uid, worker), False)
            for worker in range(jobset.slices * jobset.hosts)
        ]

    # -- bounds --------------------------------------------------------------------------------------------------------

    def judge(self, jobset: JobSet) -> bool:
        """Check how long this JobSet may run on, or start, without a claim. Return whether it may still exceed its bound."""
        fate, now = self.fates[jobset], self.timeline.now
        claim = fate.of
        if claim is None or fate.settled_at is not None:
            return False
        ended_at, why = self._claim_end(claim, jobset, fate)
        begin = max(ended_at, fate.created_at)
        if now <= begin:
            return True
        verdict = self._bound(claim, jobset, fate, begin)
        self.world.verdicts[jobset.uid] = (now - begin, verdict)
        if now - begin > verdict.allowed_s:
            text = f"{jobset.name} was left for {now - begin:.1f} s without a claim (since {why}); promised: "
            self.violated(Invariant.BILLING_BOUND, f"{text}{verdict.allowed_s:.1f} s by {verdict.layer}")
            return False
        return verdict.allowed_s < NEVER / 2

    def _claim_end(self, claim: ClusterClaim, jobset: JobSet, fate: Fate) -> tuple[float, str]:
        ends = [(claim.final_at, "its deadline")]
        if claim.canceled_at is not None:
            ends.append((claim.canceled_at, "tpujob cancel"))
        if claim.detached_at is not None:
            return min(ends)
        ends += claim.ends
        owner = claim.owner
        if owner is not None and not owner.alive:
            ends.append((owner.ended_at, f"{owner.name} ended"))
        if owner is not None and owner.frozen:
            ends.append((self.world.frozen_since, f"{owner.name} was stopped"))
        if fate.lost_at is not None and fate.is_seen:
            ends.append((fate.known_at + NOTICE_S, fate.why_lost))
        wait_ends = self._wait_ends(claim)
        if claim.seen_ready_at is None and (fate.node_at is None or fate.node_at > wait_ends):
            ends.append((wait_ends, "its wait was over"))
        ends.append((claim.wait_until + STARTING_S, "its pods did not start"))
        return min(ends)

    def _wait_ends(self, claim: ClusterClaim) -> float:
        """Return until when a job may get its first node: no command sees that it still waits while the API is away."""
        cut, origin, until = self.world.cluster_plan.cut, self.world.faults.begun_at, claim.wait_until
        for begin, end in sorted(cut.get("api", []) + cut.get("laptop-api", [])):
            if begin <= until - origin < end:
                until = origin + end + LOOK_S
        return until

    def _bound(self, claim: ClusterClaim, jobset: JobSet, fate: Fate, begin: float) -> Allowance:
        layers = {"local": self._local(claim, fate, begin), "gc": self._gc(claim, fate, begin)}
        layer = min(layers, key=lambda name: layers[name])
        return Allowance(layers[layer], layer) if layers[layer] < NEVER / 2 else Allowance(NEVER, "the control plane")

    def _local(self, claim: ClusterClaim, fate: Fate, begin: float) -> float:
        world, plan, now = self.world, self.world.cluster_plan, self.timeline.now
        machine, canceler = world.laptop, claim.canceler
        # A lease stays with the process that has its lock; `cancel` only tells it.
        held = claim.owner is not None and (claim.owner.alive or claim.owner.ended_at > (claim.canceled_at or 0.0))
        owner = claim.owner if claim.canceled_at is None or held else canceler
        if (
            not machine.on
            or machine.asleep
            or any(each and each.alive and each.frozen for each in (owner, claim.owner))
        ):
            return NEVER  # a stopped process keeps its locks
        if world.ledger_was_lost and (owner is None or not owner.alive):
            return NEVER
        awake = max(begin, machine.on_since, world.thawed_at)
        if owner is canceler and canceler is not None:
            awake = max(awake, canceler.started_at)

        if owner is not None and owner.alive:
            own_s = COMMAND_S if owner is canceler else world.collect_s + self._create_s()
            need = COMMAND_OWN_S + LOOK_S + own_s
            return finish(world, "local", fate, begin, awake, need, now)  # type: ignore[arg-type]
        ended_at = begin if owner is None else owner.ended_at
        if (
            owner is not None
            and not owner.killed
            and owner.signals_received < 3
            and getattr(owner.result, "exit_code", None) != 75  # it has given up, and said so
            and 0.0 <= ended_at - begin < RELEASE_S
        ):
            return finish(world, "local", fate, begin, awake, COMMAND_OWN_S, now)  # type: ignore[arg-type]
        lasting = claim.detached_at is not None
        need = GUARDIAN_OWN_S + (GUARDIAN_POLL_S if lasting else 0.0)
        if len(self.claims) > 1 and (plan.replaced_at is not None or plan.finalizer_until is not None):
            need += BUDGET_S  # the recovery of a lease whose absence cannot be proven goes first
        return without_owner_s(world, fate, owner, begin, awake, now, lasting=lasting, guardian_s=need)  # type: ignore[arg-type]

    def _create_s(self) -> float:
        """How long a create may take that is not interrupted: each of its objects is posted once."""
        plan = self.world.cluster_plan
        return 2 * (plan.slow_posts + TIMEOUT_S * bool(plan.late_posts))

    def _gc(self, claim: ClusterClaim, fate: Fate, begin: float) -> float:
        world = self.world
        if world.gc_every_s is None or not world.layers.gc:
            return NEVER
        ends_at = fate.created_at + claim.wait_s + claim.job_s
        need = max(ends_at - begin, 0.0) + periods(world).margin_s + world.gc_every_s + GC_OWN_S + POLL_MOST_S
        return finish(world, "gc", fate, begin, begin, need, self.timeline.now)  # type: ignore[arg-type]
