"""`tpujob stop`: stop a held slice without deleting it."""

from orchestrator.cli.console import console, emit
from orchestrator.cli.options import Cloud, Name, Project
from orchestrator.client.session import Session
from orchestrator.client.slices import held
from orchestrator.core.text.times import day_clock


def stop(name: Name = None, cloud: Cloud = None, project: Project = None) -> int:
    """Stop a held slice of one host (Google stops no other): it keeps its disk, its name and its quota. This deletes nothing.

    To stop billing for sure, delete the slice: `tpujob down`. The end of the hold stays. No watchdog runs on it until `tpujob
    start`: at its end the next tpujob command or a gc timer deletes it.
    `tpujob status` counts its full price, as for every slice that is not proven absent; Google documents charges only while a
    TPU is READY, and tpujob cannot check the bill.
    """
    session = Session.open(cloud, project, reporter=console().reporter)
    stopped = held.stop(session, name)
    emit(f"{stopped.name}: {stopped.state} ({stopped.node}); it holds its quota until `tpujob down {stopped.name}`")
    ends = f"no watchdog runs on it: at {day_clock(stopped.ends_at)} the next tpujob command or a gc timer deletes it"
    session.reporter.notice("note", f"{ends} (`tpujob install-gc`)")
    session.reporter.notice("note", "its full price is counted until it is absent; `tpujob start` starts it again")
    return session.exit_code()
