"""What this machine knows of projects: which TPUs they have, as the API said, and what their policies refused.

Both are files of the state directory. No permission is asked for: few may read a project's policies. A refusal is remembered
for a day, since policies change, so that the next create is not refused first.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.capacity import availability
from orchestrator.errors import CloudError, ExternalAddressRefused, OsLoginRequired
from orchestrator.promise.lease.access import ProjectRules
from orchestrator.system import whole_file

if TYPE_CHECKING:
    from orchestrator.capacity.availability import Availability
    from orchestrator.places.desk import Desk

AVAILABILITY = "availability.json"  # `tpujob offers --refresh` writes it
REMEMBERED_S = 24 * 3600.0
RULES: dict[type[CloudError], str] = {ExternalAddressRefused: "no_external_addresses", OsLoginRequired: "os_login"}


@dataclass(frozen=True, slots=True)
class RulesFile:
    """The rules of one project of one cloud. A file that is missing or damaged knows none, and is written anew.

    What this process has learned it knows in any case: the file may be on a full disk, or be written by two at once.
    """

    path: Path
    cloud: str
    project: str
    now: Callable[[], float]  # the ledger's time
    _learned: set[str] = field(default_factory=set, compare=False)  # by this process

    def known(self) -> ProjectRules:
        """Return the rules that were learned in the last day, or by this process."""
        found = self._read().get(self._key, {})
        return ProjectRules(**{n: n in self._learned or self._is_fresh(found.get(n)) for n in RULES.values()})

    def learn(self, refusal: CloudError) -> None:
        """Remember what a policy refuses. A file that cannot be written costs the next run one refused create."""
        name = next((name for kind, name in RULES.items() if isinstance(refusal, kind)), None)
        if name is None:
            return
        self._learned.add(name)
        content = self._read()
        entry = {"at": self.now(), "why": refusal.message}
        content[self._key] = {**content.get(self._key, {}), name: entry}
        with suppress(OSError):
            whole_file.replace(self.path, json.dumps(content, indent=1))

    @property
    def _key(self) -> str:
        return f"{self.cloud} {self.project}"

    def _is_fresh(self, entry: Any) -> bool:
        at = entry.get("at") if isinstance(entry, dict) else None
        return isinstance(at, (int, float)) and 0 <= self.now() - at < REMEMBERED_S

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        rows = found if isinstance(found, dict) else {}
        return {key: value for key, value in rows.items() if isinstance(value, dict)}


def known_availability(desk: Desk) -> Availability | None:
    """Return what the API said that the project has; None when it was never asked or the file is unreadable."""
    try:
        kept = json.loads((desk.directory / AVAILABILITY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return availability.from_dict(kept, asked_project(desk))


def asked_project(desk: Desk) -> str:
    """Return the project as the kept answer names it."""
    return f"{desk.target.kind}:{desk.target.project}"


def rules_of(desk: Desk) -> RulesFile:
    """Return what is known of the policies of this session's project."""
    return RulesFile(desk.directory / "access.json", desk.target.kind, desk.target.project, desk.now)
