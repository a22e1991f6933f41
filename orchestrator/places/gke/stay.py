"""The stay of a job on a cluster: its JobSet is submitted, its pods start, and the control plane keeps their deadlines.

The pods bring code and limits with them: a process here only follows. What the cluster says of them decides how they ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from orchestrator import errors
from orchestrator.errors import DeadlineExceeded, PayloadFailed, Preempted, SliceLost, TpujobError
from orchestrator.hosts.fleet.effects import Connect, WaitForWorkers
from orchestrator.hosts.fleet.follow import OWN_ENDS, WorkerStatus
from orchestrator.places.gke.api.words import FAILED, NO_ROOM, PENDING, SILENT, TAKEN
from orchestrator.places.gke.objects.nodes import NodeView, in_words
from orchestrator.places.gke.starts import Start, Starts, shown
from orchestrator.places.gke.traits import TRAITS
from orchestrator.places.gke.watch import report_nodes
from orchestrator.places.leased import LeasedStay
from orchestrator.places.place import Ask, End, Standing, Watch
from orchestrator.promise.effects import retry
from orchestrator.promise.effects.base import Make, Now, ReadLease, Record, Report, Sleep
from orchestrator.promise.effects.cloud import Get, Workers
from orchestrator.promise.lease.changes import Leased, NodesUsed, NotAllowed, Ready
from orchestrator.promise.lease.cloud_api import Capabilities, SliceState, WorkerAddress
from orchestrator.promise.lease.lease import Lease, LeaseState
from orchestrator.promise.lease.run_and_attempt import AT_LIMIT, LIMIT, Attempt, SavedState, WorkerEnd, what_ended_it
from orchestrator.promise.obligations import Obligations
from orchestrator.promise.obtain.acquire import create_slice
from orchestrator.promise.obtain.drafts import Draft
from orchestrator.promise.recover import ready_at
from orchestrator.promise.release import try_record
from orchestrator.promise.standing import check_lease, check_slice
from orchestrator.text.units import format_duration
from orchestrator.traits import Traits

if TYPE_CHECKING:
    from orchestrator.hosts.fleet.crew import Crew, FleetStatus
    from orchestrator.hosts.transfer.collect import CollectResult


def verdict(lease: Lease, status: FleetStatus, run: str) -> TpujobError | None:
    """Return why the job of these pods failed; None if its code says it, or on a slice, whose workers have no reasons."""
    failed = [worker for worker in status.ends if worker.failed]
    if not failed:
        return None
    first = min(failed, key=_precedence)
    ends = tuple(WorkerEnd(each.index, each.rc, each.stopped) for each in status.workers if each.final)
    hint = f"`tpujob logs {run} --worker {first.index}` prints what worker{first.index} wrote"
    match first.why:
        case "" | "lost":
            return None
        case "deadline":
            return DeadlineExceeded(f"the job reached {LIMIT} and was stopped", hint=f"raise {LIMIT}")
        case "setup":
            rc = PayloadFailed.MOST if first.rc is None else first.rc
            text = f"the setup failed on worker{first.index} with code {rc}"
            return PayloadFailed(text, rc=rc, hint=hint, workers=ends)
        case "stalled":
            return SliceLost("the job printed nothing for `limits.stall` and was stopped", reason="hung")
        case "OOMKilled":
            text = f"the job on worker{first.index} was killed: it took more memory than there is (OOMKilled)"
            return PayloadFailed(text, hint=hint, workers=ends)
        case "restarts":
            return Preempted(f"{lease.name.node} was taken away: {first.detail}")
        case "failed" | "ContainerCannotRun" | "StartError":
            text = f"worker{first.index} could not begin the job: {_why(first)}"
            return SliceLost(text, reason="not-begun", hint=hint)
        case why:
            lost = Preempted if why in TAKEN else SliceLost
            return lost(f"worker{first.index} of {lease.name.node} was lost: {_why(first)}")


def _precedence(worker: WorkerStatus) -> int:
    """A pod that is taken away comes first: the others fail for want of it. What ends by itself has the others stopped."""
    if worker.why.startswith((*TAKEN, *NO_ROOM)):
        return 0
    return 1 if worker.why in OWN_ENDS else 2 if worker.why == "deadline" else 3


def _why(worker: WorkerStatus) -> str:
    return worker.detail if worker.why in ("failed", "gone") else ": ".join(filter(None, (worker.why, worker.detail)))


LATE_S = 60.0  # a pod ends its job by itself; for so long this waits for it
CONNECT_S = 60.0
RECENT_S = 60.0  # between two looks, unless this machine slept: no job starts and reaches its limit meanwhile
SILENT_S = 30.0  # for a controller that makes nothing, and does not say why
NO_WORDS = "why is in the log of that controller, which the admin of the cluster can read"
UNKNOWN = "unknown"
ENDED = ("Finished", "Failed", "Completed")  # native states of a JobSet that has ended
OUTAGE_S = 600.0  # an API server that is upgraded is away for minutes, and the pods run on

# Errors after which a job does not go on, or never began. After all others it may.
OVER = (errors.Vanished, errors.SliceLost, errors.CapacityError, errors.PayloadFailed, errors.DeadlineExceeded)


@dataclass(slots=True)
class Seen:
    """What this process has learned of the cluster. `over`: that it has ended the job."""

    nodes: tuple[str, ...] = ()  # that run the job
    starts: Sequence[Start] = ()  # up to the current one, of a job that may be started again
    over: bool = False
    alone: str = ""  # what it waited for, if pods ran and failed before the others ran


@dataclass(frozen=True, slots=True)
class ClusterStay(LeasedStay):
    """`drafts`: the JobSet that is submitted, if it was not before."""

    drafts: tuple[Draft, ...] = ()
    upload: Callable[[], None] | None = None  # stores code that no ConfigMap holds
    bucket: str | None = None  # where the results of the run are, if it has one
    pods: int = 0  # of the job
    starts: Starts | None = None  # of a job that the cluster may start again
    seen: Seen = field(default_factory=Seen)

    @property
    def traits(self) -> Traits:
        return TRAITS

    async def obtain(self, ask: Ask, owed: Obligations, capabilities: Capabilities) -> Lease:
        (draft,) = self.drafts
        node = draft.lease.name.node
        if self.upload is not None:
            await Make(self.upload)
        await Report("create", f"JobSet {node}", passing=True)
        owed.lease = draft.lease
        try:
            owed.lease = lease = await create_slice(*draft, capabilities)
        except NotAllowed as error:
            raise errors.Vanished(f"{node} was released by another tpujob command") from error
        return lease

    async def settle(self, ask: Ask, lease: Lease | None, capabilities: Capabilities) -> Standing:
        """Wait until every pod has started.

        Raises CapacityError for a JobSet that does not run in time, and what the cluster says of one that cannot start.
        """
        assert lease is not None
        lease, began = await self._started(ask.attempt, lease, capabilities)
        starts = self.seen.starts
        left_s = ask.max_duration_s - sum(start.used_s for start in starts[:-1])
        end = End(min(lease.deadline, began + left_s + LATE_S), LIMIT, movable=False, spare_s=LATE_S)
        times = tuple(start.at for start in starts)
        return Standing(lease, began, end, lease.billed_from or began, patience_s=math.inf, starts=times)

    async def _started(self, attempt: Attempt, lease: Lease, capabilities: Capabilities) -> tuple[Lease, float]:
        """Return the lease once all pods have started, and since when they run."""
        if lease.state is LeaseState.READY and self.starts is None:
            lease, _ = await check_slice(lease)
            return lease, await _running_since(lease)
        began = await Now()
        again_by = None if lease.ready_by is None else began + lease.ready_by - lease.created_at
        ready_by = again_by if attempt.number > 1 else lease.ready_by
        longest = ready_by if self.starts is None else again_by  # it may wait again
        give_up_at = min((longest or lease.deadline) + capabilities.timings.provision_s, lease.deadline)
        known, known_at, since = "", began, began
        for pause_s in retry.pauses(first_s=0.05, longest_s=10.0):
            recent = known if await Now() - known_at < RECENT_S else ""
            state = await self._look(attempt, lease, (ready_by, again_by), recent)
            if state is None:
                break
            now = await Now()
            if not state.startswith(UNKNOWN):
                since = since if state == known else now
                known, known_at = state, now
            if any(each in state for each in SILENT) and now - since >= SILENT_S:
                text = f"{lease.name.node} was {state}, for {format_duration(now - since)}"
                raise errors.CapacityError(text, hint=NO_WORDS)
            if now >= give_up_at:
                text = f"{lease.name.node} was still {state} after {format_duration(now - began)}"
                raise errors.CloudUnavailable(text if known in ("", state) else f"{text}; before, it was {known}")
            await Report("wait", f"{lease.name.node}: {state}, {format_duration(now - began)}", passing=True)
            await Sleep(pause_s, lease_id=lease.id)
        whole = "it failed before every pod ran" if self.seen.alone else "every pod runs"
        await Report("ready", f"{lease.name.node}: {whole}, after {format_duration(await Now() - began)}")
        lease = await ReadLease(lease.id)
        return lease, (lease.ready_at or await Now()) if self.starts is None else await _running_since(lease)

    async def _look(
        self, attempt: Attempt, lease: Lease, by: tuple[float | None, float | None], before: str
    ) -> str | None:
        """Return what the JobSet waits for; None once all its pods have started, which is then recorded.

        `by`: when it has to run, and if it has run and waits again. `before`: what it waited for a moment ago; empty if that is
        not known, so that it may have run since.
        """
        await check_lease(lease)
        asked_at = await Now()  # a slow answer tells of the time before it
        try:
            view = await Get(lease.name)
        except errors.CloudUnavailable as error:
            return f"{UNKNOWN} ({error.message})"
        if view is None or view.state is SliceState.DELETING:
            # What the cluster has accepted is visible at once: it was there.
            raise errors.Vanished(f"{lease.name.node} was deleted before its pods ran, or before they were followed")
        await self._note(attempt, view.nodes)
        if view.state is SliceState.TOMBSTONE:
            self.seen.over = True
            if before and isinstance(view.error, errors.SliceLost) and view.error.reason == AT_LIMIT:
                text = f"{lease.name.node} did not start in time, and the cluster ended it: it was {before}"
                raise errors.CapacityError(text)
            raise view.error or errors.Preempted(f"{lease.name.node} was taken away ({view.native_state})")
        now = await Now()
        if view.state is SliceState.READY and self.starts is not None:
            try:
                counted = shown(await Make(self.starts), view.hosts, over=view.native_state in ENDED)
            except (errors.CloudError, errors.ArtifactError) as error:
                return f"{UNKNOWN} ({error.message})"
            if len(counted) < attempt.number and view.native_state not in ENDED:
                return "Running: the pods do not say yet which start of the job they are"
            if len(counted) < attempt.number and attempt.number > 1:
                self.seen.over = True
                raise errors.Preempted(f"{lease.name.node} was taken away, and the cluster does not start it again")
            self.seen.starts = counted[: self.starts.most]
        if view.state is SliceState.READY:
            if view.native_state == FAILED and before.startswith(PENDING):
                self.seen.alone = f"; not all of its pods ran: before it failed, it was {before}"
            try:
                await Record(Ready(lease.id, ready_at(lease, view, now)), Leased(attempt.id, now, lease.id))
            except NotAllowed as error:  # while the API was asked
                raise errors.Vanished(f"{lease.name.node} was released meanwhile") from error
            return None
        if (ready_by := by[view.ran]) is not None and asked_at >= ready_by:
            text = f"was not admitted, or not all of its pods ran, in time: it is still {view.native_state}"
            raise errors.CapacityError(f"{lease.name.node} {text}")
        return view.native_state

    async def _note(self, attempt: Attempt, nodes: tuple[str, ...]) -> None:
        """Record the nodes that run the job: they are billed also if this process is killed."""
        if new := tuple(dict.fromkeys(node for node in nodes if node not in self.seen.nodes)):
            self.seen.nodes += new
            await try_record(NodesUsed(attempt.id, await Now(), ", ".join(new)))

    async def connect(self, ask: Ask, lease: Lease | None) -> Crew:
        """Connect to the pods, all of which have started.

        If the job has ended and pods are gone, the bucket has what they left. Raises ArtifactError where there is none.
        """
        assert lease is not None
        began = await Now()
        for pause_s in retry.pauses(first_s=0.5, longest_s=10.0):
            try:
                workers = await retry.until(await Now() + OUTAGE_S, Workers(lease.name))
                crew = await Connect(lease, workers, CONNECT_S)
            except (errors.WrongState, errors.RemoteError) as error:  # not all are there, or the API server is away
                await check_slice(lease)
                view = await retry.until(await Now() + OUTAGE_S, Get(lease.name))
                if view is not None and view.state is SliceState.READY and isinstance(error, errors.WrongState):
                    if self.bucket is not None:
                        return await Connect(lease, tuple(WorkerAddress(i, "") for i in range(self.pods)), CONNECT_S)
                    gone = f"the job has ended ({view.native_state}), and what its pods wrote is gone with them"
                    hint = "a cluster deletes ended pods with their nodes: attach earlier, or name a `bucket:`"
                    raise errors.ArtifactError(f"{gone}: {error.message}", hint=hint) from error
                patience_s = OUTAGE_S if isinstance(error, errors.Unreachable) else CONNECT_S
                if await Now() >= began + patience_s:
                    raise errors.SliceLost(f"{lease.name.node}: {error.message}") from error
                await Sleep(pause_s, lease_id=lease.id)
            else:
                await self._note(ask.attempt, tuple(worker.instance for worker in workers if worker.instance))
                return crew
        raise AssertionError("pauses() never ends")

    def verdict(self, lease: Lease | None, status: FleetStatus, run: str) -> errors.TpujobError | None:
        assert lease is not None
        return verdict(lease, status, run)

    async def follow(self, watch: Watch, standing: Standing, crew: Crew) -> None:
        try:
            await self._watch(watch, standing, crew)
        except errors.PayloadFailed as error:
            await _check_pods(standing.lease)
            error.message += self.seen.alone
            raise
        except errors.SliceLost as lost:
            raise what_ended_it(lost) from lost

    async def _watch(self, watch: Watch, standing: Standing, crew: Crew) -> None:
        """Watch a phase. Of pods that do not answer at its end, or that have ended by then, only the cluster knows how."""
        try:
            return await watch(standing.end)
        except errors.DeadlineExceeded:
            status = await WaitForWorkers(crew, 0.0)  # this machine may have slept with the one before
            if not (status.failed or status.ended or status.silent_s(await Now())):
                raise
        assert standing.lease is not None
        try:
            await watch(replace(standing.end, at=standing.lease.deadline, spare_s=0.0))
        except errors.DeadlineExceeded as error:
            status = await WaitForWorkers(crew, 0.0)
            if status.failed or not status.silent_s(await Now()):
                raise
            raise errors.CloudUnavailable("how the job ended is not known: its cluster does not answer") from error

    async def tell_rest(self, lease: Lease, *, watch: bool) -> None:
        """Report the nodes that ran the job. `watch`: until the cluster has deleted them."""
        nodes = self.seen.nodes
        if watch:
            await report_nodes(lease.name.project, nodes)
        elif nodes:
            them = "it" if len(nodes) == 1 else "them"
            ran = f"the job ran on {in_words([NodeView(name) for name in nodes])}"
            text = f"{ran}, billed until the cluster deletes {them}; `tpujob status` shows those left, `--watch-nodes` waits"
            await Report("nodes", text)

    def starts_again(self, lost: errors.SliceLost, attempt: Attempt) -> bool:
        return self.starts is not None and attempt.number < self.starts.most and not self.seen.over

    async def saved(self) -> SavedState | None:
        return None if self.starts is None else await Make(self.starts.saved)

    def goes_on(self, error: errors.TpujobError, collected: CollectResult | None) -> bool:
        """Results that could not be collected wait in the logs of the pods, until the cluster deletes them."""
        if isinstance(error, errors.ArtifactError):
            return collected is not None and bool(collected.waiting)
        return not self.seen.over and not isinstance(error, OVER)


async def _running_since(lease: Lease) -> float:
    """Return since when the pods run; later than READY if Kueue has sent them back and admitted them again, unseen."""
    try:
        view = await Get(lease.name)
    except errors.CloudUnavailable:
        view = None
    now = await Now()
    if view is None or view.running_s is None:
        return lease.ready_at or now
    return ready_at(lease, view, now)


async def _check_pods(lease: Lease | None) -> None:
    """Raise SliceLost if the cluster took a pod away: what the others did without it is no failure of the job."""
    assert lease is not None
    try:
        await check_slice(lease)
    except errors.SliceLost as lost:
        if lost.reason != AT_LIMIT:
            raise
    except errors.CloudError:
        pass  # without an answer the job failed
