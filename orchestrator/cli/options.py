"""Options that several commands share, each written once."""

from __future__ import annotations

from typing import Annotated

import typer

Cloud = Annotated[
    str | None,
    typer.Option("--cloud", metavar="emulated|google", help="Which cloud; by default what is configured."),
]
Project = Annotated[str | None, typer.Option("--project", help="Google Cloud project id.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON with a stable shape on stdout.")]
Name = Annotated[str | None, typer.Argument(help="The slice's name; by default yours.")]
Worker = Annotated[int | None, typer.Option("--worker", min=0, help="Worker index, from 0.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print one line a run with every figure as it was measured.")]
