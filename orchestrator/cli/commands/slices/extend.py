"""`tpujob extend`: move the end of a slice."""

from __future__ import annotations

from typing import Annotated

from orchestrator.cli.console import emit
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Argument, Cloud, Option, Project, duration
from orchestrator.cli.session import open_session
from orchestrator.client.slices import slices
from orchestrator.report.layout import day_clock


def extend(
    name: Annotated[str, Argument(help="The slice's name, or a run's id.")],
    by: Annotated[str, Option(metavar="DURATION", help="How much longer, such as 2h.")],
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Move the end of a slice: its deadline, or the end of its hold. Nothing else ever moves a deadline."""
    by_s = duration("--by", by, least="1m", most="7d")
    session = open_session(cloud, project)
    extended = slices.extend(session, name, by_s)
    emit(f"{extended.name} ({extended.node}) ends by {day_clock(extended.ends_at)}")
    raise ExitCode(session.exit_code())
