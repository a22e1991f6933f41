"""What the API answered that a project has: asked zone by zone, kept with its date in the state directory.

`tpujob offers --refresh` asks; `offers`, `plan`, `run` and `up` read the kept answer.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from orchestrator import whole_file
from orchestrator.core.planning.availability import Availability
from orchestrator.errors import CloudError
from orchestrator.places.vms.plans import AVAILABILITY, asked_project

if TYPE_CHECKING:
    from orchestrator.client.events import Reporter
    from orchestrator.client.session import Session
    from orchestrator.places.tpu.api.light_client import LightApi

AT_ONCE = 8  # zones that are asked at the same time


def refresh(session: Session) -> Availability:
    """Ask every zone, keep the answer and return it. Raises CloudError when no zone answers."""
    from orchestrator.client.guarantee import teardown_client  # `offers` without --refresh needs neither

    cloud = teardown_client.connect(session.target, session.reporter.secrets)
    zones = cloud.zones(session.target.project).rows
    found = _ask(cloud, session.target.project, zones, asked_project(session), session.reporter)
    whole_file.replace(session.directory / AVAILABILITY, json.dumps(found.to_dict(), indent=1))
    return found


def _ask(cloud: LightApi, project: str, zones: tuple[str, ...], full_name: str, reporter: Reporter) -> Availability:
    from concurrent.futures import ThreadPoolExecutor  # as above

    answers: dict[str, tuple[str, ...]] = {}
    errors: dict[str, CloudError] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = {zone: pool.submit(cloud.accelerator_types, project, zone) for zone in zones}
        for number, (zone, answer) in enumerate(asked.items()):
            reporter.progress("project", f"asking the API what {project} has: {number} of {len(zones)} zones answered")
            try:
                answers[zone] = answer.result().rows
            except CloudError as error:
                errors[zone] = error
    if errors and not answers:
        raise next(iter(errors.values()))
    silent = {zone: error.message for zone, error in errors.items()}
    return Availability(full_name, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), answers, silent)
