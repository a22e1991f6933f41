"""What bears on a plan beside the shipped table: what was granted, what the project was said to have, where the bucket is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from orchestrator.client.slices import availability
from orchestrator.core.planning import egress, grants
from orchestrator.core.planning.capacity_request import PlanInputs

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.core.jobfile.model import JobSpec
    from orchestrator.core.planning.egress import Bucket


def known_to(session: Session, spec: JobSpec | None = None) -> PlanInputs:
    """`spec`: the job that is planned, whose bucket is looked for. Says so where that is not found."""
    return PlanInputs(
        grants=grants.remaining(session.target.grants, _used(session)),
        availability=availability.known(session),
        bucket=_bucket(session, spec) if spec is not None else None,
    )


def _used(session: Session) -> list[tuple[str, str, bool]]:
    """The slices that this machine knows of. Those of others are the cloud's to refuse."""
    return [(lease.accelerator_type, lease.name.zone, lease.spot) for lease in session.open_leases()]


def _bucket(session: Session, spec: JobSpec) -> Bucket | None:
    """None when nothing is to be said against any region."""
    from orchestrator.clouds.google import storage
    from orchestrator.errors import BadRequest, CloudError

    emulated = session.target.kind == "emulated"
    emulator = os.environ.get("STORAGE_EMULATOR_HOST") if emulated else None
    if spec.bucket is None or spec.allow_egress or (emulated and not emulator):
        return None
    name = spec.bucket.removeprefix("gs://").partition("/")[0]
    try:
        found = storage.bucket(name, emulator=emulator)
        why = f"{emulator} does not say where" if emulator else "its description names no place"
    except CloudError as error:
        if isinstance(error, BadRequest):
            raise  # no such bucket: the artifacts would go nowhere
        found, why = None, error.message
    if found is None:
        unknown = f"where gs://{name} lies is not known ({why}); if in another region, copying costs {egress.ANYWHERE}"
        session.reporter.notice("bucket", unknown)
    return found
