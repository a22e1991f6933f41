"""What `data:` of a job brings, looked at from here before anything is created: is it there, and how much is it?

The workers fetch it with their own account, so what this machine may not see is reported, and refuses nothing.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from orchestrator.core.text.sizes import format_size
from orchestrator.errors import CloudError, JobSpecError
from orchestrator.places import is_emulated, traits_on
from orchestrator.places.preparation import checks
from orchestrator.vm import data_tree

if TYPE_CHECKING:
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.places.desk import Desk
    from orchestrator.places.google.objects import Objects

TRY_S, LOOK_S = 10.0, 5.0  # a try without a byte; how long pages are asked for


def lines_of(desk: Desk, spec: JobSpec) -> list[str]:
    """Return what each worker fetches, in sentences. Raises JobSpecError, with a line, for what is not there."""
    if not spec.data:
        return []
    from orchestrator.places.google.objects import Objects

    if traits_on(spec.on).vms:
        checks.check_bucket(spec, desk.target.kind, os.environ)
    may_be_emulated = traits_on(spec.on).made_with_job or is_emulated(desk.target.kind)
    emulator = os.environ.get("STORAGE_EMULATOR_HOST") if may_be_emulated else None
    return [_line(spec, key, url, Objects(emulator=emulator, timeout_s=TRY_S)) for key, url in spec.data.items()]


def _line(spec: JobSpec, key: str, url: str, objects: Objects) -> str:
    from orchestrator.places.google.error_translation import NotFound

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
        data_tree.files(sizes, prefix)
    except NotFound:
        raise JobSpecError([spec.mistake(("data", key), f"there is no bucket gs://{bucket}")]) from None
    except data_tree.Unfit as error:
        raise JobSpecError([spec.mistake(("data", key), f"{url} has {error}")]) from None
    except CloudError as error:
        return f"data: {key} is {url}, which cannot be looked at from here ({error.message}); the workers fetch it themselves"
    if not sizes:
        raise JobSpecError([spec.mistake(("data", key), f"gs://{bucket} has no object `{path}`, and none below it")])
    size = format_size(sum(sizes.values()))
    return f"data: {key} is {url}: {more}{len(sizes):,} object{'s'[: len(sizes) != 1]}, {size}, fetched by each worker"
