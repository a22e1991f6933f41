"""Reading a job file from disk, with the variables that it names from our environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.core.job import JobSpec


def load(path: Path) -> tuple[JobSpec, dict[str, str]]:
    """The job and its resolved environment. Raises JobSpecError with every mistake in the file."""
    from orchestrator.core import job

    try:
        with path.open("rb") as file:
            data = file.read(job.MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    spec = job.load(data, path=str(path))
    return spec, job.resolve_env(spec, os.environ)
