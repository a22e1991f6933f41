"""Follow a detached run to its end: its log, its artifacts, the release of its slice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.client.events import RunResult

if TYPE_CHECKING:
    from orchestrator.client.session import Session


def attach(session: Session, run: str) -> RunResult:
    """Follow the run of this id or name to its end and return its result."""
    raise NotImplementedError
