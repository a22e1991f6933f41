"""How a phase of a pod has ended: by what the pod said, by its termination message, and by what the API shows of it. Pure.

A phase has ended when the pod says so. Where its word is missing, the API and the termination message decide; where the
cluster has stopped the pod, its phase is lost. `WorkerStatus.why` is then one of these:

- of an ended phase: "deadline" (its code is 124); "setup", for `main` of a job whose setup failed, with the code of the setup
- of a lost one: "stalled"; "failed": the program of the pod could not begin the job; "lost": its supervisor was killed; "gone":
  the pod is not there any more; "stopped", or the cluster's own reason, such as "Evicted" or "OOMKilled"
"""

from collections.abc import Mapping
from typing import Any

from orchestrator.hosts.fleet.follow import TEXT_CHARS, WorkerState, servers_in
from orchestrator.places.gke.objects.pod_api import PodView
from orchestrator.places.gke.pods.stream import PHASES
from orchestrator.text import parsing

DEADLINE, DEADLINE_RC, STOPPED, GONE = "deadline", 124, "stopped", "gone"
OUTSIDE = "its pod was deleted, or its node shuts down"  # no job, no program and no limit stopped it
NO_REASONS = ("", "Error", "Completed")  # what Kubernetes says of a container that has ended by itself

Said = Mapping[str, Any]  # the end of a phase, or the termination message
End = dict[str, Any]  # fields of a WorkerStatus


def exited(rc: int | None, said: Said, why: str = "") -> End:
    """Return the end of a phase with this code."""
    stopped = bool(said.get("stopped"))
    return {"state": WorkerState.EXITED, "rc": rc, "stopped": stopped, "unreachable": servers_in(said), "why": why}


def end_of(phase: str, said: Said, view: PodView | None, earlier: tuple[int | None, Said] | None) -> End:
    """Return the end of a phase that has not ended by itself. `earlier`: how a phase before it failed."""
    why, rc = said.get("why"), code_of(said)
    reason = "" if view is None or view.reason in NO_REASONS else view.reason
    detail = str(said.get("detail") or "")[:TEXT_CHARS]
    if said.get("phase") in PHASES[PHASES.index(phase) + 1 :]:  # it ended well, or that would not have begun
        return exited(0, {})
    if why == DEADLINE or reason == "DeadlineExceeded":
        return {"state": WorkerState.EXITED, "rc": DEADLINE_RC, "stopped": True, "why": DEADLINE, "detail": detail}
    if earlier is not None:
        return exited(*earlier, why="setup")
    if isinstance(why, str) and why:
        why = reason or why
        return _lost(why, detail or ("" if view is None else view.message) or (OUTSIDE if why == STOPPED else ""))
    if rc is not None and said.get("phase") == phase:
        return exited(rc, said)
    if rc and said.get("phase") in PHASES:
        return exited(rc, said, why="setup")
    return _lost(GONE, "its pod was deleted") if view is None else _lost(reason or "lost", view.message)


def _lost(why: str, detail: str) -> End:
    return {"state": WorkerState.LOST, "why": why, "detail": detail, "stopped": why in (STOPPED, GONE)}


def code_of(said: Said) -> int | None:
    """Return the exit code that is said, if it is one."""
    return said["rc"] if type(said.get("rc")) is int else None


def message_of(view: PodView) -> Said:
    """Return the termination message of a pod; empty if it is none of ours."""
    try:
        found = parsing.loads(view.note)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("schema") == 1 else {}
