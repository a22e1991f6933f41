"""The oracle of worlds with a cluster: which JobSets hold TPUs, whether they are claimed, and which invariant is broken.

It records what users, processes and the cluster did, never labels and never what the programs under test believe. The control
plane ends every JobSet; how long one may last without a claim before, its coarse bound says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.errors import DeadlineExceeded, Interrupted
from orchestrator.promise.lease.changes import Detached, Gone, Intent, LeaseEvent, Ready, ReleaseBegan
from orchestrator.promise.lease.lease import Lease
from orchestrator.run.progress import Outcome
from tests.simulation.model.faults import TIMEOUT_S
from tests.simulation.model.jobsets import JobSet, Pod, Stored
from tests.simulation.model.machine import BUDGET_S
from tests.simulation.oracle import periods
from tests.simulation.oracle.bounds import Allowance, without_owner_s
from tests.simulation.oracle.invariants import Invariant
from tests.simulation.oracle.oracle import OracleOfLeases

if TYPE_CHECKING:
    from tests.simulation.model.cluster_world import ClusterWorld
    from tests.simulation.model.process import Process

STARTS_S = 900.0  # docs/gke.md: from admission to running pods; beyond it the Job ends
ENDS_S = 120.0  # docs/gke.md: a pod ends so long after `limits.max_duration` at the latest
GRACE_S = 65.0  # of a pod, and until that is known
SPARE_S = 180.0  # beyond the deadline that the control plane keeps, until any command deletes
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
    detached: bool = False
    canceled_at: float | None = None
    canceler: Process | None = None
    seen_ready: bool = False
    is_waited_out: bool = False  # it was not admitted in time when its release was recorded, whatever ran after that
    ends: list[tuple[float, str]] = field(default_factory=list)
    requested_at: tuple[str, ...] = ()  # for `periods`: no cloud queues it

    @property
    def job_s(self) -> float:
        """How long the control plane lets a job last, from its admission on."""
        return self.max_s + (STARTS_S if self.queued else max(self.wait_s, STARTS_S))

    @property
    def wait_until(self) -> float:
        return self.begun_at + self.wait_s * 1.01 + periods.LOOK_S

    @property
    def final_at(self) -> float:
        """From then on any command deletes it. Clocks may run wrong by one percent."""
        return self.begun_at + (self.wait_s + self.job_s + SPARE_S) * 1.01


class ClusterOracle(OracleOfLeases):
    world: ClusterWorld

    def __init__(self, world: ClusterWorld) -> None:
        super().__init__(world)
        self.claims: list[ClusterClaim] = []
        self.attached: dict[Process, ClusterClaim] = {}

    def claim_of(self, lease_id: str) -> ClusterClaim | None:
        return next((claim for claim in self.claims if claim.lease_id == lease_id), None)

    def sets_of(self, claim: ClusterClaim | None) -> list[JobSet]:
        return [each for each in self.world.cluster.sets if each.claim is claim]

    def existing(self) -> list[Any]:
        """Return what exists of tpujob."""
        sets = [each for each in self.world.cluster.sets if each.left and each.claim is not None]
        return [*sets, *(each for each in self.world.cluster.owned if self.claim_of(each.lease_id))]

    def left_of(self, lease_id: str) -> str:
        """Return what exists of a lease, in words."""
        left = [each for each in self.existing() if each.lease_id == lease_id]
        return ", ".join(f"{each.kind} {each.name} (or what it owned)" for each in left)

    # -- what the cluster did ------------------------------------------------------------------------------------------

    def jobset_created(self, made: JobSet) -> None:
        self.world.log(f"JobSet {made.name} exists{' (suspended)' * made.suspended}")
        self.world.watch_resources()
        if made.name in self.world.foreign and not made.lease_id:
            return
        made.claim = self.claim_of(made.lease_id)
        if made.name not in self.intents:
            self.violated(Invariant.INTENT_FIRST, f"{made.name} exists, but no intent was committed before")
        if not made.name.startswith("tpujob-") or made.labels.get("tpujob") != "1" or made.claim is None:
            self.violated(Invariant.INTENT_FIRST, f"{made.name} lacks a label or the prefix: no list could find it")
        self.check_not_gone(made.name, made.lease_id)
        late = self.world.cluster.arrives_late  # a create that timed out long ago: its name is free again
        # So it is once a job has ended and `limits.linger` is over, while its create is repeated (docs/assumptions.md).
        others = [each for each in self.sets_of(made.claim) if not (each.finished and not each.exists)]
        if not late and any(each is not made and not each.deleted_outside for each in others):
            self.violated(Invariant.ONE_SLICE, f"{made.name} is the second JobSet of its lease")

    def lost(self, jobset: JobSet, why: str, known_after_s: float = 0.0) -> None:
        """It was taken away. A command that has not seen it run goes on waiting for one that was sent back to its queue."""
        if "sent back" in why and (jobset.claim is None or not jobset.claim.seen_ready):
            jobset.known_at = periods.NEVER  # what was wrong with its pods is gone with them
        elif jobset.lost_at is None:
            jobset.known_at, jobset.why_lost = self.timeline.now + known_after_s, why
        jobset.lost_at = jobset.lost_at or self.timeline.now
        jobset.deleted_outside |= "deleted" in why and "user" in why

    def changed(self, jobset: JobSet) -> None:
        """A JobSet is being deleted, is over, or has lost a pod."""
        if (jobset.deleting_at is not None or jobset.over) and jobset.settled_at is None:
            self.judge(jobset)
            jobset.settled_at = self.timeline.now
        self.world.stop_when_done()

    def pod_ended(self, jobset: JobSet, pod: Pod) -> None:
        """A pod holds its TPU no longer. No pod may hold one for longer than what the control plane was told."""
        claim, now, origin = jobset.claim, self.timeline.now, self.world.faults.begun_at
        if claim is None or not pod.node:
            return
        if not any(each.holds_tpu for each in jobset.pods):
            jobset.ended_at = jobset.ended_at or now
        away_s = sum(periods.overlap(self.world.plan.cut.get("api", []), jobset.created_at - origin, now - origin))
        for what, lasted_s, most_s in (
            ("ran", now - (pod.started_at or now), claim.max_s + ENDS_S + GRACE_S),
            ("was admitted", jobset.admitted_s(now), claim.job_s + GRACE_S * jobset.epoch + away_s),
        ):
            if lasted_s > most_s:
                text = f"{pod.name} {what} for {lasted_s:.0f} s; the control plane ends it after {most_s:.0f} s"
                self.violated(Invariant.DEADLINE, text)
        self.changed(jobset)

    # -- what processes did --------------------------------------------------------------------------------------------

    def delete_arrived(self, found: Stored, process: Process) -> None:
        """A delete of a JobSet, a ConfigMap or a Secret arrived at the API."""
        claim = self.claim_of(found.lease_id)
        self.world.log(f"delete of {found.name} by {process.name} arrives")
        if claim is None:
            self.violated(Invariant.OURS_ONLY, f"{process.name} deletes {found.kind} {found.name}, which is not ours")
        elif isinstance(found, JobSet) and self._certainly_claimed(claim, found, process):
            text = f"{process.name} deletes {found.name}, which {claim.label} claims"
            self.violated(Invariant.CLAIM_RESPECTED, text)

    def _certainly_claimed(self, claim: ClusterClaim, jobset: JobSet, process: Process) -> bool:
        now, plan, owner = self.timeline.now, self.world.plan, claim.owner
        settled = any(each.settled_at is not None for each in self.sets_of(claim))  # else its create was late
        if settled or jobset.lost_at is not None or jobset.ends or jobset.at_limit:
            return False
        if claim.canceled_at is not None or process is claim.canceler:
            return False
        if self.world.ledger_was_lost or plan.clock_offset_s or plan.clock_steps:
            return False
        until = claim.begun_at + (claim.wait_s if jobset.ran_at is None else claim.job_s) * 0.97
        if jobset.ran_at is not None and process in self.attached:
            until = min(until, jobset.ran_at + claim.max_s * 0.97)
        if now >= until or claim.is_waited_out:
            return False  # its deadline may have come
        follows = owner is not None and owner.alive and not (owner.frozen or claim.ends or owner is process)
        return claim.detached or follows

    def results_left_behind(self, vm: object) -> None:
        """What is left stays in the logs of the pods."""

    def on_lease_change(self, event: LeaseEvent, before: Lease | None, after: Lease) -> None:
        super().on_lease_change(event, before, after)
        now, claim = self.timeline.now, self.claim_of(after.id)
        if isinstance(event, Gone) and (left := self.left_of(after.id)):
            self.violated(Invariant.GONE_IS_TRUE, f"{after.name.node} is called gone; {left} exists")
        if claim is None:
            return
        match event:
            case Intent():
                claim.begun_at = now
            case Ready():
                claim.seen_ready = True
            case Detached():
                claim.detached, sets, owned = True, self.sets_of(claim), self.world.cluster.owned
                has_run = any(
                    each.deleted_outside or each.ran_at is not None for each in sets
                )  # while this machine slept
                if not has_run and not (sets and any(each.lease_id == claim.lease_id for each in owned)):
                    text = f"{claim.label} is handed over, and its JobSet or what its pods need does not exist"
                    self.violated(Invariant.ARMED_HANDOVER, text)
            case ReleaseBegan() if claim.canceled_at is None:
                if self.world.acting is claim.canceler is not None:
                    claim.canceled_at = now
                has_run = any(each.ran_at is not None for each in self.sets_of(claim))
                claim.is_waited_out |= not has_run and now >= claim.begun_at + claim.wait_s * 0.97

    def check_exit(self, process: Process, code: int) -> None:
        """Check that the exit code is honest, and that it tells the end of the job as it was."""
        result = process.result
        claim = self.attached.get(process) or next((each for each in self.claims if each.owner is process), None)
        if claim is None or isinstance(process.error, Exception):
            return
        self.world.log(f"{process.name} exits with {code}: {getattr(result, 'error', None)}")
        known, exits = process.ledger.leases.get(claim.lease_id), f"{process.name} exits with {code}"
        if code == 75:
            if process.error is None and (known is None or not known.open):
                self.violated(Invariant.HONEST_EXIT_CODE, f"{exits} though everything is proven gone")
            return
        assert isinstance(result, Outcome)
        if result.detached:
            return
        if left := self.left_of(claim.lease_id):
            self.violated(Invariant.HONEST_EXIT_CODE, f"{exits} while {left} exists")
        self.reported_gone[claim.lease_id] = process.name
        sets, plan, rc = self.sets_of(claim), self.world.plan, self.world.workloads[claim.lease_id].job.rc
        if code == 0 and not any(list(each.codes.values()) == [0] * each.workers for each in sets):
            self.violated(Invariant.TRUE_END, f"{exits}, and not every pod has succeeded")
        if isinstance(result.error, DeadlineExceeded) and not any(map(self._limit_was_reached, sets)):
            self.violated(Invariant.TRUE_END, f"{exits}, and no limit was reached")
        untold = process in self.attached or isinstance(result.error, Interrupted) or claim.canceled_at is not None
        failed = sets and all(each.finished == "Failed" and not (each.lost_at or each.at_limit) for each in sets)
        if failed and rc and code != rc and not (untold or plan.families or plan.cut or plan.crashes):
            self.violated(Invariant.TRUE_END, f"{exits}, and the job with {rc}")

    def _limit_was_reached(self, jobset: JobSet) -> bool:
        """By the control plane, by the program of a pod, or because every pod ran for so long. Clocks may be wrong by 1%."""
        end = min(each for each in (self.timeline.now, jobset.settled_at, jobset.ended_at) if each is not None)
        ran_s = 0.0 if jobset.ran_at is None or jobset.claim is None else (end - jobset.ran_at) / jobset.claim.max_s
        return jobset.at_limit or ran_s >= 0.97

    # -- bounds --------------------------------------------------------------------------------------------------------

    def judge(self, jobset: JobSet) -> bool:
        """Check how long this JobSet may run on, or start, without a claim. Return whether it may still exceed its bound."""
        claim, now = jobset.claim, self.timeline.now
        if claim is None or jobset.settled_at is not None:
            return False
        ended_at, why = self._claim_end(claim, jobset)
        begin = max(ended_at, jobset.created_at)
        if now <= begin:
            return True
        layers = {"the control plane": periods.NEVER / 2}
        layers |= {"local": self._local(claim, jobset, begin), "gc": self._gc(claim, jobset, begin)}
        layer = min(layers, key=lambda name: layers[name])
        verdict = Allowance(layers[layer], layer)
        self.world.verdicts[jobset.uid] = (now - begin, verdict)
        if now - begin > verdict.allowed_s:
            text = f"{jobset.name} was left for {now - begin:.1f} s without a claim (since {why}); promised: "
            self.violated(Invariant.BILLING_BOUND, f"{text}{verdict.allowed_s:.1f} s by {verdict.layer}")
        return verdict.allowed_s < periods.NEVER / 2

    def _claim_end(self, claim: ClusterClaim, jobset: JobSet) -> tuple[float, str]:
        ends, owner = [(claim.final_at, "its deadline")], claim.owner
        if claim.canceled_at is not None:
            ends.append((claim.canceled_at, "tpujob cancel"))
        if claim.detached:
            return min(ends)
        ends += [*claim.ends, (jobset.known_at + NOTICE_S, jobset.why_lost)]
        if owner is not None and not owner.alive:
            ends.append((owner.ended_at, f"{owner.name} ended"))
        if owner is not None and owner.frozen:
            ends.append((self.world.frozen_since, f"{owner.name} was stopped"))
        came_late = jobset.node_at is None or jobset.node_at > claim.wait_until
        if came_late and not (
            claim.seen_ready or self.world.plan.cut
        ):  # no command sees what waits while the API is away
            ends.append((claim.wait_until, "its wait was over"))
        return min(*ends, (claim.wait_until + STARTING_S, "its pods did not start"))

    def _local(self, claim: ClusterClaim, jobset: JobSet, begin: float) -> float:
        """Return how long this machine may take: its command, else its guardian, the timer or the next command."""
        world, machine, now = self.world, self.world.laptop, self.timeline.now
        # A lease stays with the process that has its lock; `cancel` only tells it.
        held = claim.owner is not None and (claim.owner.alive or claim.owner.ended_at > (claim.canceled_at or 0.0))
        owner = claim.owner if claim.canceled_at is None or held else claim.canceler
        frozen = any(each and each.alive and each.frozen for each in (owner, claim.owner))  # it keeps its locks
        if owner is None or frozen or not machine.on or machine.asleep or world.ledger_was_lost:
            return periods.NEVER
        awake = max(begin, machine.on_since, world.thawed_at, owner.started_at)
        if owner.alive:
            create_s = (
                2 * TIMEOUT_S * bool(world.cluster_plan.late_posts)
            )  # one that is not interrupted posts each object once
            need = periods.COMMAND_OWN_S + periods.LOOK_S + periods.COMMAND_S + world.collect_s + create_s
            return periods.finish(world, "local", jobset, begin, awake, need, now)  # type: ignore[arg-type]
        # The recovery of a lease whose absence cannot be proven goes first.
        need = periods.GUARDIAN_OWN_S + periods.GUARDIAN_POLL_S * claim.detached + BUDGET_S * (len(self.claims) > 1)
        return without_owner_s(world, jobset, owner, begin, awake, now, lasting=claim.detached, guardian_s=need)  # type: ignore[arg-type]

    def _gc(self, claim: ClusterClaim, jobset: JobSet, begin: float) -> float:
        world = self.world
        if world.gc_every_s is None or not world.layers.gc:
            return periods.NEVER
        ends_at = jobset.created_at + claim.wait_s + claim.job_s
        own_s = periods.periods(world).margin_s + periods.GC_OWN_S + periods.POLL_MOST_S
        need = max(ends_at - begin, 0.0) + world.gc_every_s + own_s
        return periods.finish(world, "gc", jobset, begin, begin, need, self.timeline.now)  # type: ignore[arg-type]
