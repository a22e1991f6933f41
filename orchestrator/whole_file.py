"""Files that are written whole or not at all: those of tpujob by `replace`, and those that a user named by `write`."""

import os
import stat
import threading
from contextlib import suppress
from pathlib import Path


def write(path: Path, content: str | bytes, mode: int | None = None) -> None:
    """Write what the user named: into a device or a FIFO, to where a link leads, and else in place of a file. Raises OSError.

    `mode`: of a file; None: that of the one that is there, or as the umask says.
    """
    target = Path(os.path.realpath(path))
    try:
        found = path.stat()
    except FileNotFoundError:
        found = None
    # What a link of /proc leads to may have no name, such as a file that is open and deleted.
    if found is None or (stat.S_ISREG(found.st_mode) and target.exists() and target.samefile(path)):
        kept = None if found is None else stat.S_IMODE(found.st_mode)
        replace(target, content, kept if mode is None else mode)
        return
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOCTTY | os.O_CLOEXEC), "wb") as file:
        file.write(_encoded(content))


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
