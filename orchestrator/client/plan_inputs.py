"""The inputs of a plan beside the shipped table: grants, the project's availability, the region of the bucket."""

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
    """Return the plan inputs. `spec`: the job, whose bucket is looked up; an unknown region is reported. Raises BadRequest."""
    return PlanInputs(
        grants=grants.remaining(session.target.grants, _used(session)),
        availability=availability.known(session),
        bucket=_bucket(session, spec) if spec is not None else None,
    )


def _used(session: Session) -> list[tuple[str, str, bool]]:
    """Return the slices in this machine's ledger. Those of other machines count when the cloud refuses a request."""
    return [(lease.accelerator_type, lease.name.zone, lease.spot) for lease in session.open_leases()]


def _bucket(session: Session, spec: JobSpec) -> Bucket | None:
    """Return the job's bucket and its region; None if no region is excluded. Raises BadRequest if there is no such bucket."""
    from orchestrator.clouds.google import storage
    from orchestrator.errors import BadRequest, CloudError

    emulated = session.target.kind == "emulated"
    emulator = os.environ.get("STORAGE_EMULATOR_HOST") if emulated else None
    if spec.bucket is None or spec.allow_egress or (emulated and not emulator):
        return None
    name = spec.bucket.removeprefix("gs://").partition("/")[0]
    try:
        found = storage.bucket(name, emulator=emulator)
        why = f"{emulator} does not tell" if emulator else "its description names no region"
    except CloudError as error:
        if isinstance(error, BadRequest):
            raise  # no such bucket: the upload of the artifacts would fail
        found, why = None, error.message
    if found is None:
        unknown = f"the region of gs://{name} is unknown ({why}); copying from another region costs {egress.ANYWHERE}"
        session.reporter.notice("bucket", unknown)
    return found
