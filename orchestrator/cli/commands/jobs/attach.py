"""`tpujob attach`: follow a detached run to its end."""

from orchestrator.api.session.shown_logs import choice
from orchestrator.cli.console.output import console, open_client
from orchestrator.cli.options import Logs, Owner, RunName, WatchNodes


def attach(run: RunName, logs: Logs = None, watch_nodes: WatchNodes = False, owner: Owner = None) -> int:
    """Follow a detached run to its end: log, artifacts, proof. Ctrl-C leaves it running.

    A run of another machine is found by the labels of its slice. One machine follows a run: a second one is told who does.
    """
    chosen = choice("--logs", logs)
    console().choose_logs(chosen)
    client = open_client(logs=chosen, watch_nodes=watch_nodes)
    return client.exit_code(client.attach(run, owner=owner))
