"""Where a place that is billed is asked for what no ledger here need know: its module `area`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from orchestrator.settings import Target


@dataclass(frozen=True, slots=True)
class Area:
    """A project of a cloud. `parts`: zones or namespaces of it; None: every one. `why`: for people, and why it is this one."""

    cloud: str
    project: str
    why: str
    parts: Sequence[str] | None = None


class Areas(Protocol):
    """The module `area` of a place."""

    def named(self, target: Target) -> Area | None:
        """Return where `status` asks, by the settings; None: nowhere. Raises ConfigError."""

    def asked(self, target: Target, parts: Sequence[str], *, context: str | None, cluster: str | None) -> Area:
        """Return where `tpujob gc` looks. `parts`: as it was told; empty: as the place has it. Raises UserError, ConfigError.

        `context` and `cluster` are as in `gke:` of a job; a place without them ignores them.
        """
