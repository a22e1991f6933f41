"""`tpujob extend`: move the end of a slice."""

from typing import Annotated

from orchestrator.cli import completion
from orchestrator.cli.console import console, emit
from orchestrator.cli.options import Argument, Cloud, Option, Project
from orchestrator.client.arguments import seconds
from orchestrator.client.session import Session
from orchestrator.client.slices import held
from orchestrator.core.text.times import day_clock


def extend(
    name: Annotated[str, Argument(help="The slice's name, or a run's id.", autocompletion=completion.slices)],
    by: Annotated[str, Option(metavar="DURATION", help="How much longer, such as 2h.")],
    cloud: Cloud = None,
    project: Project = None,
) -> int:
    """Move the end of a slice: its deadline, or the end of its hold. Nothing else ever moves a deadline."""
    by_s = seconds("--by", by, "1m", "7d")
    session = Session.open(cloud, project, reporter=console().reporter)
    extended = held.extend(session, name, by_s)
    emit(f"{extended.name} ({extended.node}) ends by {day_clock(extended.ends_at)}")
    return session.exit_code()
