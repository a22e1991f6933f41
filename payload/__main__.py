"""`python -m payload --config train.json`: validate, fetch the data, run the training processes, write the manifest.

Exit codes: 0 trained, 1 crash, 2 configuration, 3 the loss is not a number, 4 data, 5 another process or host was lost,
6 the processes do not reduce with each other, 7 a checkpoint cannot be written, 128 + n ended by signal n. This process does
not import torch.
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
        signal.signal(signum, _exit_on_signal)  # until supervise.run installs its own handlers
    parser = argparse.ArgumentParser(prog="python -m payload", description="Train an image classifier.")
    parser.add_argument("--config", type=Path, required=True, help="train.json; its keys are in payload/README.md")
    parser.add_argument("--backend", choices=BACKENDS, help="override `backend` of the configuration")
    arguments = parser.parse_args()
    try:
        return _run(arguments.config, arguments.backend)
    except PayloadError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code


def _run(config_path: Path, requested: str | None) -> int:
    from payload.config import load
    from payload.launch.placement import choose_backend, look, place, share

    config, host = load(config_path), look()
    backend = choose_backend(requested or config.backend, os.environ, host)
    _check_installed(backend)
    from payload import artifacts

    config, placement = place(config, os.environ, host=host, backend=backend)
    _check_entry(config.entry)
    directory = Path(placement.artifacts)
    try:
        artifacts.prepare(directory, resume=config.resume)
    except OSError as error:
        raise BadConfig(f"{directory}: cannot be written: {error.strerror}") from None
    for note in placement.notes:
        _say(note)
    if backend == "none":
        from payload.launch import plain

        return plain.run(config, placement, STARTED)
    from payload.data.sources import resolve
    from payload.job import TrainingJob
    from payload.launch import supervise

    data_began = time.monotonic()
    source = None
    if config.entry is None:
        source = resolve(config, _say, emulated=placement.emulated)
        examples = min(config.examples or source.train_examples, source.train_examples)
        if (backend, placement.device) != ("xla", "tpu"):  # only torch_xla's own processes know its number of cores
            share(config.batch_size, placement.workers * placement.processes, examples)
    with tempfile.TemporaryDirectory(prefix="payload-") as scratch:
        job = TrainingJob(
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
    """Raise BadConfig if the entry's top-level module does not exist. Only the training processes import it."""
    if entry is None:
        return
    module = entry.partition(":")[0]
    top = module.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        raise BadConfig(f"entry: {entry}: there is no module {top} here; does `code:` name its directory?")


def _check_installed(backend: str) -> None:
    """Raise BadConfig if a package is missing. Packages are located, not imported: an import takes seconds."""
    if backend == "tpu" and sys.version_info < (3, 11):
        raise BadConfig(
            f"backend: tpu needs Python 3.11 or newer, and this is {platform.python_version()}: there is no torch_tpu for it; "
            "backend xla trains on the same TPU"
        )
    if backend == "none":
        return
    for name in ("numpy", "torch", *({"xla": ["torch_xla"], "tpu": ["torch_tpu"]}.get(backend, []))):
        if importlib.util.find_spec(name) is None:
            raise BadConfig(f"{name} is not installed: {INSTALL_TORCH_TPU if name == 'torch_tpu' else INSTALL}")


def _say(line: str) -> None:
    print(line, flush=True)


def _exit_on_signal(signum: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
