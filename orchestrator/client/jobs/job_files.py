"""Reading a job file from disk, with the variables that it names from our environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.client.events import Reporter
    from orchestrator.core.jobfile.model import JobSpec


def load(path: Path, reporter: Reporter) -> tuple[JobSpec, dict[str, str]]:
    """The job and its resolved environment, whose secrets nobody sees from here on. Raises JobSpecError."""
    from orchestrator.core.jobfile import model

    spec = model.load(read_file(path), path=str(path))
    return spec, environment(spec, reporter)


def read_file(path: Path) -> bytes:
    """One byte more than a job file may have, at most."""
    from orchestrator.core.jobfile import model

    try:
        with path.open("rb") as file:
            return file.read(model.MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def environment(spec: JobSpec, reporter: Reporter) -> dict[str, str]:
    """The job's variables, resolved; its secrets are hidden from here on, and its warnings are said."""
    from orchestrator.core.jobfile import model
    from orchestrator.core.jobfile.rules import secret_values

    env = model.resolve_env(spec, os.environ)
    reporter.secrets.add(*secret_values(spec.env, os.environ))
    for line in spec.warnings():
        reporter.notice("warning", line)
    return env
