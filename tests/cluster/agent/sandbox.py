"""A container as a process of this machine: namespaces of its own for mounts, processes and its name; the network is shared.

Its root is a tmpfs with the system directories of this machine, read-only, so volumes can be mounted anywhere, and nothing is
left once the process has ended. The main process is process 1 there, as in a container: when it ends, all others do, and a
SIGTERM that it does not handle has no effect. util-linux does it; without root, in a user namespace.
"""

import asyncio
import contextlib
import functools
import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.plane.processes import end_with_parent
from tests.waiting import ran

SYSTEM = ("usr", "bin", "sbin", "lib", "lib64", "lib32", "etc", "sys")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
UNSHARE_CANNOT_SAY_KILLED = (
    b"sigprocmask"  # it means to end by the signal that ended its child, which SIGKILL does not let it
)


@dataclass(frozen=True)
class Mount:
    """A directory or file of this machine that the container sees at `target`; a tmpfs without `source`."""

    target: str
    source: Path | None = None
    read_only: bool = False
    size: str = ""  # of a tmpfs


@dataclass(frozen=True)
class Container:
    """What one process needs to be a container."""

    words: Sequence[str]
    env: dict[str, str]
    hostname: str
    root: Path  # an empty directory, where the root is put together
    said: Path  # a file for what goes wrong before the program begins
    mounts: Sequence[Mount]
    lent: Sequence[Path] = ()


@functools.cache
def how() -> tuple[str, ...] | None:
    """Return the words that make the namespaces here. None: this machine allows none."""
    rootless = () if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user")  # forgets what was said before
    alone = ("unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child=KILL")
    words = (*rootless, "setpriv", "--pdeathsig", "KILL", *alone)
    probe = "mount --make-rprivate / && mount -t tmpfs none /mnt && mount -t proc proc /proc && hostname probe"
    with contextlib.suppress(FileNotFoundError):
        return words if ran([*words, "sh", "-c", probe], stdin=subprocess.DEVNULL).returncode == 0 else None
    return None


async def start(container: Container) -> asyncio.subprocess.Process:
    """Start it, with its stdout and stderr in one pipe. It ends with this process."""
    words = how()
    assert words is not None, "there is no cluster on such a machine"
    with container.said.open("wb") as said:
        return await asyncio.create_subprocess_exec(
            *(*words, "sh", "-c", _script(container), "sh", *container.words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=said,
            env=container.env,
            start_new_session=True,
            preexec_fn=end_with_parent,
            limit=2**26,  # of a line
        )


async def exit_code(process: asyncio.subprocess.Process, container: Container) -> int:
    """Wait for its end, and return the code as a container runtime gives it: 128 and the number of a signal."""
    code = await process.wait()
    if code == 1 and UNSHARE_CANNOT_SAY_KILLED in container.said.read_bytes():
        code = -signal.SIGKILL
    return 128 - code if code < 0 else code


def main_process(process: asyncio.subprocess.Process) -> int | None:
    """Return the container's process 1, by its number here. None: it has ended, or does not run yet."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
    return None


def terminate(process: asyncio.subprocess.Process) -> None:
    """SIGTERM to the main process alone, as a container runtime sends it."""
    if (number := main_process(process)) is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGTERM)


def kill(process: asyncio.subprocess.Process) -> None:
    """End every process of it at once."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(main_process(process) or process.pid, signal.SIGKILL)


def _script(container: Container) -> str:
    """Return the shell commands that put the root together, enter it, and become the container's program."""
    root = shlex.quote(str(container.root))
    lines = [
        "set -e",
        "path=$PATH",
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
        "mount --make-rprivate /",
        f"hostname {shlex.quote(container.hostname)}",
        f"mount -t tmpfs -o mode=755 none {root}",
        f"cd {root}",
        "mkdir proc dev tmp root run var home old",
        "mkdir var/tmp",
    ]
    for name in SYSTEM:
        place = Path("/", name)
        if place.is_symlink():
            lines.append(f"ln -s {shlex.quote(str(place.readlink()))} {name}")
        elif place.is_dir():
            lines += _bound(Mount(f"/{name}", place, read_only=name != "sys"))
    for place in container.lent:
        if not any(place.is_relative_to(Path("/", name)) for name in SYSTEM):
            lines += _bound(Mount(str(place), place, read_only=True))
    lines += ["mount -t tmpfs -o mode=755 none dev"]
    for name in DEVICES:
        lines += [f"touch dev/{name}", f"mount --bind /dev/{name} dev/{name}"]
    lines += ["ln -s /proc/self/fd dev/fd", "ln -s fd/0 dev/stdin", "ln -s fd/1 dev/stdout", "ln -s fd/2 dev/stderr"]
    lines += ["mkdir dev/shm", "mount -t tmpfs -o size=64m none dev/shm", "chmod 1777 tmp var/tmp dev/shm"]
    for mount in sorted(container.mounts, key=lambda each: each.target.count("/")):
        lines += _bound(mount)
    lines += ["mount -t proc proc proc", "pivot_root . old", "umount -l old", "rmdir old"]
    return "\n".join([*lines, "cd /", "PATH=$path", 'exec "$@" 2>&1'])


def _bound(mount: Mount) -> list[str]:
    target = shlex.quote(mount.target.lstrip("/"))
    if mount.source is None:
        size = f" -o size={mount.size}" if mount.size else ""
        return [f"mkdir -p {target}", f"mount -t tmpfs{size} none {target}"]
    parent, source = shlex.quote(str(Path(mount.target.lstrip("/")).parent)), shlex.quote(str(mount.source))
    there = f"mkdir -p {target}" if mount.source.is_dir() else f"mkdir -p {parent}; [ -e {target} ] || touch {target}"
    lines = [there, f"mount --rbind {source} {target}"]
    return [*lines, f"mount -o remount,bind,ro {target} 2>/dev/null || true"] if mount.read_only else lines
