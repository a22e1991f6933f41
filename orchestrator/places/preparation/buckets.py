"""The buckets of a job, and what `data:` brings from them, looked at from here before anything is created.

In which region is each bucket? Is the data there, and how much is it? The workers fetch it with their own account, so what this
machine may not see is reported, and refuses nothing.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.capacity import egress
from orchestrator.errors import BadRequest, CloudError, JobSpecError, UserError
from orchestrator.places import google
from orchestrator.places.preparation import code
from orchestrator.promise.lease.run_and_attempt import SavedState
from orchestrator.text.names import is_run_id
from orchestrator.text.units import format_size
from orchestrator.traits import is_emulated, traits_of, traits_on
from orchestrator.vm.buckets import data_objects
from orchestrator.vm.buckets.manifest import NAME, Manifest, url_of

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
    objects = google.objects.Objects(emulator=emulator, timeout_s=TRY_S)
    return [_line(spec, key, url, objects) for key, url in spec.data.items()]


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


@dataclass(frozen=True, slots=True)
class SavedInBucket:
    """What the workers of a run saved to its bucket, read with the login of this machine. Nothing of it is trusted."""

    url: str  # gs://…/RUN/saved
    emulator: str | None

    def __call__(self) -> SavedState:
        """Return the newest complete copy: without files if there is none, and without a time if this machine cannot look."""
        try:
            return self.state(self.manifest())
        except CloudError:
            return SavedState(url=self.url)

    def state(self, found: Manifest | None) -> SavedState:
        """Return what the newest copy of the manifest has."""
        if found is None or not found.copies:
            return SavedState()
        copy = found.copies[0]
        about = (copy.files, copy.size_bytes, copy.has_checkpoint, copy.step, copy.metrics_step)
        return SavedState(*about, url=self.url, at=copy.at)

    def manifest(self) -> Manifest | None:
        """Return the manifest; None if nothing was ever saved. Raises CloudErrors, BadRequest for one that cannot be read."""
        try:
            return Manifest.of_text(b"".join(self._objects().download(f"{self.url}/{NAME}")))
        except google.error_translation.NotFound:
            return None
        except ValueError as error:
            raise BadRequest(f"the manifest in {self.url} cannot be read: {error}") from error

    def delete(self) -> None:
        """Delete all of it. What this machine may not delete stays."""
        bucket = self.url[: self.url.index("/", len("gs://"))]
        with contextlib.suppress(CloudError):
            for each in self._objects().list(f"{self.url}/"):
                self._objects().delete(f"{bucket}/{each.name}")

    def _objects(self) -> Objects:
        return google.objects.Objects(emulator=self.emulator, timeout_s=TRY_S)


def saves(spec: JobSpec) -> bool:
    """Return whether the workers of the job save its work to its bucket."""
    return spec.bucket is not None and spec.on_preemption == "restart"


def saving_line(spec: JobSpec) -> str:
    """Return where the workers save the work of the job, and what they need for it."""
    to = url_of(str(spec.bucket), "RUN")
    return f"the workers save the work to {to}: their service account needs roles/storage.objectUser on that bucket"


def resumable(desk: Desk, spec: JobSpec, run: str) -> tuple[int, SavedState]:
    """Return the last attempt that saved the work of this run, and what it saved. Raises UserError, and CloudErrors."""
    there = saved_of(desk.target.kind, str(spec.bucket), run)
    found = there.manifest() if is_run_id(run) else None
    if found is None:
        raise UserError(f"nothing is saved in {there.url}", hint="name a run by its id, and the job with its `bucket:`")
    return found.attempt, there.state(found)


def saved_of(cloud: str, bucket: str, run: str) -> SavedInBucket:
    """Return what is saved of a run. `bucket`: as in its job file."""
    may_be_emulated = traits_of(cloud).made_with_job or is_emulated(cloud)
    emulator = os.environ.get("STORAGE_EMULATOR_HOST") if may_be_emulated else None
    return SavedInBucket(url_of(bucket, run), emulator)
