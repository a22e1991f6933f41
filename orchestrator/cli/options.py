"""How commands declare their parameters, and the options that several commands share.

`Option` and `Argument` are those of typer; importing typer takes longer than many a command, and `cli.typer_app` does it when
there is something to parse.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any


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
JobFile = Annotated[Path, Argument(metavar="JOB.yaml", help="The job file.")]
MaxDuration = Annotated[
    str | None,
    Option("--ttl", metavar="DURATION", help="Instead of the file's limits.max_duration, such as 2h."),
]
RunName = Annotated[str, Argument(metavar="RUN", help="A run id (its first letters do) or a job's name.")]
Name = Annotated[str | None, Argument(help="The slice's name; by default yours.")]
Worker = Annotated[int | None, Option("--worker", metavar="N", min=0, help="Worker index, from 0.")]
Markdown = Annotated[bool, Option("--markdown", help="Print the table as Markdown.")]
Csv = Annotated[bool, Option("--csv", help="Print one line a run with every figure as it was measured.")]
