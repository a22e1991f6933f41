"""`python -m payload --config train.json`: check, get the data, start the training processes, list what they wrote.

The exit code says what happened: 0 trained, 1 a crash, 2 the configuration, 3 the loss is not a number, 4 the data, 5 another
host went away, 6 processes that do not reduce, 128 + n ended by signal n. This process imports no torch.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from payload.failures import INSTALL, ConfigError, PayloadError

STARTED = time.monotonic()


def main() -> int:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, _leave)  # until supervise.run has processes to end
    parser = argparse.ArgumentParser(prog="python -m payload", description="Train an image classifier.")
    parser.add_argument("--config", type=Path, required=True, help="train.json; its keys are in payload/README.md")
    parser.add_argument("--backend", choices=("xla", "cpu"), default="xla", help="cpu: plain PyTorch, no torch_xla")
    arguments = parser.parse_args()
    try:
        _check_installed("torch" if arguments.backend == "cpu" else "torch_xla")
        return _run(arguments.config, arguments.backend)
    except PayloadError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code


def _run(config_path: Path, backend: str) -> int:
    from payload import artifacts, supervise
    from payload.config import load
    from payload.job import Job
    from payload.placement import host_has_tpu, place, share
    from payload.sources import resolve

    environ = {**os.environ, "PJRT_DEVICE": "CPU"} if backend == "cpu" else os.environ
    stand_in = "the CPU" if backend == "cpu" else "XLA:CPU"
    config, placement = place(load(config_path), environ, has_tpu=host_has_tpu(), stand_in=stand_in)
    directory = Path(placement.artifacts)
    try:
        artifacts.prepare(directory)
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be written: {error.strerror}") from None
    for note in placement.notes:
        _say(note)

    data_began = time.monotonic()
    source = resolve(config, _say)
    examples = config.examples or source.train_examples
    if placement.device == "cpu":  # how many processes a TPU has is known only to them, and they check it themselves
        share(config.batch_size, placement.workers * placement.processes, examples)
    with tempfile.TemporaryDirectory(prefix="payload-") as scratch:
        job = Job(
            config=config,
            placement=placement,
            source=source,
            backend=backend,
            meet_at=supervise.meeting_place(placement.coordinator, Path(scratch)),
            started=STARTED,
            data_began=data_began,
            data_ended=time.monotonic(),
            scratch=Path(scratch),
        )
        code = supervise.run(job)
    if code == 0:
        artifacts.write_manifest(directory)
    return code


def _check_installed(last: str) -> None:
    """Without importing them, which takes seconds; that they also work is found out by the training processes."""
    for name in ("numpy", "torch", last):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"{name} is not installed: {INSTALL}")


def _say(line: str) -> None:
    print(line, flush=True)


def _leave(signum: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
