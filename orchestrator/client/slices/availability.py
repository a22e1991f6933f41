"""What the API said that a project really has: asked zone by zone, kept with its date in the state directory.

`tpujob offers --refresh` asks; `offers`, `plan`, `run` and `up` read the answer.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.planning import availability
from orchestrator.core.planning.availability import Availability

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.clouds.tpu.light_client import LightApi

AT_ONCE = 8  # zones that are asked at the same time
FILE = "offering.json"


def known(session: Session) -> Availability | None:
    """What was said of this session's project. None: nobody asked, or what is kept cannot be read."""
    try:
        said = json.loads((session.directory / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return availability.from_shape(said, _whose(session))


def refresh(session: Session) -> Availability:
    """Raises TpujobError when not one zone answers."""
    from orchestrator.client.guarantee.teardown_client import reach

    cloud = reach(session.target, session.reporter.secrets)
    project = session.target.project
    zones = cloud.zones(project).rows
    found = _ask(cloud, project, zones, _whose(session))
    _keep(session.directory / FILE, found)
    return found


def _ask(cloud: LightApi, project: str, zones: tuple[str, ...], whose: str) -> Availability:
    from concurrent.futures import ThreadPoolExecutor

    from orchestrator.errors import CloudError

    answers: dict[str, tuple[str, ...]] = {}
    silent: dict[str, str] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = {zone: pool.submit(cloud.accelerator_types, project, zone) for zone in zones}
        errors: list[CloudError] = []
        for zone, answer in asked.items():
            try:
                answers[zone] = answer.result().rows
            except CloudError as error:
                silent[zone] = error.message
                errors.append(error)
    if errors and not answers:
        raise errors[0]
    return Availability(whose, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), answers, silent)


def _whose(session: Session) -> str:
    return f"{session.target.kind}:{session.target.project}"


def _keep(path: Path, found: Availability) -> None:
    """A reader sees the old answer or the new one."""
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(found.shape(), indent=1), encoding="utf-8")
    aside.replace(path)
