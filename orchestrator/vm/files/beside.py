"""What a job wrote beside its artifacts: what is new in its directory, above it and in its home, and what is new elsewhere.

`remember` notes what is there when the job begins, `found` and `elsewhere` compare: no clock decides, so none can be wrong.
A file is new if its name, inode, size or time of change is. Caches, environments and hidden entries of the home directory are
no work of the job. Other disks, such as a mounted bucket, are not looked at.
"""

# Paths are text, as in `phases`.
# ruff: noqa: PTH105, PTH110, PTH112, PTH116, PTH118, PTH119, PTH123, PTH208
from __future__ import annotations

import fnmatch
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from typing import Any

OF_AN_ATTEMPT = frozenset(("work", "artifacts", "setup", "main", "before.json", "restored.json"))
OF_TPUJOB = frozenset(("bin", "store", "envs", "tools", "data", "jax"))
BEFORE, RESTORED = "before.json", "restored.json"  # in the directory of the attempt
CACHES = frozenset(("__pycache__", ".cache", ".git", ".hg", ".svn", ".venv", "node_modules", ".ruff_cache", ".mypy_cache",
    ".pytest_cache", ".tox", ".nox", ".eggs", "site-packages"))  # fmt: skip
MARKS = ("pyvenv.cfg", "conda-meta", "CACHEDIR.TAG")  # of an environment or a cache, whatever its name
PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/mnt", "/srv", "/")  # noqa: S108 - not written to
OF_THE_SYSTEM = frozenset(("bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "lost+found", "media",
    "mnt", "opt", "proc", "root", "run", "sbin", "snap", "srv", "sys", "tmp", "usr", "var"))  # fmt: skip
# Caches, settings, histories and keys.
OF_THE_HOME = (".cache", ".config", ".ssh", ".gnupg", ".docker", ".kube", ".aws", ".azure", ".gsutil", ".npm", ".cargo",
    ".rustup", ".conda", ".nv", ".triton", ".ipython", ".jupyter", ".bash", ".profile", ".python_history", ".wget-hsts",
    ".lesshst", ".viminfo", ".git", ".netrc", ".sudo_as", ".keras", ".local", ".java", ".dbus", ".pki")  # fmt: skip
# What many programs leave in /tmp, libtpu among them.
PASSING = (".", "pip-", "uv-", "pytest-of-", "systemd-", "snap-", "ssh-", "tmux-", "tpu_logs", "libtpu",
    "torchinductor_")  # fmt: skip
EMULATED = "TPUJOB_EMULATED_TRAINING"  # set on an emulated worker, whose /tmp is that of this machine, and stays
MOST_FILES = 200_000  # of an index
LOOKED_AT = 5000  # files of /tmp and its like, at the beginning


class Seen:
    """A file of a walk. `name` is relative to where the walk began."""

    def __init__(self, name: str, path: str, status: os.stat_result) -> None:
        self.name, self.path, self.status = name, path, status

    @property
    def key(self) -> str:
        return f"{self.status.st_ino}.{self.status.st_size}.{self.status.st_mtime_ns}"


def remember(run: str, home: str | None) -> None:
    """Note what is there now, in the directory of the attempt. `home`: looked at, too, and so is what lies elsewhere.

    What an earlier attempt left (`RESTORED`) is not noted: it is the job's. Raises OSError for a full disk.
    """
    record: dict[str, Any] = {"home": home, "of": {}, "elsewhere": {}}
    for name, top in _tops(run, home):
        record["of"][name] = {seen.name: seen.key for seen in _walk(top, name)}
    try:
        with open(os.path.join(run, RESTORED), "rb") as file:
            for path in json.loads(file.read()):
                record["of"]["work"].pop(path, None)
    except FileNotFoundError:
        pass
    left = [LOOKED_AT]
    record["elsewhere"] = {path: _print_of(path, left) for path in _entries(home)}
    draft = os.path.join(run, f".{BEFORE}")
    with open(draft, "w") as out:
        out.write(json.dumps(record))
    os.replace(draft, os.path.join(run, BEFORE))


def recorded(run: str) -> dict[str, Any] | None:
    """Return what `remember` noted; None where there is nothing that can be read."""
    try:
        with open(os.path.join(run, BEFORE), "rb") as file:
            record: dict[str, Any] = json.loads(file.read())
        return record
    except (OSError, ValueError):
        return None


def found(run: str, record: dict[str, Any], looked: Callable[[int], None]) -> Iterator[Seen]:
    """Yield the files that are new, links out of these places, and directories that cannot be read.

    Their names are such as `work/model.pt`, `above/model.pt` and `home/model.pt`. A link to what comes by itself, or was there
    before, is left out; one into a cache is not.
    """
    tops = _tops(run, record["home"])
    inside = tuple(os.path.realpath(top) + "/" for _, top in tops)
    links, there = [], set()
    for (name, top), real in zip(tops, inside):
        before = record["of"].get(name, {})
        for seen in _walk(top, name, looked):
            kind, new = stat.S_IFMT(seen.status.st_mode), Seen(f"{name}/{seen.name}", seen.path, seen.status)
            there.add(real + seen.name)
            if before.get(seen.name) == seen.key or kind not in (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR):
                continue
            if kind == stat.S_IFLNK:
                links.append(new)
            else:
                yield new
    for link in links:
        target = os.path.realpath(link.path)
        if target not in there and not (
            target.startswith(inside) and (os.path.isdir(target) or not os.path.exists(target))
        ):
            yield link


def elsewhere(record: dict[str, Any], looked: Callable[[int], None]) -> Iterator[tuple[str, int, int]]:
    """Yield each entry of /tmp and its like, of the root directory, and each hidden one of the home, that is new, with its
    files and bytes.
    """
    before = record["elsewhere"]
    for path in _entries(record["home"]):
        if path not in before or before[path] not in (None, _print_of(path, [LOOKED_AT])):
            sizes = [seen.status.st_size for seen in _walk(path, "", looked) if stat.S_ISREG(seen.status.st_mode)]
            if sizes:
                yield path, len(sizes), sum(sizes)


def rows(
    run: str,
    taken: list[str],
    wanted: dict[str, Any],
    row_of: Callable[[str, str], dict[str, Any] | None],
    looked: Callable[[int], None],
) -> Iterator[dict[str, Any]]:
    """The rows of `pack` for what is new, the smallest files first, without the files `taken`, and for what is new elsewhere.

    `wanted`: {"most_bytes", "only"}. `row_of` measures the file of a name and a path.
    """
    record = recorded(run)
    if record is None and not os.path.exists(os.path.join(run, "main", "started.json")):
        return
    if record is None:  # the disk was full, or the job has deleted it: the job's directory comes whole
        record = {"home": None, "of": {}, "elsewhere": {}}
        why = "what was there before the job is not known"
        yield {"path": "(its home)", "why": why, "harmless": True, "beside": True}
    left_bytes, only = wanted.get("most_bytes"), wanted.get("only")
    have = {(status.st_dev, status.st_ino) for status in map(_followed, taken) if status is not None}
    files = sorted(found(run, record, looked), key=lambda file: (file.status.st_size, file.name))
    for file in files[:MOST_FILES]:
        if (file.status.st_dev, file.status.st_ino) in have or not (only is None or matches(file.name, only)):
            continue
        what, size_bytes = _secret(file), file.status.st_size
        if what is not None:
            yield {"path": file.name, "why": f"not collected: it looks like {what}", "harmless": True, "beside": True}
        elif left_bytes is not None and size_bytes > left_bytes:
            yield {"path": file.name, "size_bytes": size_bytes, "beside": True}
        else:
            row = row_of(file.name, file.path)
            if row is not None and "why" in row:
                row["harmless"] = True  # no other try brings it
            if row is not None:
                left_bytes = None if left_bytes is None else left_bytes - row.get("size_bytes", 0)
                yield dict(row, beside=True)
    if len(files) > MOST_FILES:
        size_bytes = sum(file.status.st_size for file in files[MOST_FILES:])
        yield {"path": "(the rest)", "size_bytes": size_bytes, "beside": True}
    for path, count, size_bytes in elsewhere(record, looked) if only is None else ():
        yield {"path": path, "files": count, "size_bytes": size_bytes, "harmless": True, "beside": True}


def _followed(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def matches(name: str, pattern: str) -> bool:
    """Return whether the pattern matches the file or a directory above it; `work/` may be left out of it."""
    while name:
        if any(fnmatch.fnmatchcase(name, f"{top}{pattern}") for top in ("", "work/", "above/", "home/")):
            return True
        name = name.rpartition("/")[0]
    return False


def _secret(file: Seen) -> str | None:
    """Return what the file seems to be, if it must not travel by itself."""
    from . import sensitive  # only for a file that is collected

    real = os.path.realpath(file.path)
    what = sensitive.secret_by_name(file.name) or sensitive.secret_by_name(real)
    try:
        status = os.stat(real)
        looks = stat.S_ISREG(status.st_mode) and any(
            sensitive.may_hold_secret(p, status.st_size) for p in (file.name, real)
        )
        if what is None and looks:
            with open(real, "rb") as content:
                what = sensitive.secret_by_content(content.read())
    except OSError:
        pass
    return what


def _tops(run: str, home: str | None) -> list[tuple[str, str]]:
    return [("work", os.path.join(run, "work")), ("above", run), *([("home", home)] if home is not None else [])]


def _entries(home: str | None) -> Iterator[str]:
    """Everything directly in `PLACES` that this user owns, on the same disk, by names that programs give to what stays.

    And what is hidden in the home, but caches and settings.
    """
    for name in os.listdir(home) if home is not None and os.path.isdir(home) else ():
        if name[0] == "." and not name.startswith(OF_THE_HOME):
            yield os.path.join(home or "", name)
    for place in PLACES if home is not None and EMULATED not in os.environ else ():
        try:
            device = os.stat(place).st_dev
            names = os.listdir(place)
        except OSError:
            continue
        for name in names:
            is_passing = name.startswith(PASSING) or (name.startswith("tmp") and len(name) == len("tmp12345678"))
            if is_passing or "cache" in name or (place == "/" and name in OF_THE_SYSTEM):
                continue
            path = os.path.join(place, name)
            try:
                status = os.lstat(path)
            except OSError:
                continue
            if status.st_uid == os.geteuid() and status.st_dev == device:
                yield path


def _print_of(path: str, left: list[int]) -> int | None:
    """Return a number that changes with any file below; None once there are too many files to look at."""
    lines = []
    for seen in _walk(path):
        left[0] -= 1
        if left[0] < 0:
            return None
        lines.append(f"{seen.name} {seen.key}")
    return zlib.crc32("\n".join(sorted(lines)).encode(errors="surrogateescape"))


def _is_ours(kind: str, below: str, name: str, path: str) -> bool:
    """Return whether an entry is tpujob's own, or of the settings of the home; `kind` is the name of a place in `_tops`."""
    if not below:
        return (kind == "above" and (name in OF_AN_ATTEMPT or name.startswith((".draft.", f".{BEFORE}")))) or (
            kind == "home" and name[0] == "."
        )
    if kind != "home" or not below.startswith("tpujob"):
        return False
    return (below == "tpujob" and name in OF_TPUJOB) or (
        below == "tpujob/runs" and any(os.path.exists(f"{path}/{each}") for each in ("setup", "main"))
    )


def _walk(top: str, kind: str = "", looked: Callable[[int], None] = lambda count: None) -> Iterator[Seen]:
    """Everything below, or the file itself, that is not a directory; never through a link, nor to another disk."""
    try:
        status = os.lstat(top)
    except OSError:
        return
    if not stat.S_ISDIR(status.st_mode):
        yield Seen(os.path.basename(top), top, status)
        return
    waiting = [""]
    while waiting:
        below = waiting.pop()
        looked(0)
        try:
            with os.scandir(os.path.join(top, below)) as entries:
                names = list(entries)
        except PermissionError:
            found = _followed(os.path.join(top, below))
            if found is not None:
                yield Seen(below, os.path.join(top, below), found)
            continue
        except OSError:
            continue
        if below and any(entry.name in MARKS for entry in names):
            continue
        for entry in names:
            if _is_ours(kind, below, entry.name, entry.path):
                continue
            name = f"{below}/{entry.name}" if below else entry.name
            try:
                found = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(found.st_mode):
                if found.st_dev == status.st_dev and entry.name not in CACHES and not entry.name.endswith(".egg-info"):
                    waiting.append(name)
            elif not entry.name.endswith(".pyc"):
                yield Seen(name, entry.path, found)
