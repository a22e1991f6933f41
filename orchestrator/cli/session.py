"""Opens the session of a command: what the client reports goes to the console."""

from __future__ import annotations

from orchestrator.cli.console import console
from orchestrator.client.session import Session


def open_session(
    cloud: str | None = None,
    project: str | None = None,
    *,
    quiet: bool = False,
    light: bool = False,
    ends: bool = False,
) -> Session:
    """Return the session of this command; see `Session.open`. Raises ConfigError."""
    return Session.open(cloud, project, reporter=console().reporter, quiet=quiet, light=light, ends=ends)
