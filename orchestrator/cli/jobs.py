"""Reading a job file from disk, with the variables that it names from our environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.core.job import JobSpec


def load(path: Path) -> tuple[JobSpec, dict[str, str]]:
    """The job and its resolved environment, whose secrets nobody sees from here on. Raises JobSpecError."""
    from orchestrator.cli.talk import talk
    from orchestrator.core import job
    from orchestrator.core.job_rules import secret_values

    try:
        with path.open("rb") as file:
            data = file.read(job.MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    spec = job.load(data, path=str(path))
    env = job.resolve_env(spec, os.environ)
    talk().secrets.add(*secret_values(spec.env, os.environ))
    for line in spec.warnings():
        talk().say("warning", line)
    return spec, env
