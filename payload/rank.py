"""One training process: `python -m payload.rank`, started by supervise.py with its Job on standard input.

It opens the accelerator, trains, and exits with the code of what happened. However it fails, it ends at once: a process
that lingers would keep all others waiting in a reduction.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import time
import traceback
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict
from typing import NoReturn

from payload.failures import INSTALL, ConfigError, PayloadError
from payload.job import Job


def main() -> NoReturn:
    job: Job = pickle.load(sys.stdin.buffer)  # noqa: S301 (our own parent wrote it)
    _die_with_parent()
    try:
        if job.backend == "cpu":
            train_one(0, job)
        else:
            _spawn(job)
    except BrokenProcessPool:  # a process that torch_xla started has ended, and has left its code here
        with suppress(OSError, ValueError):
            os._exit(int((job.scratch / "exit-code").read_text()))
        traceback.print_exc()
        os._exit(1)
    except BaseException as error:
        _end(job, error)
    os._exit(0)


def _spawn(job: Job) -> None:
    try:
        import torch_xla.distributed.xla_multiprocessing as xmp
    except ImportError as error:
        raise ConfigError(f"torch_xla cannot be imported ({str(error).splitlines()[0]}): {INSTALL}") from None
    # On a TPU, torch_xla starts one process for each core of this host (nprocs=None), or uses one core (nprocs=1). On a
    # CPU it only knows threads, one for each XLA:CPU device, and collectives between those abort: so each of our own
    # processes calls it with nprocs=1 and has one device, and payload/backends/gloo.py averages between them.
    nprocs = None if job.placement.device == "tpu" and job.config.cores != 1 else 1
    xmp.spawn(train_one, args=(job,), nprocs=nprocs)


def train_one(_index: int, job: Job) -> None:
    """What runs once for each core."""
    _die_with_parent()
    try:
        _train(job)
    except BaseException as error:
        # Not raised further: where torch_xla started this process, it would wait for the others before it told anybody.
        _end(job, error)


def _train(job: Job) -> None:
    try:
        import torch

        from payload.train import train
    except ImportError as error:
        raise ConfigError(f"torch cannot be imported ({str(error).splitlines()[0]}): {INSTALL}") from None
    from payload import artifacts
    from payload.backends import open_backend
    from payload.clock import Clock

    torch.set_num_threads(_threads(job))
    backend = open_backend(job)

    def say(line: str) -> None:
        if backend.is_first_here:
            print(line, flush=True)

    clock = Clock(
        job.started,
        path=job.artifacts / "timing.jsonl" if backend.rank == 0 else None,
        header={
            "timing": job.config.timing,
            "device": backend.name,
            "processes": backend.world,
            "batch_size": job.config.batch_size,
        },
        compiles=backend.compiles,
        drain=backend.drain,
        drained=job.config.timing == "drained",
        say=say,
    )
    clock.add("data", job.data_began, job.data_ended)
    clock.add("import", job.started, time.monotonic(), but_s=job.data_ended - job.data_began)
    if backend.is_first_here:
        described = artifacts.provenance(
            config=asdict(job.config),
            placement=job.placement.described(),
            emulated=job.placement.emulated,
            device=backend.name,
            processes=backend.world,
            seed=job.config.seed,
            dataset=job.source.described(),
        )
        artifacts.write_json(job.artifacts / "provenance.json", described)
    results = train(backend, job, clock, say)
    clock.close()
    if backend.rank == 0:
        artifacts.write_json(job.artifacts / "metrics.json", results)
    backend.close()


def _threads(job: Job) -> int:
    return max(1, len(os.sched_getaffinity(0)) // job.placement.processes)


def _end(job: Job, error: BaseException) -> NoReturn:
    if isinstance(error, PayloadError):
        code = error.exit_code
        print(f"error: {error}", flush=True)
    else:
        code = 1
        traceback.print_exception(error)
    with suppress(OSError), (job.scratch / "exit-code").open("x") as file:  # the first to fail is the one that counts
        file.write(str(code))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _die_with_parent() -> None:
    """Whatever ends our parent ends us, SIGKILL included; a training without its supervisor is nobody's."""
    parent_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)


if __name__ == "__main__":
    main()
