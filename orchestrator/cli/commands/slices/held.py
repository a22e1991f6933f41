"""`tpujob start|stop|extend`: what becomes of a slice that is held."""

from typing import Annotated

from orchestrator.cli import completion
from orchestrator.cli.console import emit, open_session
from orchestrator.cli.options import Argument, Cloud, Name, Option, Project
from orchestrator.client.arguments import HOLD, seconds
from orchestrator.client.slices import held
from orchestrator.core.text.units import day_clock


def start(name: Name = None, cloud: Cloud = None, project: Project = None) -> None:
    """Start a stopped slice again."""
    session = open_session(cloud, project)
    started = held.start(session, name)
    emit(f"{started.name}: {started.state} ({started.node})")


def stop(name: Name = None, cloud: Cloud = None, project: Project = None) -> None:
    """Stop a held slice of one host (Google stops no other): it keeps its disk, its name and its quota. This deletes nothing.

    To stop billing for sure, delete the slice: `tpujob down`. The end of the hold stays. No watchdog runs on it until `tpujob
    start`: at its end the next tpujob command or a gc timer deletes it.
    `tpujob status` counts its full price, as for every slice that is not proven absent; Google documents charges only while a
    TPU is READY, and tpujob cannot check the bill.
    """
    session = open_session(cloud, project)
    stopped = held.stop(session, name)
    emit(f"{stopped.name}: {stopped.state} ({stopped.node}); it holds its quota until `tpujob down {stopped.name}`")
    ends = f"no watchdog runs on it: at {day_clock(stopped.ends_at)} the next tpujob command or a gc timer deletes it"
    session.reporter.notice("note", f"{ends} (`tpujob install-gc`)")
    session.reporter.notice("note", "its full price is counted until it is absent; `tpujob start` starts it again")


def extend(
    name: Annotated[str, Argument(help="The slice's name, or a run's id.", autocompletion=completion.slices)],
    by: Annotated[str, Option(metavar="DURATION", help="How much longer, such as 2h.")],
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Move the end of a slice: its deadline, or the end of its hold. Nothing else ever moves a deadline."""
    by_s = seconds("--by", by, *HOLD)
    session = open_session(cloud, project)
    extended = held.extend(session, name, by_s)
    emit(f"{extended.name} ({extended.node}) ends by {day_clock(extended.ends_at)}")
