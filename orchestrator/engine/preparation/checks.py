"""What is wrong with a job before anything is made: directories, packages and Pythons that are not there."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.engine.preparation import requirements
from orchestrator.engine.preparation.phases import trains_with_torch
from orchestrator.engine.preparation.sources import directory_of
from orchestrator.errors import JobSpecError, UserError

if TYPE_CHECKING:
    from orchestrator.core.jobfile.keys import JobSpec


def check_local_training(backend: str = "xla", subject: str = "emulated workers train") -> None:
    """Raise UserError if this Python environment lacks what training on emulated workers, or `on: local`, imports."""
    if backend == "none":
        return
    wanted = ("torch", "numpy", *{"xla": ["torch_xla"], "tpu": ["torch_tpu"]}.get(backend, []))
    missing = [module for module in wanted if importlib.util.find_spec(module) is None]
    if missing:
        raise UserError(
            f"{subject} with the torch of this Python environment, which has no {' and no '.join(missing)}",
            hint="pip install -e '.[local]' in the checkout; docs/install.md has the other ways",
        )


def check_bucket(spec: JobSpec, cloud: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a job with a bucket needs. Raises JobSpecError: the emulated cloud has no Cloud Storage."""
    if spec.bucket is None or cloud != "emulated":
        return {}
    host = environ.get("STORAGE_EMULATOR_HOST")
    if not host:
        text = "the emulated cloud has no Cloud Storage; remove this, or set STORAGE_EMULATOR_HOST to an emulator of it"
        raise JobSpecError([spec.mistake(("bucket",), text)])
    return {"STORAGE_EMULATOR_HOST": host}


def check_python(spec: JobSpec, cloud: str) -> None:
    """Raise JobSpecError for a training that is to run on another Python than the one whose torch the emulator lends."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if cloud == "emulated" and trains_with_torch(spec) and spec.python not in (None, own):
        text = f"emulated workers train with the torch of tpujob's own Python, {own}; leave this out here"
        raise JobSpecError([spec.mistake(("python",), text)])


def check_directories(spec: JobSpec, job_path: Path) -> None:
    """Raise JobSpecError for a directory that the job ships and that is missing, with the line that names it.

    The same for `requirements:`.
    """
    for field, value in ((("code",), spec.code), (("train", "data_dir"), spec.train.data_dir if spec.train else None)):
        if value is not None:
            directory_of(spec, job_path, value, field)
    requirements.read(spec, job_path)
