"""The console script `tpujob`. `--help` and `--version` are printed from here, without typer, the client or any command."""

import contextlib
import gc
import os
import sys

from orchestrator import __version__
from orchestrator.cli import help_text
from orchestrator.cli.command_table import COMPLETION


def main() -> None:
    """Run the command of `sys.argv` and end the process. Exit codes: docs/cli.md."""
    _mend_streams()
    code = 0 if _print_about(sys.argv[1:]) else _dispatch()
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


def _print_about(words: list[str]) -> bool:
    """Print what was asked about tpujob itself; False if it was something else, or if stdout cannot be written."""
    if COMPLETION in os.environ:
        return False
    if words == ["--version"]:
        text = f"tpujob {__version__}\n"
    elif words in (["--help"], ["-h"]):
        text = help_text.of_tpujob()
    else:
        return False
    try:
        print(text, end="", flush=True)
    except OSError:
        return False  # typer tries it again, and the message is that of every command
    return True


def _dispatch() -> int:
    from orchestrator.cli.dispatch import dispatch  # `--help` needs none of it

    # Imports make some 140,000 objects, all of which stay: looking through them again and again takes a tenth of a second.
    gc.set_threshold(300_000)
    # Asynchronous credentials, which google-auth offers where aiohttp is installed: not used here, and a tenth of a second.
    sys.modules.setdefault("google.auth.aio.transport.sessions", None)  # type: ignore[arg-type]
    return dispatch()
