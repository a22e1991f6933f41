"""Runs the command of `sys.argv`. The process ends with the exit code that it returns, or with that of its error."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from pathlib import Path

from orchestrator.cli.command_table import COMPLETION, LIGHT, load
from orchestrator.cli.console import console
from orchestrator.errors import ConfigError, TpujobError, UserError

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_USAGE = 2  # typer's code for usage errors


class ExitCode(Exception):
    """What a command returned. `typer.Exit` cannot tell: 2 is Typer's code for usage errors and may be a job's own code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def dispatch() -> int:
    """Run the command of `sys.argv`; return its exit code. Raises nothing."""
    try:
        code = _call()
    except ExitCode as end:
        code = end.code
    except TpujobError as error:
        console().reporter.fail(error)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        code = 141
    except OSError as error:
        code = _disk(error) if error.errno in _DISK else _bug(error)
    except Exception as error:
        code = _bug(error)
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


def _disk(error: OSError) -> int:
    """A disk that is full, read-only or failing is no bug."""
    hint = "free some space, or name another place: TPUJOB_STATE_DIR, `runs_dir:`; what is alive: `tpujob status`"
    console().reporter.fail(ConfigError(f"{error.filename or 'a file'} cannot be written: {error.strerror}", hint=hint))
    return ConfigError.exit_code


def _bug(error: Exception) -> int:
    text = console().secrets.hide("".join(traceback.format_exception(error)))
    where = Path(os.environ.get("TMPDIR", "/tmp")) / f"tpujob-bug-{os.getpid()}.txt"  # noqa: S108
    try:
        with os.fdopen(os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        hint = f"the traceback is in {where}; what is alive: `tpujob status`"
    except OSError:
        hint = "what is alive: `tpujob status`"
    console().reporter.fail(TpujobError(f"a bug in tpujob: {type(error).__name__}: {error}", hint=hint))
    return TpujobError.exit_code
