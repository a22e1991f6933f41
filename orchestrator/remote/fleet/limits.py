"""What this process may use of its machine, raised before anything is created as far as workers need it."""

import resource

from orchestrator import open_files
from orchestrator.errors import ConfigError

SPARE_FILES = 64  # for everything else than connections
MEMORY_MIB, WORKER_MIB = 512, 16  # of address space: with 300 a run of one worker fails, with 400 it does not


def check(workers: int, files_each: int) -> None:
    """Raise the soft limits of open files and of memory to what so many workers need. Raises ConfigError if they stay lower."""
    who = f"a run on {workers} worker{'s'[: workers != 1]}" if workers else "tpujob"
    wanted = open_files.in_use() + files_each * workers + SPARE_FILES
    if (limit := open_files.allow(wanted)) < wanted:
        raise ConfigError(
            f"{who} needs {wanted} open files here, and this process may open {limit}",
            hint="raise the hard limit of open files; `ulimit -Hn` shows it",
        )
    wanted = MEMORY_MIB + WORKER_MIB * workers
    if (limit := open_files.allow(wanted << 20, resource.RLIMIT_AS) >> 20) < wanted:
        raise ConfigError(
            f"{who} needs {wanted} MiB of memory here, and this process may use {limit}",
            hint="raise its limit; `ulimit -Hv` shows it in KiB",
        )
