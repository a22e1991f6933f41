"""`tpujob notify`: try the receiver of messages."""

from pathlib import Path
from typing import Annotated

from orchestrator.cli import completion
from orchestrator.cli.console.output import emit, open_client
from orchestrator.cli.options import Argument


def notify(
    job: Annotated[
        Path | None,
        Argument(
            metavar="JOB.yaml",
            help="A job file: the receiver of this job, where it has one of its own.",
            autocompletion=completion.job_files,
        ),
    ] = None,
) -> None:
    """Send a test message to the receiver of `notify:`, and print what came back.

    Messages that wait for their next try are tried now, too.
    """
    emit(open_client().try_notify(job))
