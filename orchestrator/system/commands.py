"""A command that is run to its end, or to that of its time, with all that it has started."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path


def run(
    argv: Sequence[str],
    *,
    within_s: float,
    env: Mapping[str, str],
    stdin: bytes = b"",
    stdout: int = subprocess.PIPE,
    cwd: Path | None = None,
) -> tuple[int, bytes, bytes]:
    """Return the exit code of a command, its output and its error output.

    Raises OSError for one that cannot be started, and subprocess.TimeoutExpired for one that does not end in time.
    """
    with subprocess.Popen(
        argv,
        env=env,
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        start_new_session=True,  # what it starts is ended with it
    ) as process:
        try:
            output, complaint = process.communicate(stdin, within_s)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, output, complaint
