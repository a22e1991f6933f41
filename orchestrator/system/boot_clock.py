"""The boot clock, which cannot be set: seconds since this machine started, suspended time included, and the id of that start.

Linux: CLOCK_BOOTTIME and the kernel's boot id. macOS: its continuous clock, which Python names CLOCK_MONOTONIC_RAW, and
`kern.bootsessionuuid`. A system without a boot id counts as one that never restarted. Its clock begins again at 0, so that
less time seems to have passed than really did: the safe side.
"""

import functools
import sys
import time
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TIME_NAMESPACE = Path("/proc/self/ns/time")


def boot_s() -> float:
    """Return the seconds since this machine started."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":
        return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
    return time.monotonic()


def slept_s() -> float:
    """Return for how many seconds of these this machine was suspended; 0.0 on a system that does not say."""
    return max(boot_s() - time.monotonic(), 0.0) if sys.platform in ("linux", "darwin") else 0.0


@functools.cache
def boot_id() -> str:
    """Return the id of this start. Two readings of `boot_s` compare only if it is the same for both."""
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
    import ctypes  # only on macOS

    library = ctypes.CDLL(None, use_errno=True)
    size = ctypes.c_size_t(128)
    value = ctypes.create_string_buffer(size.value)
    if library.sysctlbyname(name.encode(), value, ctypes.byref(size), None, 0) != 0:
        raise OSError(ctypes.get_errno(), name)
    return value.value.decode()
