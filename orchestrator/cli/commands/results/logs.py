"""`tpujob logs`: what the workers wrote."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from orchestrator.cli.console import emit
from orchestrator.cli.exit import ExitCode
from orchestrator.cli.options import Json, Worker
from orchestrator.cli.session import open_session
from orchestrator.client.jobs.logs import read_logs


def logs(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run id (its first letters do) or a job's name.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    worker: Worker = None,
    as_json: Json = False,
) -> None:
    """What the workers of a run wrote, as far as it arrived here."""
    session = open_session()
    for lines in read_logs(session, run, follow=follow, worker=worker):
        for line in lines.lines:
            if as_json:
                emit(json.dumps({"worker": lines.worker, "line": line}, ensure_ascii=False))
            else:
                emit(line if worker is not None else f"worker{lines.worker} | {line}")
    raise ExitCode(session.exit_code())
