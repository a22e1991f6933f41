"""What no test may change, not even as root: the devices of the machine, and what its user has of tpujob."""

import os
import stat
from pathlib import Path

HOME = Path.home()
PLACES = (Path("/dev"), Path("/run"), HOME, HOME / ".config", HOME / ".cache", HOME / ".local" / "state")
Seen = dict[str, tuple[int, int]]


def own_caches(directory: Path) -> dict[str, str]:
    """Return the variables with which the libraries of tests keep what they keep below this directory."""
    places = {"XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config", "CLOUDSDK_CONFIG": "gcloud"}
    return {name: str(directory / place) for name, place in places.items()}


def seen(*places: Path) -> Seen:
    """Return what lies in these places, each with its kind and the number of its device.

    By default all that lies in /dev, and of the other places, which other programs use too, what is named after tpujob.
    """
    found: Seen = {}
    for path in (path for place in places or PLACES if place.is_dir() for path in place.iterdir()):
        if not places and path.parent != PLACES[0] and "tpujob" not in path.name:
            continue
        try:
            status = os.lstat(path)
        except FileNotFoundError:  # a process of the machine has just removed it
            continue
        found[str(path)] = stat.S_IFMT(status.st_mode), status.st_rdev
    return found


def changes(before: Seen, after: Seen) -> list[str]:
    """Name what is new, is gone, or is of another kind. A device that comes is no test's doing."""
    what = {path: after.get(path) for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    return sorted(path for path, now in what.items() if now is None or not stat.S_ISCHR(now[0]) | stat.S_ISBLK(now[0]))
