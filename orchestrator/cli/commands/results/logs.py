"""`tpujob logs`: what the workers wrote."""

from __future__ import annotations

import json
from typing import Annotated

from orchestrator.cli.console import console, emit
from orchestrator.cli.options import Json, Option, RunOrNewest, Worker
from orchestrator.client.results.logs import read_logs
from orchestrator.client.session import Session


def logs(
    run: RunOrNewest = None,
    follow: Annotated[bool, Option("--follow", "-f", help="Go on until the run ends.")] = False,
    worker: Worker = None,
    as_json: Json = False,
) -> int:
    """What the workers of a run wrote, as far as it arrived here."""
    session = Session.open(reporter=console().reporter)
    for lines in read_logs(session, run, follow=follow, worker=worker):
        for line in lines.lines:
            if as_json:
                emit(json.dumps({"worker": lines.worker, "line": line}, ensure_ascii=False))
            else:
                emit(line if worker is not None else f"worker{lines.worker} | {line}")
    return session.exit_code()
