"""Start the training processes of this host, forward their output, and end all of them when one fails.

The output of process 0 is the log. Of the other processes, only the last lines of the one that caused a failure are printed. A
signal to the supervisor ends every process before it exits.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from payload.failures import PeerLost
from payload.job import STOP, TrainingJob
from payload.launch import tpu_launch

SETTLE_S = 1.0  # wait after a failure for other processes to fail: one of them may be the cause
PEER_SETTLE_S = 5.0  # the same, if the failed process lost another process
FINISH_S = 120.0  # wait for the others after the first process succeeded
TERM_S = 1.0
TAIL_LINES = 25
SAVE_S = 8.0  # wait for a checkpoint after a signal; `tpujob` kills after 10 s


class SupervisorStopped(BaseException):
    """A signal requested the supervisor to stop."""

    def __init__(self, signum: int) -> None:
        self.signum = signum


class Rank:
    """One process, and the thread that reads its output until it ends."""

    def __init__(self, job: TrainingJob, ended: queue.Queue[Rank], environment: dict[str, str]) -> None:
        self.number = job.local_rank
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._ended = ended
        self.process = subprocess.Popen(
            [sys.executable, "-m", "payload.rank"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment | _place(job),
        )
        with suppress(BrokenPipeError):  # it has ended; its output gives the reason
            assert self.process.stdin is not None
            with self.process.stdin as stdin:
                stdin.write(pickle.dumps(job))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            line = raw.decode(errors="replace").rstrip("\n")
            self.tail.append(line)
            if self.number == 0:
                print(line, flush=True)
        self.process.wait()
        self._ended.put(self)

    def finish_reading(self) -> None:
        self._thread.join(TERM_S)

    @property
    def code(self) -> int | None:
        return self.process.poll()


def run(job: TrainingJob) -> int:
    """Run the processes and return the exit code of the host.

    0, the code of the process that caused a failure, or 128 + the signal that stopped the supervisor.
    """
    ended: queue.Queue[Rank] = queue.Queue()
    ranks: list[Rank] = []
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, _raise_stopped)
    try:
        own = (job, _environment(job))
        with tpu_launch.prepared(*own) if job.backend == "tpu" else nullcontext(own) as (placed, environment):
            for local_rank in range(job.placement.processes):
                ranks.append(Rank(replace(placed, local_rank=local_rank), ended, environment))
            return _wait(ranks, ended, placed)
    except SupervisorStopped as stopped:
        print(f"stopped by {signal.Signals(stopped.signum).name}", file=sys.stderr, flush=True)
        _request_checkpoint(ranks, job)
        return 128 + stopped.signum
    finally:
        _end_all(ranks)


def _request_checkpoint(ranks: list[Rank], job: TrainingJob) -> None:
    """Wait until process 0 of all hosts has written a checkpoint at the end of its step and ended.

    Other hosts continue, because process 0 needs them to complete its step; they fail when it ends. A second signal ends the
    wait.
    """
    if not job.config.checkpoint or not ranks:
        return
    (job.scratch / STOP).touch()
    deadline = time.monotonic() + SAVE_S
    with suppress(SupervisorStopped):
        while time.monotonic() < deadline and all(rank.code is None for rank in ranks):
            time.sleep(0.02)
        if ranks[0].code is not None:
            ranks[0].finish_reading()  # its last lines name the saved step
        if all(rank.code is None for rank in ranks) and job.placement.worker == 0:
            print(f"no step ended within {SAVE_S:.0f} s: no checkpoint was written", file=sys.stderr, flush=True)


def _wait(ranks: list[Rank], ended: queue.Queue[Rank], job: TrainingJob) -> int:
    gone: list[Rank] = []
    deadline: float | None = None
    while len(gone) < len(ranks):
        try:
            gone.append(ended.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic())))
        except queue.Empty:
            break
        failed = [rank for rank in gone if rank.code]
        if not failed:
            deadline = deadline or time.monotonic() + FINISH_S
            continue
        only_peer_lost = all(rank.code == PeerLost.exit_code for rank in failed)
        if len(failed) == 1:
            deadline = time.monotonic() + (PEER_SETTLE_S if only_peer_lost else SETTLE_S)
        elif not only_peer_lost:
            deadline = min(deadline or 0.0, time.monotonic() + SETTLE_S)
    failed = [rank for rank in gone if rank.code]
    if failed:
        return _report_failure(min(failed, key=_failure_order), job)
    if len(gone) < len(ranks):
        missing = ", ".join(str(rank.number) for rank in ranks if rank not in gone)
        print(f"process {missing} did not end {FINISH_S:.0f} s after the others", file=sys.stderr, flush=True)
        return 1
    return 0


def _failure_order(rank: Rank) -> int:
    """Return the sort key of likely causes: killed by a signal, failed by itself, lost another process."""
    assert rank.code
    if rank.code < 0:
        return 0
    return 2 if rank.code == PeerLost.exit_code else 1


def _report_failure(failed: Rank, job: TrainingJob) -> int:
    """Print which process caused the failure, and return the exit code of the host."""
    code = failed.code
    assert code
    killed = code < 0
    what = f"was killed by {signal.Signals(-code).name}" if killed else f"ended with code {code}"
    name = f"process {failed.number} of {job.placement.processes} on worker {job.placement.worker}"
    if failed.number != 0 and failed.tail:
        print(f"{name}, its last lines:", file=sys.stderr)
        for line in failed.tail:
            print(f"  {line}", file=sys.stderr)
    print(f"{name} {what}; all processes were ended", file=sys.stderr, flush=True)
    return 1 if killed else code


def _end_all(ranks: list[Rank]) -> None:
    """Kill all processes: checkpoints are written, and a process that waits in a reduction does not handle SIGTERM."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    for rank in ranks:
        rank.process.kill()
    for rank in ranks:
        rank.process.wait()


def _raise_stopped(signum: int, _frame: FrameType | None) -> None:
    raise SupervisorStopped(signum)


def _environment(job: TrainingJob) -> dict[str, str]:
    threads = str(job.cores_each(len(os.sched_getaffinity(0))))
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if job.backend == "xla":
        environment["PJRT_DEVICE"] = job.placement.device.upper()
        if job.config.entry is None:
            # PyTorch runs each in-place operation a second time, in Python, to check its shapes: half the cost of an optimizer
            # step. The operations of the built-in training need no check; those of an `entry` keep it.
            environment.setdefault("TORCH_DISABLE_FUNCTIONALIZATION_META_REFERENCE", "1")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        environment.setdefault(name, threads)
    if job.placement.device == "cpu":
        # Each step frees and allocates the same buffers of a few MB. By default glibc returns them to the kernel and maps
        # them again, zeroed page by page: 40 steps of mnist_cnn in two processes then cause 2.9 million page faults instead
        # of 0.4 million, a fifth of their CPU time.
        for name, value in (("MMAP_THRESHOLD", 32 << 20), ("TRIM_THRESHOLD", 1 << 30), ("TOP_PAD", 256 << 20)):
            environment.setdefault(f"MALLOC_{name}_", str(value))
        environment.setdefault("MALLOC_ARENA_MAX", "1")
    if job.meets_on_this_machine:
        # The host name of this machine may resolve to an unreachable address; all processes are on the loopback.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return environment


def _place(job: TrainingJob) -> dict[str, str]:
    """Return torchrun's environment variables for the rank of a process, for libraries that read them."""
    if job.backend == "xla":
        return {}  # torch_xla would take RANK and WORLD_SIZE for its own
    here = job.placement.processes
    numbers = {"RANK": job.rank, "LOCAL_RANK": job.local_rank, "WORLD_SIZE": job.world, "LOCAL_WORLD_SIZE": here}
    return {name: str(number) for name, number in numbers.items()}


def meeting_place(job_coordinator: tuple[str, int] | None, scratch: Path) -> str:
    """Return the init_method URL of torch.distributed: a file in `scratch` for one host, which needs no free port."""
    if job_coordinator is None:
        return (scratch / "rendezvous").as_uri()
    host, port = job_coordinator
    return f"tcp://{f'[{host}]' if ':' in host else host}:{port}"
