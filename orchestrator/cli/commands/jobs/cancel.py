"""`tpujob cancel`: end a run or a sweep, delete its slices, prove it."""

from orchestrator.cli.console import emit, emit_json, open_session
from orchestrator.cli.options import Json, RunOrSweep
from orchestrator.client.sweeps import ending


def cancel(run: RunOrSweep, as_json: Json = False) -> None:
    """End a run or a sweep, detached or in another terminal: delete its slices and prove it. Artifacts are not collected.

    A run that waits for capacity asks for no slice any more. A run on a slice of `tpujob up` is stopped there, and the slice
    stays. A job with `on: local` is stopped as by Ctrl-C, and keeps its artifacts. The name of a sweep ends all of it: its
    runs and their slices; no other variant starts. A name means what has not ended; of several, give the id (exit code 64).
    """
    session = open_session(quiet=True, ends=True)
    canceled = ending.cancel(session, run)
    if as_json:
        emit_json(canceled.as_json())
    elif canceled.line:
        emit(canceled.line)
