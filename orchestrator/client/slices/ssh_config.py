"""`tpujob ssh-config`: the user's own ssh, rsync and editors know the workers of slices by an Include in ~/.ssh/config.

The file there belongs to the user: one line is put at its top and taken out again, nothing else changes, and where that cannot
be done the line is told.
"""

import contextlib
import os
import pwd
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator import whole_file
from orchestrator.client.session import Session
from orchestrator.client.slices.shell import open_shell
from orchestrator.errors import ConfigError
from orchestrator.remote.ssh.openssh import FILE

SECTION = re.compile(rb"[ \t]*(host|match)\b", re.IGNORECASE)  # what follows is only about some hosts
GLOB = re.compile(r"([][*?\\])")
LOCK = "ssh-config"


@dataclass(frozen=True, slots=True)
class Include:
    """The line, and the file that has it or is to have it. `changed`: this call changed the file."""

    line: str
    file: Path
    changed: bool = False


def include(session: Session) -> Include:
    """Return the line for ~/.ssh/config that includes the configuration of every slice of this machine."""
    directory = GLOB.sub(r"\\\1", str(session.directory))
    return Include(f'Include "{directory}/leases/*/{FILE}"', Path.home() / ".ssh" / "config")


def install(session: Session) -> Include:
    """Put the line at the top of ~/.ssh/config, once. Raises ConfigError where the file cannot be changed."""
    return _change(session, with_line)


def remove(session: Session) -> Include:
    """Take the line out of ~/.ssh/config. Raises ConfigError where the file cannot be changed."""
    return _change(session, without_line)


def of_slice(session: Session, name: str) -> str:
    """Return the configuration of a slice, for which the API is asked. Raises UserError unless there is one, and READY."""
    return open_shell(session, name).config.read_text(encoding="utf-8")


def foreign_home() -> Path | None:
    """Return the home directory in which OpenSSH looks, if it is not the one that HOME names."""
    with contextlib.suppress(KeyError, OSError):
        found = Path(pwd.getpwuid(os.getuid()).pw_dir)
        if not found.samefile(Path.home()):
            return found
    return None


def with_line(content: bytes, line: bytes) -> bytes:
    """Return the content with the line before every section; as it is, if it is there already."""
    for each in content.splitlines():
        if SECTION.match(each):
            break
        if each.strip() == line:
            return content
    return line + b"\n" + without_line(content, line)


def without_line(content: bytes, line: bytes) -> bytes:
    """Return the content without the line."""
    return b"".join(each for each in content.splitlines(keepends=True) if each.strip() != line)


def _change(session: Session, change: Callable[[bytes, bytes], bytes]) -> Include:
    wanted = include(session)
    session.lock(LOCK)
    try:
        before = _content(wanted.file)
        after = change(before or b"", wanted.line.encode())
        if after == (before or b""):
            return wanted
        if before is None and not wanted.file.is_symlink():
            wanted.file.parent.mkdir(mode=0o700, exist_ok=True)
        whole_file.write(wanted.file, after, 0o600 if before is None else None)
    except OSError as error:
        raise ConfigError(
            f"{wanted.file} is left as it is: {error.strerror or error}", hint=f"the line is: {wanted.line}"
        ) from error
    return replace(wanted, changed=True)


def _content(file: Path) -> bytes | None:
    """Return the content of a file that this user may replace; None if there is none. Raises OSError."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "it is no file")
    if found.st_uid != os.getuid():
        raise OSError(0, "it belongs to another user")
    if not os.access(file, os.W_OK):
        raise OSError(0, "it is read-only")
    return file.read_bytes()
