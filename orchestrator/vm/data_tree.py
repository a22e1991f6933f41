"""Which file each object becomes, and which objects cannot be files. Pure: the client asks before anything is created."""

from __future__ import annotations

from collections.abc import Mapping

MOST_BYTES = 255  # of a file's name, on the disks of workers


class Unfit(Exception):
    """Why these objects cannot be files."""


def files(sizes: Mapping[str, int], prefix: str) -> tuple[dict[str, str], set[str]]:
    """Return the name of the object for each path below the directory, and the directories that objects stand for.

    `sizes`: in bytes, by the name of each object, which begins with `prefix`. An object that is empty stands for a directory if
    its name ends with a slash, or if others are below it. Raises Unfit.
    """
    found = {name[len(prefix) :]: name for name in sizes}
    above = {path[:end] for path in found for end, char in enumerate(path) if char == "/"}
    directories = {path for path in found if (not path or path[-1] == "/" or path in above) and not sizes[found[path]]}
    unfit: list[str] = []
    for path, name in found.items():
        if not path and path in directories:  # of the prefix itself
            continue
        parts = path.rstrip("/").split("/") if path in directories else path.split("/")
        if path in above and path not in directories:
            unfit.append(f"`{name}` is a file and a directory at once")
        elif {"", ".", ".."} & set(parts) or "\0" in path or max(len(part.encode()) for part in parts) > MOST_BYTES:
            unfit.append(f"`{name[:200]}` is no path of a file")
    if unfit:
        more = f", and {len(unfit) - 3} more" if len(unfit) > 3 else ""
        raise Unfit(f"objects that cannot be files: {', '.join(unfit[:3])}{more}; rename them, or name another prefix")
    return {path: name for path, name in found.items() if path not in directories}, directories - {""}
