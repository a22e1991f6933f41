"""The `tpujob` command: registers one command per file, turns errors into one line and an exit code.

Nothing heavy is imported on the way to `--help`: commands import what they need when they run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from orchestrator import __version__
from orchestrator.cli.commands.emulator import emulator
from orchestrator.cli.commands.guarantee import doctor, drill, forget, gc, install_gc
from orchestrator.cli.commands.jobs import attach, bench, cancel, collect, plan, run, submit
from orchestrator.cli.commands.results import compare, list_runs, logs, show
from orchestrator.cli.commands.slices import down, extend, offers, ssh, start, status, stop, up
from orchestrator.cli.console import console
from orchestrator.cli.exit import ExitCode
from orchestrator.errors import ConfigError, TpujobError, UserError

app = typer.Typer(
    name="tpujob",
    help="Run training jobs on Cloud TPUs and never pay for a forgotten one.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(up.up)
app.command("run")(run.run)
app.command("submit")(submit.submit)
app.command("attach")(attach.attach)
app.command("collect")(collect.collect)
app.command("cancel")(cancel.cancel)
app.command("extend")(extend.extend)
app.command("plan")(plan.plan)
app.command("offers")(offers.offers)
app.command("status")(status.status)
app.command("list")(list_runs.list_runs)
app.command("show")(show.show)
app.command("compare")(compare.compare)
app.command("bench")(bench.bench)
app.command("logs")(logs.logs)
app.command("stop")(stop.stop)
app.command("start")(start.start)
app.command("down")(down.down)
app.command("ssh")(ssh.ssh)
app.command("gc")(gc.gc)
app.command("install-gc")(install_gc.install_gc)
app.command("doctor")(doctor.doctor)
app.command("forget")(forget.forget)
app.command("drill")(drill.drill)
app.add_typer(emulator.app, name="emulator")

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"tpujob {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The console script. Exit codes: docs/cli.md."""
    _mend_streams()
    try:
        code = _call()
    except ExitCode as done:
        code = done.code
    except TpujobError as error:
        console().fail(error)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        code = 141
    except OSError as error:
        code = _disk(error) if error.errno in _DISK else _bug(error)
    except Exception as error:
        code = _bug(error)
    for end in (console().quiet, sys.stdout.flush, sys.stderr.flush):
        with contextlib.suppress(OSError, ValueError):
            end()
    # Threads of abandoned network calls must not keep the process: everything durable is durable by now.
    os._exit(code)


def _mend_streams() -> None:
    """A stream that was closed before we started, or that cannot encode a letter, must not cost a teardown."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
        elif name != "stdin" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _call() -> int:
    try:
        app()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 70
        return UserError.exit_code if code == 2 else code  # 2 is only ever Typer's own usage error
    return 0


def _disk(error: OSError) -> int:
    """Full, read-only or failing under any of the files that we write: no bug of ours."""
    hint = "free some space, or name another place: TPUJOB_STATE_DIR, `runs_dir:`; what is alive: `tpujob status`"
    console().fail(ConfigError(f"{error.filename or 'a file'} cannot be written: {error.strerror}", hint=hint))
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
    console().fail(TpujobError(f"a bug in tpujob: {type(error).__name__}: {error}", hint=hint))
    return TpujobError.exit_code
