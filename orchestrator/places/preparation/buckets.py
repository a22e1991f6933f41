"""The buckets of a job, and what `data:` brings from them, looked at from here before anything is created.

In which region is each bucket? Is the data there, and how much is it? The workers fetch it with their own account, so what this
machine may not see is reported, and refuses nothing.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from orchestrator.capacity import egress
from orchestrator.errors import BadRequest, CloudError, JobSpecError
from orchestrator.places import google
from orchestrator.places.preparation import code
from orchestrator.text.units import format_size
from orchestrator.traits import is_emulated, traits_on
from orchestrator.vm.buckets import data_objects

if TYPE_CHECKING:
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.places.desk import Desk
    from orchestrator.places.google.objects import Objects


def buckets_of(desk: Desk, spec: JobSpec, emulator: str | None) -> tuple[egress.Bucket, ...]:
    """Return the job's buckets with their regions, as Cloud Storage or an emulator of it tells; none that no region excludes.

    Raises BadRequest if one is missing.
    """
    if spec.allow_egress:
        return ()
    names = [url.removeprefix("gs://").partition("/")[0] for url in (spec.bucket, *spec.data.values()) if url]
    found = [_described(desk, name, emulator) for name in dict.fromkeys(names)]
    return tuple(each for each in found if each is not None)


def _described(desk: Desk, name: str, emulator: str | None) -> egress.Bucket | None:
    try:
        found = google.objects.bucket(name, project=desk.target.project, emulator=emulator)
        why = f"{emulator} does not tell" if emulator else "its description names no region"
    except CloudError as error:
        if isinstance(error, BadRequest):
            raise  # no such bucket: the upload of the artifacts would fail
        found, why = None, error.message
    if found is None:
        unknown = f"the region of gs://{name} is unknown ({why}); copying from another region costs {egress.ANYWHERE}"
        desk.reporter.notice("bucket", unknown)
    return found


TRY_S, LOOK_S = 10.0, 5.0  # a try without a byte; how long pages are asked for


def lines_of(desk: Desk, spec: JobSpec) -> list[str]:
    """Return what each worker fetches, in sentences. Raises JobSpecError, with a line, for what is not there."""
    if not spec.data:
        return []
    if traits_on(spec.on).vms:
        code.check_bucket(spec, desk.target.kind, os.environ)
    may_be_emulated = traits_on(spec.on).made_with_job or is_emulated(desk.target.kind)
    emulator = os.environ.get("STORAGE_EMULATOR_HOST") if may_be_emulated else None
    return [
        _line(spec, key, url, google.objects.Objects(emulator=emulator, timeout_s=TRY_S))
        for key, url in spec.data.items()
    ]


def _line(spec: JobSpec, key: str, url: str, objects: Objects) -> str:
    bucket, _, path = url.removeprefix("gs://").partition("/")
    below, until, more = path if path[-1:] in ("", "/") else f"{path}/", time.monotonic() + LOOK_S, ""
    found: dict[str, int] = {}
    try:
        exact = {each.name: each.size_bytes for each in next(objects.pages(url)) if each.name == path}
        for page in objects.pages(f"gs://{bucket}/{below}") if not any(exact.values()) else ():
            found |= {each.name: each.size_bytes for each in page}
            if time.monotonic() > until:
                more = "at least "
                break
        sizes, prefix = (found, below) if found else (exact, path[: path.rfind("/") + 1])
        data_objects.files(sizes, prefix)
    except google.error_translation.NotFound:
        raise JobSpecError([spec.mistake(("data", key), f"there is no bucket gs://{bucket}")]) from None
    except data_objects.Unfit as error:
        raise JobSpecError([spec.mistake(("data", key), f"{url} has {error}")]) from None
    except CloudError as error:
        return f"data: {key} is {url}, which cannot be looked at from here ({error.message}); the workers fetch it themselves"
    if not sizes:
        raise JobSpecError([spec.mistake(("data", key), f"gs://{bucket} has no object `{path}`, and none below it")])
    size = format_size(sum(sizes.values()))
    return f"data: {key} is {url}: {more}{len(sizes):,} object{'s'[: len(sizes) != 1]}, {size}, fetched by each worker"
