"""`python -m payload --config train.json`: check, get the data, start the training processes, list what they wrote.

The exit code says what happened: 0 trained, 1 a crash, 2 the configuration, 3 the loss is not a number, 4 the data, 5 another
host went away, 6 processes that do not reduce, 7 no checkpoint can be written, 128 + n ended by signal n. This process
imports no torch.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from payload.config import BACKENDS
from payload.failures import INSTALL, INSTALL_TORCH_TPU, BadConfig, PayloadError

STARTED = time.monotonic()


def main() -> int:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, _leave)  # until supervise.run has processes to end
    parser = argparse.ArgumentParser(prog="python -m payload", description="Train an image classifier.")
    parser.add_argument("--config", type=Path, required=True, help="train.json; its keys are in payload/README.md")
    parser.add_argument("--backend", choices=BACKENDS, help="instead of the configuration's")
    arguments = parser.parse_args()
    try:
        return _run(arguments.config, arguments.backend)
    except PayloadError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code


def _run(config_path: Path, asked: str | None) -> int:
    from payload.config import load
    from payload.placement import choose_backend, look, place, share

    config, host = load(config_path), look()
    backend = choose_backend(asked or config.backend, os.environ, host)
    _check_installed(backend)
    from payload import artifacts, supervise
    from payload.job import Job
    from payload.sources import resolve

    config, placement = place(config, os.environ, host=host, backend=backend)
    _check_entry(config.entry)
    directory = Path(placement.artifacts)
    try:
        artifacts.prepare(directory, resume=config.resume)
    except OSError as error:
        raise BadConfig(f"{directory}: cannot be written: {error.strerror}") from None
    for note in placement.notes:
        _say(note)

    data_began = time.monotonic()
    source = None
    if config.entry is None:
        source = resolve(config, _say)
        examples = config.examples or source.train_examples
        if (backend, placement.device) != ("xla", "tpu"):  # how many cores torch_xla finds only its processes know
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


def _check_entry(entry: str | None) -> None:
    """That its module is there; only a training process imports it."""
    if entry is None:
        return
    module = entry.partition(":")[0]
    top = module.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        raise BadConfig(f"entry: {entry}: there is no module {top} here; does `code:` name its directory?")


def _check_installed(backend: str) -> None:
    """Without importing them, which takes seconds; that they also work is found out by the training processes."""
    if backend == "tpu" and sys.version_info < (3, 11):
        raise BadConfig(
            f"backend: tpu needs Python 3.11 or newer, and this is {platform.python_version()}: there is no torch_tpu for it; "
            "backend xla trains on the same TPU"
        )
    for name in ("numpy", "torch", *({"xla": ["torch_xla"], "tpu": ["torch_tpu"]}.get(backend, []))):
        if importlib.util.find_spec(name) is None:
            raise BadConfig(f"{name} is not installed: {INSTALL_TORCH_TPU if name == 'torch_tpu' else INSTALL}")


def _say(line: str) -> None:
    print(line, flush=True)


def _leave(signum: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
