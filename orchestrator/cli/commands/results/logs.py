"""`tpujob logs`: what the workers wrote."""

import json
from typing import Annotated

from orchestrator.api.session.shown_logs import Choice, choice
from orchestrator.cli.console.output import console, emit, open_client
from orchestrator.cli.options import Json, LogWorkers, Option, Owner, RunOrNewest
from orchestrator.errors import UserError


def logs(
    run: RunOrNewest = None,
    follow: Annotated[bool, Option("--follow", "-f", help="Go on until the run ends.")] = False,
    worker: LogWorkers = None,
    owner: Owner = None,
    as_json: Json = False,
) -> None:
    """What the workers of a run wrote, as far as it arrived here.

    Of a run of another machine that this one does not know, what is on its workers now.
    """
    if owner and run is None:
        raise UserError("--owner needs a RUN")
    workers = choice("--worker", worker)
    one = isinstance(workers, tuple) and len(workers) == 1
    shown: Choice = "all" if as_json and workers is None else workers
    for lines in open_client().lines(run, follow=follow, workers=shown, owner=owner):
        console().bar_ended(f"worker{lines.worker} | ")
        for line in lines.lines:
            if as_json:
                emit(json.dumps({"worker": lines.worker, "line": line}, ensure_ascii=False))
            else:
                emit(line if one else f"worker{lines.worker} | {line}")
        if console().is_unread or console().is_cut:  # as `head` leaves: the run may go on for days
            break
