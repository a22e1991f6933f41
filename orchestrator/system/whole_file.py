"""Files that are written whole or not at all: those of tpujob by `replace`, and those that a user named by `write`."""

import errno
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

_OPEN = os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC
# Of a file that is mounted by itself, as into a container, and of one in a directory that this user cannot change.
_IRREPLACEABLE = (errno.EBUSY, errno.EACCES, errno.EPERM, errno.EROFS)


def write(path: Path, content: str | bytes, mode: int | None = None) -> None:
    """Write what the user named: into a device, a FIFO or a descriptor, to where a link leads, and else in place of a file.

    A file that nothing can take the place of is overwritten. `mode`: of a file; None: that of the one that is there, or as
    the umask says. Raises OSError.
    """
    end = _end(path)
    if _is_descriptor(end):  # the file behind it is not ours to replace or to cut: `--out /dev/stdout >> log`
        is_own = end.parts[2] == str(os.getpid())
        number = os.dup(int(end.name)) if is_own else os.open(end, _OPEN | os.O_APPEND)
    else:
        found = end.stat() if end.exists() else None
        is_file = found is None or stat.S_ISREG(found.st_mode)
        if is_file:
            kept = None if found is None else stat.S_IMODE(found.st_mode)
            try:
                replace(end, content, kept if mode is None else mode)
            except OSError as error:
                if found is None or error.errno not in _IRREPLACEABLE:
                    raise
            else:
                return
        number = os.open(end, _OPEN | os.O_TRUNC)
        if is_file and mode is not None:
            os.fchmod(number, mode)
    with os.fdopen(number, "wb") as file:
        file.write(_encoded(content))


def _end(path: Path) -> Path:
    """Return where the links of a path lead; of an open descriptor its own name, not that of its file. Raises OSError."""
    for _ in range(40):
        path = Path(os.path.realpath(path.parent), path.name)
        if _is_descriptor(path) or not path.is_symlink():
            return path
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _is_descriptor(path: Path) -> bool:
    return path.parts[1:2] == ("proc",) and path.parent.name == "fd" and path.name.isdecimal()


def replace(path: Path, content: str | bytes, mode: int | None = 0o600) -> None:
    """Replace a file durably; a link that has its name is replaced, not followed. Raises OSError.

    `mode`: by default for this user only; None as the umask says.
    """
    begin = os.fsencode(path.name)[:100].decode(errors="ignore")  # a name has 255 bytes at most
    draft = path.with_name(f".{begin}.{os.getpid()}-{threading.get_ident()}")
    draft.unlink(missing_ok=True)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(draft, flags, 0o666 if mode is None else 0o600), "wb") as file:
            file.write(_encoded(content))
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def _encoded(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode(errors="replace")
