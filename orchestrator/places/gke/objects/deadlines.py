"""Until when a job on a cluster may last: what the control plane keeps by itself, whatever becomes of this machine. Pure."""

from dataclasses import dataclass

DEFAULT_WAIT_S = 3600.0  # in a queue, of a job without `wait`
STARTS_WITHIN_S = 900.0  # from admission, or from the creation, to running pods: nodes are started, images pulled
ENDS_WITHIN_S = 120.0  # a pod, beyond the limit of its job: its image is pulled before, its results are sent after that
KEPT_S = 3600.0  # ended objects, of a job without `limits.linger`


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds. Kubernetes counts that of a Job while its pods are pending, but not while Kueue suspends it."""

    wait_s: float  # for admission, or for nodes without a queue; kept by this machine
    run_s: float  # of the job in a pod, kept by its own program
    pod_s: float  # from the start of a pod, by the kubelet
    job_s: float  # from the creation, or from the admission by Kueue
    kept_s: float  # from the end of the job until the JobSet and everything it owns is deleted
    life_s: float  # from the creation to the end of the job at the latest, if it is admitted within `wait_s`

    @property
    def peers_s(self) -> float:
        """How long a pod that runs waits for the others, which may still wait for nodes.

        It ends before its own limit, so that the run ends with what was missing, and the job has time left if all come.
        """
        return min(max(self.wait_s, STARTS_WITHIN_S), self.run_s / 2)


def deadlines(max_duration_s: float, *, wait_s: float, linger_s: float | None, queued: bool) -> Deadlines:
    """Return the deadlines of a job. `wait_s`: 0 for the default; `queued`: Kueue admits it."""
    waits = wait_s or (DEFAULT_WAIT_S if queued else STARTS_WITHIN_S)
    job_s = max_duration_s + (STARTS_WITHIN_S if queued else max(waits, STARTS_WITHIN_S))
    return Deadlines(
        waits,
        max_duration_s,
        max_duration_s + ENDS_WITHIN_S,
        job_s,
        linger_s or KEPT_S,
        job_s + (waits if queued else 0.0),
    )
