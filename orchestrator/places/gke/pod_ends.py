"""What the end of a pod means for its job, where the job's own code does not tell. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core.lease.lease import Lease
from orchestrator.core.lease.run_and_attempt import WorkerEnd
from orchestrator.errors import DeadlineExceeded, PayloadFailed, Preempted, SliceLost, TpujobError
from orchestrator.remote.fleet.follow import OWN_ENDS

if TYPE_CHECKING:
    from orchestrator.remote.fleet.follow import WorkerStatus
    from orchestrator.remote.fleet.steps import FleetStatus

LIMIT = "limits.max_duration"
# Reasons of Kubernetes for pods that it takes away. What fails on the other pods is a consequence.
TAKEN = ("Evicted", "Preempting", "NodeLost", "NodeShutdown", "Terminated", "Shutdown", "UnexpectedAdmissionError")


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
            return PayloadFailed(
                f"the setup failed on worker{first.index} with code {rc}", rc=rc, hint=hint, workers=ends
            )
        case "stalled":
            return SliceLost("the job printed nothing for `limits.stall` and was stopped", reason="hung")
        case "OOMKilled":
            text = f"the job on worker{first.index} was killed: it took more memory than there is (OOMKilled)"
            return PayloadFailed(text, hint=hint, workers=ends)
        case "failed" | "ContainerCannotRun" | "StartError":
            return SliceLost(
                f"worker{first.index} could not begin the job: {_why(first)}", reason="not-begun", hint=hint
            )
        case why:
            lost = Preempted if why in TAKEN else SliceLost
            return lost(f"worker{first.index} of {lease.name.node} was lost: {_why(first)}")


def _precedence(worker: WorkerStatus) -> int:
    """What was taken away comes first. Once a job has failed on a pod, or is at its limit, the cluster stops the others."""
    if worker.why in TAKEN:
        return 0
    return 1 if worker.why in OWN_ENDS else 2 if worker.why == "deadline" else 3


def _why(worker: WorkerStatus) -> str:
    return worker.detail if worker.why in ("failed", "gone") else ": ".join(filter(None, (worker.why, worker.detail)))
