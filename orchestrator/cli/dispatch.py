"""Runs the command of `sys.argv`. The process ends with the exit code that it returns, or with that of its error."""

import errno
import os
import re
import sys
import traceback
from pathlib import Path
from typing import TypeGuard

from orchestrator.cli.command_table import COMPLETION, LIGHT, load
from orchestrator.cli.console import console, exit_code, forget_sessions
from orchestrator.errors import ConfigError, TpujobError, UserError

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_FILES, _LOCKS = (errno.EMFILE, errno.ENFILE), (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_MEMORY = re.compile("can't start new thread|failed to map segment|[Cc]annot allocate memory")
_USAGE = 2  # typer's code for usage errors


class ExitCode(Exception):
    """What a command returned. `typer.Exit` cannot tell: 2 is Typer's code for usage errors and may be a job's own code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def dispatch() -> int:
    """Run the command of `sys.argv`; return its exit code. Raises nothing."""
    forget_sessions()
    try:
        code = exit_code(_call())
    except ExitCode as end:
        code = exit_code(end.code)
    except TpujobError as error:
        code = (_is_lost(error.__cause__) and _of_the_machine(error.__cause__)) or _failed(error)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        code = 141
    except Exception as error:
        code = _of_the_machine(error) or _bug(error)
    console().quiet()
    return code


def _call() -> int:
    name = " ".join(sys.argv[1:])
    if name in LIGHT and COMPLETION not in os.environ:
        return load(name)() or 0
    from orchestrator.cli import typer_app  # imports typer, 25 ms

    try:
        typer_app.root()(prog_name=typer_app.PROGRAM)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else TpujobError.exit_code
        return UserError.exit_code if code == _USAGE else code
    return 0


def _failed(error: TpujobError) -> int:
    console().reporter.fail(error)
    return error.exit_code


def _of_the_machine(error: BaseException) -> int:
    """What the user's machine refuses is no bug: report it and return the exit code. 0: it is something else."""
    number = error.errno if isinstance(error, OSError) else None
    alive = "what is alive: `tpujob status`"
    if number in _DISK:
        text = f"{getattr(error, 'filename', None) or 'a file'} cannot be written: {os.strerror(number or 0)}"
        hint = f"free some space, or name another place: TPUJOB_STATE_DIR, `runs_dir:`; {alive}"
    elif number in _FILES:
        text, hint = "this process may open no more files", f"raise the limit that `ulimit -n` shows; {alive}"
    elif number in _LOCKS:
        text = f"a disk here has no file locks (flock): {os.strerror(number or 0)}"
        hint = "TPUJOB_STATE_DIR can name a directory on another disk"
    elif isinstance(error, MemoryError) or number == errno.ENOMEM or _MEMORY.search(str(error)):
        text, hint = "this process gets no more memory", f"raise the limit that `ulimit -v` shows; {alive}"
    elif _is_lost(error):
        text, hint = "the working directory does not exist any more", "change into another one"
    else:
        return 0
    return _failed(ConfigError(text, hint=hint))


def _is_lost(error: BaseException | None) -> TypeGuard[FileNotFoundError]:
    """Return whether a file was not found because it is relative to a working directory that was deleted."""
    if not isinstance(error, FileNotFoundError) or Path(str(error.filename)).is_absolute():
        return False
    try:
        return not Path.cwd()
    except FileNotFoundError:
        return True


def _bug(error: Exception) -> int:
    text = console().secrets.hide("".join(traceback.format_exception(error)))
    where = Path(os.environ.get("TMPDIR", "/tmp")) / f"tpujob-bug-{os.getpid()}.txt"  # noqa: S108
    try:
        with os.fdopen(os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        hint = f"the traceback is in {where}; what is alive: `tpujob status`"
    except OSError:
        hint = "what is alive: `tpujob status`"
    return _failed(TpujobError(f"a bug in tpujob: {type(error).__name__}: {error}", hint=hint))
