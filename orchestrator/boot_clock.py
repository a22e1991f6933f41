"""The clock of this machine that nobody can set: seconds since it started, time asleep included, and which start that was.

Linux: CLOCK_BOOTTIME and the kernel's boot id. macOS: its continuous clock, which Python calls CLOCK_MONOTONIC_RAW, and
`kern.bootsessionuuid`. A system that names no boot counts as one that never restarted: as its clock begins again at 0,
less time seems to have passed than really did, which is the side to err on.
"""

from __future__ import annotations

import functools
import sys
import time
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TIME_NAMESPACE = Path("/proc/self/ns/time")


def boot_s() -> float:
    """Seconds since this machine started."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":
        return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
    return time.monotonic()


@functools.cache
def boot_id() -> str:
    """Two readings of `boot_s` can be compared if this is the same for both."""
    try:
        if sys.platform == "linux":
            # A time namespace moves the clock of its processes, and leaves them the boot id.
            namespace = TIME_NAMESPACE.readlink() if TIME_NAMESPACE.exists() else ""
            return f"{BOOT_ID.read_text().strip()} {namespace}".strip()
        if sys.platform == "darwin":
            return _sysctl("kern.bootsessionuuid")
    except OSError:
        pass
    return "a boot without a name"


def _sysctl(name: str) -> str:
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    size = ctypes.c_size_t(128)
    value = ctypes.create_string_buffer(size.value)
    if library.sysctlbyname(name.encode(), value, ctypes.byref(size), None, 0) != 0:
        raise OSError(ctypes.get_errno(), name)
    return value.value.decode()
