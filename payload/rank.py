"""One training process: `python -m payload.rank`, started by supervise.py with its Job on standard input.

It opens the accelerator, trains, and exits with a code of failures.py. After any failure it exits immediately: the other
processes would otherwise wait for it in a reduction.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import re
import resource
import signal
import sys
import time
import traceback
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

from payload import artifacts
from payload.failures import INSTALL, BadConfig, PayloadError
from payload.job import TrainingJob
from payload.launch.entry import check_found, load_entry

if TYPE_CHECKING:
    from payload.backends import Backend
    from payload.clock import Clock
    from payload.run import TrainingRun

MAX_PROCESS_LINES = 8
# Keys that may change between a checkpoint and the training that resumes from it.
NOT_IDENTITY = (
    *("backend", "cores", "data_dir", "fallback", "timing", "eval", "test_examples", "emulated"),
    *("checkpoint", "checkpoint_every", "keep_checkpoints", "resume", "num_workers", "profile"),
)


def main() -> NoReturn:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # the supervisor handles it: it requests a checkpoint, then kills
    job: TrainingJob = pickle.load(sys.stdin.buffer)  # noqa: S301 (the supervisor wrote it)
    _exit_with_parent()
    try:
        if job.backend == "xla":
            _spawn(job)
        else:
            train_one(0, job)
    except BrokenProcessPool:  # a process that torch_xla started has ended and written its exit code
        with suppress(OSError, ValueError):
            os._exit(int((job.scratch / "exit-code").read_text()))
        traceback.print_exc()
        os._exit(1)
    except BaseException as error:
        _end(job, error)
    os._exit(0)


def _spawn(job: TrainingJob) -> None:
    try:
        import torch_xla.distributed.xla_multiprocessing as xmp
    except ImportError as error:
        raise BadConfig(f"torch_xla cannot be imported ({str(error).splitlines()[0]}): {INSTALL}") from None
    # On a TPU, torch_xla starts one process for each core of this host (nprocs=None), or uses one core (nprocs=1). On a
    # CPU it supports only threads, one for each XLA:CPU device, and collectives between those abort. Therefore each process of
    # the supervisor calls it with nprocs=1 and has one device, and payload/backends/group.py averages between them.
    nprocs = None if job.placement.device == "tpu" and job.config.cores != 1 else 1
    xmp.spawn(train_one, args=(job,), nprocs=nprocs)


def train_one(_index: int, job: TrainingJob) -> None:
    """Train on one core. Ends the process on failure."""
    _exit_with_parent()
    try:
        _train(job)
    except BaseException as error:
        # Not raised: torch_xla, if it started this process, would wait for the others before it reports the error.
        _end(job, error)


def _train(job: TrainingJob) -> None:
    try:
        import torch

        from payload.backends import check_world, open_backend
    except ImportError as error:
        raise BadConfig(f"torch cannot be imported ({str(error).splitlines()[0]}): {INSTALL}") from None

    torch.set_num_threads(job.cores_each(len(os.sched_getaffinity(0))))
    backend = open_backend(job)
    if not job.placement.one_of:
        check_world(backend)
    run = _open_run(job, backend)
    train = load_entry(job.config.entry_point)
    if backend.is_first_here:
        artifacts.write_json(job.artifacts / "provenance.json", _provenance(job, backend))
    if job.config.entry is not None:
        run.say_here(f"{backend.name} ×{backend.world} · {job.config.entry} · {backend.precision}")
    try:
        found = train(backend, run)
    except torch.OutOfMemoryError as error:
        sentences = re.split(r"(?<=\.)\s", str(error))[:3]  # the requested and the available memory
        raise BadConfig(f"{' '.join(sentences)} A smaller batch needs less") from None
    _finish(backend, run, check_found(found, job.config.entry, is_first=backend.rank == 0))


def _open_run(job: TrainingJob, backend: Backend) -> TrainingRun:
    from payload.checkpoints import Checkpoints
    from payload.clock import Clock
    from payload.run import TrainingRun

    def say(line: str) -> None:
        if backend.rank == 0:
            print(line, flush=True)

    def say_here(line: str) -> None:
        if backend.is_first_here:
            print(line, flush=True)

    config = job.config
    checkpoints = Checkpoints(job.artifacts, _identity(job), say, keep=config.keep_checkpoints)
    saved = checkpoints.load(backend) if config.checkpoint and config.resume else None
    clock = Clock(
        job.started,
        path=job.artifacts / "timing.jsonl" if backend.rank == 0 else None,
        append=saved is not None,
        header={
            "timing": config.timing,
            "device": backend.name,
            "processes": backend.world,
            "batch_size": config.batch_size,
            **({} if saved is None else {"resumed_after_step": saved["step"]}),
        },
        compiles=backend.compiles,
        drain=backend.drain,
        drained=config.timing == "drained",
        say=say,
    )
    clock.add("data", job.data_began, job.data_ended)
    clock.add("import", job.started, time.monotonic(), but_s=job.data_ended - job.data_began)
    return TrainingRun(job, clock, say, checkpoints, backend, say_here, saved)


def _identity(job: TrainingJob) -> dict[str, Any]:
    """Return the settings that determine the results. A checkpoint is valid only for equal settings."""
    config = {key: value for key, value in asdict(job.config).items() if key not in NOT_IDENTITY}
    return {**config, "data": job.source.sha256 if job.source else None}


def _finish(backend: Backend, run: TrainingRun, found: dict[str, Any]) -> None:
    each = _each_process(backend, run.clock)
    run.clock.close()
    if backend.rank == 0:
        for line in each if backend.world <= MAX_PROCESS_LINES and each[0]["train_s"] else []:
            run.say(f"process {line['process']}: training {line['train_s']:.1f} s, evaluation {line['eval_s']:.1f} s")
        artifacts.write_json(run.artifacts / "metrics.json", _metrics(backend, run, found, each))
    backend.close()


def _each_process(backend: Backend, clock: Clock) -> list[dict[str, Any]]:
    """Return the times of every process: each fills its own row of zeros, and the sum is the table."""
    import torch

    table = torch.zeros(backend.world, 2)
    table[backend.rank] = torch.tensor([clock.spans["train"], clock.spans["eval"]])
    rows = backend.sum(table).tolist()
    return [{"process": rank, "train_s": train_s, "eval_s": eval_s} for rank, (train_s, eval_s) in enumerate(rows)]


def _metrics(backend: Backend, run: TrainingRun, found: dict[str, Any], each: list[dict[str, Any]]) -> dict[str, Any]:
    clock, job = run.clock, run.job
    names = ("import", "data", "compile", "train", "profile", "eval", "checkpoint")
    return {
        "schema": 1,
        **found,
        "seconds": {**{f"{name}_s": clock.spans[name] for name in names}, "total_s": clock.total_s()},
        "data_wait_s": clock.data_wait_s,
        "each_process": each,
        "world": {
            "device": backend.name,
            "processes": backend.world,
            "workers": job.placement.workers,
            "emulated": job.placement.emulated,
            "notes": list(job.placement.notes),
        },
        "precision": backend.precision,
        "timing": job.config.timing,
        "resumed_after_step": run.saved["step"] if run.saved else None,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "peak_device_bytes": backend.peak_bytes(),
    }


def _provenance(job: TrainingJob, backend: Backend) -> dict[str, Any]:
    return artifacts.provenance(
        config=asdict(job.config),
        placement=asdict(job.placement),
        emulated=job.placement.emulated,
        device=backend.name,
        hardware=backend.hardware,
        processes=backend.world,
        seed=job.config.seed,
        dataset=job.source.described() if job.source else None,
    )


def _end(job: TrainingJob, error: BaseException) -> NoReturn:
    if isinstance(error, PayloadError):
        code = error.exit_code
        print(f"error: {error}" if code < 128 else str(error), flush=True)
    else:
        code = 1
        traceback.print_exception(error)
    with suppress(OSError), (job.scratch / "exit-code").open("x") as file:  # keep the code of the first failure
        file.write(str(code))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _exit_with_parent() -> None:
    """Have the kernel kill this process when its supervisor ends, even by SIGKILL."""
    parent_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)


if __name__ == "__main__":
    main()
