"""`tpujob emulator preempt|maintain|vanish|put|worker`: what happens to one emulated node. See docs/emulator.md."""

from typing import Annotated, Any
from urllib.parse import quote

from orchestrator.cli import completion
from orchestrator.cli.commands.emulator.daemon import ask
from orchestrator.cli.commands.emulator.faults import given
from orchestrator.cli.console import emit
from orchestrator.cli.options import Argument, Option
from orchestrator.client.arguments import seconds

Node = Annotated[str, Argument(help="The node's id, or its full name.", autocompletion=completion.nodes)]
Notice = Annotated[
    str | None, Option("--notice", metavar="DURATION", help="Announce it to the VMs this long before: 30s.")
]


def preempt(node: Node, notice: Notice = None) -> None:
    """Preempt a node as Google preempts spot capacity: PREEMPTED, still listed, not billed, its hosts off."""
    _act(node, "preempt", given({"notice_s": _seconds("--notice", notice)}))


def maintain(
    node: Node,
    notice: Notice = None,
    lasts: Annotated[str | None, Option("--lasts", metavar="DURATION", help="How long the hosts are off: 10s.")] = None,
    scheduled: Annotated[bool, Option("--scheduled", help="Scheduled maintenance, not an emergency.")] = False,
) -> None:
    """Start a maintenance event: announced to the VMs and in the API, then the hosts go off and boot again."""
    seconds = {"notice_s": _seconds("--notice", notice), "lasts_s": _seconds("--lasts", lasts)}
    _act(node, "maintain", given(seconds) | {"kind": "SCHEDULED" if scheduled else "UNSCHEDULED"})


def vanish(node: Node) -> None:
    """Delete a node as another user would: the API no longer shows it."""
    _act(node, "vanish")


def put(
    node: Node,
    state: Annotated[str, Argument(help="READY, STOPPED, REPAIRING, UNKNOWN, TERMINATED, HIDDEN, PREEMPTED.")],
    lasts: Annotated[str | None, Option("--for", metavar="DURATION", help="READY again after this: 20s.")] = None,
) -> None:
    """Put a node into a state, as a failing host does."""
    _act(node, "put", given({"lasts_s": _seconds("--for", lasts)}) | {"state": state.upper()})


def worker(
    node: Node,
    index: Annotated[int, Argument(min=0, help="Worker index, from 0.")],
    condition: Annotated[
        str, Argument(metavar="well|refusing|silent|frozen|upgrading", help="Its condition from now on.")
    ],
) -> None:
    """Make one worker refuse or ignore SSH connections, or freeze its whole machine."""
    _act(node, "worker", {"worker": index, "condition": condition})


def _act(node: str, action: str, body: Any = None) -> None:
    reply = ask("POST", f"nodes/{quote(node, safe='/')}:{action}", body)
    emit(f"{reply['name']}\t{reply['state']}")


def _seconds(option: str, text: str | None) -> float | None:
    return None if text is None else seconds(option, text, "0s", "30d")
