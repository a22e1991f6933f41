"""Read a job file, with the variables that it names from the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.client.events import Reporter
    from orchestrator.core.jobfile.keys import JobSpec


def load(path: Path, reporter: Reporter) -> tuple[JobSpec, dict[str, str]]:
    """Return the job and its resolved environment; see `environment`. Raises JobSpecError with the lines of all mistakes."""
    from orchestrator.core.jobfile import keys

    spec = keys.load(read_file(path), path=str(path))
    return spec, environment(spec, reporter)


def read_file(path: Path) -> bytes:
    """Return the file's bytes, at most one more than a job file may have. Raises UserError."""
    from orchestrator.core.jobfile import keys

    try:
        with path.open("rb") as file:
            return file.read(keys.MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def environment(spec: JobSpec, reporter: Reporter) -> dict[str, str]:
    """Return the job's variables, resolved. Hides their secrets in all later events, and reports the job's warnings."""
    from orchestrator.core.jobfile import keys
    from orchestrator.core.jobfile.value_rules import secret_values

    env = keys.resolve_env(spec, os.environ)
    reporter.secrets.add(*secret_values(spec.env, os.environ))
    for line in spec.warnings():
        reporter.notice("warning", line)
    return env
