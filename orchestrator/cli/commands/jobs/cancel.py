"""`tpujob cancel`: end a run, delete its slice, prove it."""

from __future__ import annotations

from orchestrator.cli.console import console, emit, emit_json
from orchestrator.cli.options import Json, RunName
from orchestrator.client.jobs import ending
from orchestrator.client.session import Session


def cancel(run: RunName, as_json: Json = False) -> int:
    """End a run, detached or in another terminal: delete its slice and prove it. Artifacts are not collected.

    A run that waits for capacity asks for no slice any more. A run on a slice of `tpujob up` is stopped there, and the slice
    stays. A job with `on: local` is stopped as by Ctrl-C, and keeps its
    artifacts. A name means the run of it that has not ended; of several, give the id (exit code 64).
    """
    session = Session.open(reporter=console().reporter, quiet=True, ends=True)
    canceled = ending.cancel(session, run)
    if as_json:
        emit_json(canceled.as_json())
    elif canceled.line:
        emit(canceled.line)
    return canceled.exit_code
