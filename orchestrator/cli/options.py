"""Options that several commands share, and how a duration given as an option is read."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.core.text.durations import parse_duration
from orchestrator.errors import UserError

Cloud = Annotated[
    str | None,
    typer.Option("--cloud", metavar="emulated|google", help="Which cloud; by default what is configured."),
]
Project = Annotated[str | None, typer.Option("--project", metavar="PROJECT", help="Google Cloud project id.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON with a stable shape on stdout.")]
EventStream = Annotated[
    bool,
    typer.Option("--json", help="Print events on stdout, one JSON object a line; the last one is the result."),
]
Name = Annotated[str | None, typer.Argument(help="The slice's name; by default yours.")]
Worker = Annotated[int | None, typer.Option("--worker", metavar="N", min=0, help="Worker index, from 0.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print one line a run with every figure as it was measured.")]


def duration(option: str, text: str, *, least: str, most: str) -> float:
    """Return the seconds of a duration given as `option`. Raises UserError unless it is from `least` to `most`."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UserError(f"{option} {text}: {error}") from error
    if not parse_duration(least) <= seconds <= parse_duration(most):
        raise UserError(f"{option} {text}: must be between {least} and {most}")
    return seconds
