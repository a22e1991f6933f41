"""The bucket of a job on a cluster: code that no ConfigMap holds goes up, results come down, and the code is deleted again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from orchestrator.errors import CloudError, UserError
from orchestrator.places import google
from orchestrator.places.gke.starts import Starts, restarts_of
from orchestrator.places.preparation import buckets
from orchestrator.text import names
from orchestrator.text.units import format_size

if TYPE_CHECKING:
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.places.desk import Desk, Teller
    from orchestrator.places.gke.pods.index import ReadResult
    from orchestrator.places.gke.preparation import CodeArchive
    from orchestrator.places.google.objects import Objects
    from orchestrator.promise.lease.run_and_attempt import RunRecord

EMULATOR = "STORAGE_EMULATOR_HOST"
DELETE_S = 10.0  # a try: the commands that delete have other things to do


def variables(spec: JobSpec) -> dict[str, str]:
    """Return what pods need to know besides their own credentials: where an emulator of Cloud Storage answers, if any."""
    host = os.environ.get(EMULATOR)
    return {EMULATOR: host} if (spec.bucket is not None or spec.data) and host else {}


def check(desk: Desk, spec: JobSpec, location: str | None) -> None:
    """Raise UserError for a bucket in another region than the cluster, unless the job accepts that; BadRequest if it is none.

    `location`: a zone or a region; None: where the cluster is, is not known.
    """
    found = buckets.buckets_of(desk, spec, os.environ.get(EMULATOR) or None)
    if location is None:
        return
    region = location.rpartition("-")[0] if names.zone_problem(location) is None else location
    if problem := next(filter(None, (each.problem_in(region) for each in found)), None):
        raise UserError(problem, hint="`allow_egress: true` in the job accepts that")


def upload(reporter: Teller, archive: CodeArchive, url: str | None) -> None:
    """Store the code of a run where its pods read it. Raises CloudError; nothing was created then."""
    assert url is not None, "what is to be uploaded has a place"
    reporter.progress("ship", f"{format_size(archive.size_bytes)} to {url}")
    _objects().upload(url, archive.path)
    reporter.notice("ship", f"{format_size(archive.size_bytes)} of code in {url}, deleted when the run ends")


def remove_code(reporter: Teller, run: RunRecord) -> None:
    """Delete the code that was uploaded for a run, if any was. A failure is reported: a lifecycle rule of the bucket helps."""
    url = run.spec.cluster.code_object
    if url is None:
        return
    try:
        _objects(DELETE_S).delete(url)
    except CloudError as error:
        reporter.notice("warning", f"{url} is not deleted: {error.message}")


def results(run: RunRecord) -> ReadResult | None:
    """Return what reads the results that the pods of a run have sent to its bucket; None for a run without one."""
    if not run.spec.bucket:
        return None
    objects, place = _objects(), f"{run.spec.bucket}/{run.id}"
    return lambda worker, path: objects.download(f"{place}/worker{worker}/{path}")


def starts(run: RunRecord) -> Starts | None:
    """Return what reads how often the cluster has started the job of a run; None where it may start it once."""
    if not run.spec.bucket or not (most := 1 + restarts_of(run)) > 1:
        return None
    objects, place = _objects(), f"{run.spec.bucket}/{run.id}"
    saved = buckets.saved_of(run.cloud, run.spec.bucket, run.id)
    return Starts(most, lambda number: objects.download(f"{place}/attempts/{number}.json"), saved)


def _objects(timeout_s: float | None = None) -> Objects:
    emulator = os.environ.get(EMULATOR) or None
    return google.objects.Objects(emulator=emulator, timeout_s=timeout_s or google.objects.TIMEOUT_S)
