"""The buckets of a job, looked up before anything is created: in which region is each?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core.planning import egress

if TYPE_CHECKING:
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.core.planning.egress import Bucket
    from orchestrator.places.desk import Desk


def buckets_of(desk: Desk, spec: JobSpec, emulator: str | None) -> tuple[Bucket, ...]:
    """Return the job's buckets with their regions, as Cloud Storage or an emulator of it tells; none that no region excludes.

    Raises BadRequest if one is missing.
    """
    if spec.allow_egress:
        return ()
    names = [url.removeprefix("gs://").partition("/")[0] for url in (spec.bucket, *spec.data.values()) if url]
    found = [_described(desk, name, emulator) for name in dict.fromkeys(names)]
    return tuple(each for each in found if each is not None)


def _described(desk: Desk, name: str, emulator: str | None) -> Bucket | None:
    from orchestrator.errors import BadRequest, CloudError
    from orchestrator.places.google import storage

    try:
        found = storage.bucket(name, project=desk.target.project, emulator=emulator)
        why = f"{emulator} does not tell" if emulator else "its description names no region"
    except CloudError as error:
        if isinstance(error, BadRequest):
            raise  # no such bucket: the upload of the artifacts would fail
        found, why = None, error.message
    if found is None:
        unknown = f"the region of gs://{name} is unknown ({why}); copying from another region costs {egress.ANYWHERE}"
        desk.reporter.notice("bucket", unknown)
    return found
