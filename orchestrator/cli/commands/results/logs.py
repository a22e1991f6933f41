"""`tpujob logs`: what the workers wrote."""

from __future__ import annotations

import json
from typing import Annotated

from orchestrator.cli.console import emit
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Argument, Json, Option, Worker
from orchestrator.cli.session import open_session
from orchestrator.client.jobs.logs import read_logs


def logs(
    run: Annotated[str, Argument(metavar="RUN", help="A run id (its first letters do) or a job's name.")],
    follow: Annotated[bool, Option("--follow", "-f", help="Go on until the run ends.")] = False,
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
