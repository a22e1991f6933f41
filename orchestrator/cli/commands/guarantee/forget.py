"""`tpujob forget`: take over the obligation for a slice whose deletion tpujob cannot prove."""

from typing import Annotated

from orchestrator.api.guarantee.forget import ForgetOutcome
from orchestrator.cli import completion
from orchestrator.cli.console.output import emit, emit_lines, open_client
from orchestrator.cli.options import Argument, Cloud, Option, Project
from orchestrator.text.units import clock


def forget(
    name: Annotated[str, Argument(help="The slice's name, its node or its lease.", autocompletion=completion.slices)],
    verified: Annotated[
        bool, Option("--verified-by-me", help="You verified by other means that it is gone, or not yours.")
    ] = False,
    reason: Annotated[str, Option("--reason", help="How you know; kept in the ledger.")] = "",
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Stop asking after a slice whose deletion cannot be proven. This deletes nothing, and the ledger keeps your reason.

    Only for a slice that is being deleted and that cannot be seen any more, or whose deletion is stuck.
    """
    result = open_client(cloud, project).forget(name, verified=verified, reason=reason)
    match result.outcome:
        case ForgetOutcome.ABSENT:
            checked = clock(result.checked_at)
            emit(f"{result.node} absent (checked {checked}): proven after all, nothing to forget")
        case ForgetOutcome.NOT_VERIFIED:
            emit_lines(result.commands)
        case ForgetOutcome.FORGOTTEN:
            emit(f"{result.node} forgotten: nothing is proven, and tpujob does not ask after it any more")
