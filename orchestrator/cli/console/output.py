"""What commands print on stdout, and the console and clients of the process that they print with."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from orchestrator.cli.console.console import Console, wrapped
from orchestrator.errors import NOT_PROVEN, ConfigError

if TYPE_CHECKING:
    from orchestrator.api.command_line import CommandClient
    from orchestrator.api.session.shown_logs import Choice

_clients: list[CommandClient] = []  # of the command that runs now


@functools.cache
def console() -> Console:
    """Return the console of this process."""
    return Console()


def open_client(
    cloud: str | None = None, project: str | None = None, *, logs: Choice = None, watch_nodes: bool = False
) -> CommandClient:
    """Return the client of this command, which reports to the console."""
    from orchestrator.api.command_line import CommandClient  # 20 ms, which `--help` does without

    client = CommandClient(console().reporter, cloud, project, logs=logs, watch_nodes=watch_nodes)
    _clients.append(client)
    return client


def forget_clients() -> None:
    """Begin a command: what an earlier one of this process could not prove says nothing about it."""
    _clients.clear()
    console().only_reads = console().is_cut = False


def exit_code(code: int) -> int:
    """Return the exit code of the command that returned `code`.

    It is 75 if a client could not prove a release. A command that only reads has failed if its output could not be written.
    """
    if any(client.unproven for client in _clients):
        return NOT_PROVEN
    if console().only_reads and console().is_cut:
        return code or ConfigError.exit_code
    return code


def leave() -> None:
    """End the command."""
    for client in _clients:
        client.leave()


def open_slices() -> list[str]:
    """Return the slices that a command leaves in the ledger, as far as it opened and can read it."""
    return [each for client in _clients for each in client.open_slices]


def emit(text: str = "") -> None:
    """Print a line of data on stdout. A reader that left is no error; a full disk is one warning, and the command goes on."""
    console().out(console().fit(text))


def emit_lines(lines: Iterable[str]) -> None:
    """Print lines of data on stdout."""
    for line in lines:
        emit(line)


def emit_errors(lines: Iterable[str]) -> None:
    """Print lines on stderr that are neither a stage's nor a failure of tpujob."""
    for line in lines:
        console().error_line(line)


def emit_stages(lines: Iterable[str], *, state: str = "") -> None:
    """Print lines that begin with a stage on stdout, wrapped at the width of a terminal; color the first `state`."""
    console().out_stages(lines, state=state)


def emit_wrapped(lines: Iterable[str], indent: int = 2) -> None:
    """Print sentences on stdout, wrapped at the width of a terminal; they go on so many columns to the right."""
    for line in lines:
        console().out(wrapped(console().fit(line), sys.stdout, indent))


def emit_result(shape: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print the result of a command: its shape as JSON, or its lines."""
    if as_json:
        emit_json(shape)
    else:
        emit_lines(lines)


def emit_json(data: Any) -> None:
    """Print JSON on stdout, without secrets. Values of other types become text."""
    console().out(console().json_text(data, indent=2))
