"""`tpujob cancel|collect`: end a run or a sweep, or collect what a run left on its slice."""

from pathlib import Path
from typing import Annotated

from orchestrator.cli.console.output import emit, emit_json, open_client
from orchestrator.cli.options import Argument, Json, Option, Owner, RunName, RunOrSweep
from orchestrator.errors import UserError


def cancel(run: RunOrSweep, owner: Owner = None, as_json: Json = False) -> None:
    """End a run or a sweep, detached or in another terminal: delete its slices and prove it. Artifacts are not collected.

    A run that waits for capacity asks for no slice any more. A run on a slice of `tpujob up` is stopped there, and the slice
    stays. A job with `on: local` is stopped as by Ctrl-C, and keeps its artifacts. The name of a sweep ends all of it: its
    runs and their slices; no other variant starts. A name means what has not ended; of several, give the id (exit code 64).
    """
    canceled = open_client().cancel(run, owner=owner)
    if as_json:
        emit_json(canceled.as_json())
    elif canceled.line:
        emit(canceled.line)


def collect(
    run: RunName,
    pattern: Annotated[
        str | None, Argument(metavar="[PATTERN]", help="With --work: only these files, such as 'checkpoints/*'.")
    ] = None,
    work: Annotated[bool, Option("--work", help="What the job wrote beside its artifacts, too, of any size.")] = False,
    to: Annotated[Path | None, Option(metavar="DIR", help="With --work: to this directory.")] = None,
    max_results: Annotated[
        str | None, Option(metavar="SIZE|none", help="Instead of the job's limits.max_results, such as 80GB.")
    ] = None,
    owner: Owner = None,
) -> int:
    """Collect the results that a run left on its slice, then release the slice, proven. Only missing files are sent.

    The slice stays until everything is here, or until the time of its hold. Exits with the job's own code once everything is
    collected, with 65 until then, and when what a successful job left is gone with its slice. Ctrl-C leaves the slice held.
    Git and other jobs leave out a directory that --to creates. Of a job on a cluster, the results come from its bucket.
    """
    if not work and (pattern or to):
        raise UserError(f"{'a pattern' if pattern else '--to'} only counts with --work")
    client = open_client()
    result = client.collect(run, max_results=max_results, work=pattern or "*" if work else None, to=to, owner=owner)
    return client.exit_code(result)
