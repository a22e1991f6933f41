"""`tpujob check`: whether a program fits the chips of its accelerator, before anything is created."""

from typing import Annotated

from orchestrator.cli.console.output import emit_json, emit_stages, open_client
from orchestrator.cli.options import JobArguments, Json, Option
from orchestrator.errors import JobSpecError, UserError


def check(
    job: JobArguments,
    steps: Annotated[int, Option(metavar="N", help="Steps to run on this machine's CPU.")] = 10,
    within: Annotated[
        str, Option(metavar="DURATION", help="End the program here after so long; that is no verdict.")
    ] = "10m",
    as_json: Json = False,
) -> int:
    """Check whether a program fits the chips of its accelerator: it runs here, the TPU compiler judges it.

    The first steps run on this machine's CPU, with the shapes of the real job. What XLA compiles for them, the TPU compiler
    compiles, too; it needs no TPU. Creates nothing. Exit code 0: it fits. 72: it does not fit. 73: not judged.
    """
    client = open_client()
    try:
        found = client.load(job.request())
    except JobSpecError as error:
        error.hint = None
        raise
    if found.is_sweep:
        raise UserError(f"{found.name} is a sweep; check one of its jobs", hint="`--set` gives a job file other values")
    result = client.check(found, steps=steps, within=within)
    emit_json(result.shape) if as_json else emit_stages(str(result).splitlines(), state=result.verdict)
    return result.exit_code
