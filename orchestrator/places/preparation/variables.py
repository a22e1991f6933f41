"""The environment variables of a job on each worker: TPU_NAME, TPUJOB_*, PJRT_DEVICE. docs/job-file.md lists them."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator import catalog
from orchestrator.core.lease.lease import Lease
from orchestrator.core.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.core.lease.timings import emulated


@dataclass(frozen=True, slots=True)
class Emulation:
    """The emulated cloud: so many processes stand for the cores of a host, or as many as the host has cores."""

    cores: int
    chip_s: float = emulated().chip_s


def worker_environment(
    run: RunRecord,
    attempt: Attempt,
    lease: Lease,
    index: int,
    hosts: Sequence[str],
    coordinator: str,
    emulation: Emulation | None,
) -> dict[str, str]:
    """Return the variables that tpujob sets for one worker (docs/job-file.md)."""
    variables = {
        "TPU_NAME": lease.name.node,
        "TPUJOB_RUN": run.id,
        "TPUJOB_ATTEMPT": attempt.id,
        "TPUJOB_WORKER": str(index),
        "TPUJOB_WORKERS": str(len(hosts)),
        "TPUJOB_HOSTS": ",".join(hosts),
        "TPUJOB_COORDINATOR": coordinator,
        "PJRT_DEVICE": "CPU" if emulation else "TPU",
    }
    kind = catalog.lookup(lease.accelerator_type)
    if kind is not None:
        variables["TPUJOB_TOPOLOGY"] = kind.topology
    if emulation is None:
        return variables
    return variables | {
        "TPUJOB_EMULATED_CORES": str(min(emulation.cores, kind.cores_per_host if kind else emulation.cores))
    }
