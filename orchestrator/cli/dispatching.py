"""What the console script `tpujob` does: streams that work, one command, and the end of the process with its exit code."""

import contextlib
import errno
import gc
import os
import re
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from orchestrator.cli.command_table import COMMANDS, COMPLETION, LIGHT, load
from orchestrator.cli.console.output import console, exit_code, forget_clients, leave, open_slices
from orchestrator.errors import ConfigError, Interrupted, TpujobError, UserError
from orchestrator.system.lazy import Later

if TYPE_CHECKING:
    from orchestrator.cli import typer_app
else:  # imports typer, 25 ms
    typer_app = Later("orchestrator.cli.typer_app")


def run() -> None:
    """Run the command of `sys.argv` and end the process. Exit codes: docs/cli.md."""
    _mend_streams()
    # Imports make some 140,000 objects, all of which stay: looking through them again and again takes a tenth of a second.
    gc.set_threshold(300_000)
    # Asynchronous credentials, which google-auth offers where aiohttp is installed: not used here, and a tenth of a second.
    sys.modules.setdefault("google.auth.aio.transport.sessions", None)  # type: ignore[arg-type]
    code = dispatch()
    for flush in (sys.stdout.flush, sys.stderr.flush):
        with contextlib.suppress(OSError, ValueError):
            flush()
    # Threads of abandoned network calls must not keep the process: everything durable is durable by now.
    os._exit(code)


def _mend_streams() -> None:
    """A stream that was closed before the start, or that cannot encode a letter, must not cost a teardown."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
        elif name != "stdin" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_FILES, _LOCKS = (errno.EMFILE, errno.ENFILE), (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_MEMORY = re.compile("can't start new thread|failed to map segment|[Cc]annot allocate memory")
INTERPRETER = "orchestrator.promise.effects.interpreter"
_USAGE = 2  # typer's code for usage errors


def dispatch() -> int:
    """Run the command of `sys.argv`; return its exit code. Raises nothing."""
    forget_clients()
    try:
        code = exit_code(_call())
    except TpujobError as error:
        code = (_is_lost(error.__cause__) and _of_the_machine(error.__cause__)) or _failed(error)
    except KeyboardInterrupt:
        code = exit_code(_interrupted())
    except BrokenPipeError:
        code = 141
    except Exception as error:
        code = _of_the_machine(error) or _bug(error)
    console().quiet()
    leave()
    return code


def _call() -> int:
    name = " ".join(sys.argv[1:])
    if name in LIGHT and COMPLETION not in os.environ:
        function = load(name)
        console().only_reads = COMMANDS[name].reads
        return function() or 0
    try:
        typer_app.root()(prog_name=typer_app.PROGRAM)
    except typer_app.ExitCode as end:
        return end.code
    except SystemExit as stop:
        if stop.__context__ is not None and isinstance(stop.__context__.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from None  # typer made an exit code of it
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else TpujobError.exit_code
        return UserError.exit_code if code == _USAGE else code
    return 0


def _interrupted() -> int:
    """Say what a Ctrl-C leaves that no program heard, as while modules were loaded; of what only looks, nothing is left."""
    # Only programs create and delete slices, and the first one loads their interpreter; these commands do without.
    acted = INTERPRETER in sys.modules or not {"emulator", "drill"}.isdisjoint(sys.argv)
    done = "Ctrl-C" if acted else "Ctrl-C: no slice was created or deleted"
    alive = ", ".join(open_slices())
    if not console().only_reads:  # what it named would seem to be stopped
        console().notice("stop", f"{done}; in this machine's ledger: {alive}" if alive else done)
    return Interrupted.BASE + signal.SIGINT


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
