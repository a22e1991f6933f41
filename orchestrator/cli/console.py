"""The console of the process, the sessions that report to it, and what commands print on stdout (`cli.renderer` says how)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from orchestrator.cli.renderer import Console, wrapped
from orchestrator.errors import NOT_PROVEN

if TYPE_CHECKING:
    from orchestrator.api.session.session import Session

_sessions: list[Session] = []  # of the command that runs now


@functools.cache
def console() -> Console:
    """Return the console of this process."""
    return Console()


def open_session(cloud: str | None = None, project: str | None = None, **how: bool) -> Session:
    """Return a session of this command, open to the end of the process: see `Session.open`."""
    from orchestrator.api.session.session import Session

    session = Session.open(cloud, project, reporter=console().reporter, **how)
    _sessions.append(session)
    return session


def forget_sessions() -> None:
    """Begin a command: what an earlier one of this process could not prove says nothing about it."""
    _sessions.clear()


def exit_code(code: int) -> int:
    """Return 75 if a session of this command could not prove a release, else the code that the command returned."""
    return NOT_PROVEN if any(session.unproven for session in _sessions) else code


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
