"""`tpujob extend`: move the end of a slice."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.exit import ExitCode
from orchestrator.cli.options import Cloud, Project


def extend(
    name: Annotated[str, typer.Argument(help="The slice's name, or a run's id.")],
    by: Annotated[str, typer.Option(metavar="DURATION", help="How much longer, such as 2h.")],
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Let a slice live longer: its deadline, or the end of its hold. Nothing else ever moves a deadline."""
    from orchestrator.cli.console import emit
    from orchestrator.cli.options import duration
    from orchestrator.cli.session import open_session
    from orchestrator.engine.slices.extend import extend as program
    from orchestrator.report.times import day_clock

    by_s = duration("--by", by, least="1m", most="7d")
    session = open_session(cloud, project)
    session.announce()
    session.recover(look=True)
    lease = session.of_run(name) or session.need(name)
    extended = session.on_cloud(lambda capabilities: program(lease, by_s, capabilities))
    emit(f"{extended.handle} ({extended.name.node}) ends by {day_clock(extended.ends_at)}")
    raise ExitCode(session.exit_code())
