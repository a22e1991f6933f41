"""How commands declare their parameters, the options that several commands share, and durations given as options.

`Option` and `Argument` are those of typer; importing typer takes longer than many a command, and `cli.typer_app` does it when
there is something to parse.
"""

from __future__ import annotations

from typing import Annotated, Any

from orchestrator.core.text.durations import parse_duration
from orchestrator.errors import UserError


class Option:
    """The declaration of an option: what `typer.Option` takes."""

    def __init__(self, *names: str, **settings: Any) -> None:
        self.names, self.settings = names, settings


class Argument:
    """The declaration of an argument: what `typer.Argument` takes."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings


Cloud = Annotated[
    str | None,
    Option("--cloud", metavar="emulated|google", help="Which cloud; by default what is configured."),
]
Project = Annotated[str | None, Option("--project", metavar="PROJECT", help="Google Cloud project id.")]
Json = Annotated[bool, Option("--json", help="Print JSON with a stable shape on stdout.")]
EventStream = Annotated[
    bool,
    Option("--json", help="Print events on stdout, one JSON object a line; the last one is the result."),
]
Name = Annotated[str | None, Argument(help="The slice's name; by default yours.")]
Worker = Annotated[int | None, Option("--worker", metavar="N", min=0, help="Worker index, from 0.")]
Markdown = Annotated[bool, Option("--markdown", help="Print the table as Markdown.")]
Csv = Annotated[bool, Option("--csv", help="Print one line a run with every figure as it was measured.")]


def duration(option: str, text: str, *, least: str, most: str) -> float:
    """Return the seconds of a duration given as `option`. Raises UserError unless it is from `least` to `most`."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UserError(f"{option} {text}: {error}") from error
    if not parse_duration(least) <= seconds <= parse_duration(most):
        raise UserError(f"{option} {text}: must be between {least} and {most}")
    return seconds
