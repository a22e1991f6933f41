"""The log files of a run: one for each worker, below its directory. What is in them was printed by a job: any bytes."""

import os
from pathlib import Path

from orchestrator.core.text.terminal import clean
from orchestrator.report.files.artifact_files import open_regular

TAIL_BYTES = 8 << 10  # of a log, in which its last line is looked for


def log_directory(run_directory: Path) -> Path:
    """Return where the log files of the run in this directory are."""
    return run_directory / "logs"


def log_path(run_directory: Path, worker: int) -> Path:
    """Return the log file of a worker."""
    return log_directory(run_directory) / f"worker{worker}.log"


def last_line(path: Path) -> str:
    """Return the last line of a log that is not empty, safe for a terminal; "" without one."""
    file = open_regular(path)
    if file is None:
        return ""
    with file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - TAIL_BYTES, 0))
        found = file.read(TAIL_BYTES).rstrip()
    return clean(found[found.rfind(b"\n") + 1 :]).strip()
