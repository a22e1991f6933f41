"""`tpujob bench`: the variants of a job, one after the other, and the table that compares them."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

from orchestrator.cli.commands.results.compare import print_comparison
from orchestrator.cli.console import console
from orchestrator.cli.options import Argument, Cloud, Csv, Json, Markdown, Option, Project
from orchestrator.client.jobs.benches import run_bench
from orchestrator.client.session import Session
from orchestrator.errors import UserError


def bench(
    file: Annotated[Path, Argument(metavar="BENCH.yaml", help="The bench file: a base job and its variants.")],
    again: Annotated[bool, Option("--again", help="Run every variant, also those that succeeded before.")] = False,
    as_json: Json = False,
    as_markdown: Markdown = False,
    as_csv: Csv = False,
    cloud: Cloud = None,
    project: Project = None,
) -> int:
    """Run the variants of a job one after the other, then print the comparison. What succeeded before is not run again."""
    if as_json + as_markdown + as_csv > 1:
        raise UserError("--json, --markdown and --csv exclude each other")
    session = Session.open(cloud, project, reporter=console().reporter)
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the table
        result = run_bench(session, file, again=again)
    if result.runs:
        print_comparison(session, list(result.runs), as_json=as_json, as_markdown=as_markdown, as_csv=as_csv)
    return result.exit_code
