"""`tpujob export`: the objects that a run on a cluster would submit, as text. Nothing is sent, and no run begins."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.client.jobs import job_files
from orchestrator.core.text import names
from orchestrator.core.text.durations import format_duration
from orchestrator.errors import UserError
from orchestrator.places.gke.preparation import Prepared, prepare, variables

if TYPE_CHECKING:
    from orchestrator.client.jobs.job_files import JobRequest
    from orchestrator.client.session import Session
    from orchestrator.core.jobfile.keys import JobSpec

TO = "--to jobset"
# What only says where a VM is and how it is reached. The rest of what a cluster cannot do is refused, as with `on: gke`.
OF_A_VM = (("access",), ("tpu", "zone"), ("tpu", "runtime"), ("tpu", "order"))


@dataclass(frozen=True, slots=True, repr=False)
class Export:
    """The objects of one run that has not begun: a JobSet, a ConfigMap, and a Secret where it was asked for."""

    run: str
    documents: tuple[Mapping[str, Any], ...]
    comment: tuple[str, ...]  #: what to do with them, line by line

    def __str__(self) -> str:
        """The objects as YAML, below the comment."""
        from orchestrator.places.gke.objects.yaml_text import to_yaml

        return to_yaml(self.documents, self.comment)

    def as_json(self) -> dict[str, Any]:
        """The objects as one List, which kubectl takes; it refuses a bare array."""
        return {"apiVersion": "v1", "kind": "List", "items": list(self.documents)}

    def __repr__(self) -> str:
        return f"<export of run {self.run}: {len(self.documents)} objects>"


def exported(session: Session, job: JobRequest, *, with_secrets: bool = False, **gke: str | None) -> Export:
    """Return the objects of the job of a command, which may be one with `on: tpu`; see `export`.

    `gke`: keys of that name, from options of theirs. What is None is as the job and the settings say.
    """
    spec, path = _read(session, job, gke)
    return export(session, spec, path, with_secrets=with_secrets)


def export(session: Session, spec: JobSpec, path: Path, *, with_secrets: bool) -> Export:
    """Return the objects of a job with `on: gke`, under new ids. Asks no cluster.

    Without `with_secrets`, the Secret is left out, and your variables need not be set. Raises JobSpecError and UserError for a
    job that cannot be run on a cluster, and for code that only a run can upload.
    """
    if spec.on != "gke":
        raise UserError(
            f"{spec.name} has `on: {spec.on}`, and only a job on a cluster has objects there", hint="write `on: gke`"
        )
    for line in spec.warnings():
        session.reporter.notice("warning", line)
    env = variables(spec, with_secrets=with_secrets)
    run, lease_id = (names.new_run_id(secrets.randbits(names.RUN_BITS)) for _ in range(2))
    with ExitStack() as stack:
        made = prepare(session, spec, path, run=run, lease_id=lease_id, env=env, stack=stack)
        if made.upload is not None:
            raise UserError(
                f"the code goes to {made.code_object}, and an export uploads nothing",
                hint="`tpujob run` and `tpujob submit` do; or ship less than a ConfigMap holds",
            )
        documents = made.documents()
    if not with_secrets:
        documents = tuple(each for each in documents if each["kind"] != "Secret")
    return Export(run, documents, _comment(made, spec, path, with_secrets=with_secrets))


def _read(session: Session, job: JobRequest, gke: Mapping[str, str | None]) -> tuple[JobSpec, Path]:
    """Return the job, as one with `on: gke`. What is only of VMs is left out, and reported."""
    from orchestrator.core.jobfile.overrides import Override

    spec, path = _one_job(job)
    changes: list[Override] = []
    if spec.on != "gke":
        changes.append(Override(TO, ("on",), "gke"))
        for at in (each for each in OF_A_VM if _is_set(spec, each)):
            session.reporter.notice("export", f"{'.'.join(at)} has no use on a cluster, and is left out")
            changes.append(Override(TO, at, None))
    changes += [Override.key(f"--{key}", ("gke", key), value) for key, value in gke.items() if value is not None]
    return _one_job(replace(job, more=tuple(changes))) if changes else (spec, path)


def _one_job(request: JobRequest) -> tuple[JobSpec, Path]:
    from orchestrator.core.jobfile.keys import JobSpec

    found, path = job_files.read(request)
    if isinstance(found, JobSpec):
        return found, path
    raise UserError(
        f"{found.name} is a sweep of {len(found.variants)} jobs, where one is expected",
        hint="`tpujob run` runs its variants; `tpujob export` takes a file of one job",
    )


def _is_set(spec: JobSpec, at: tuple[str, ...]) -> bool:
    if len(at) == 1:
        return at[0] in spec.model_fields_set
    return any(at[1] in section.model_fields_set for section in (spec.tpu, *spec.tpu.any_of))


def _comment(made: Prepared, spec: JobSpec, path: Path, *, with_secrets: bool) -> tuple[str, ...]:
    job, of = made.job, made.job.slice
    label = f"{names.RUN}={job.labels[names.RUN]}"
    where = f"-n {job.target.namespace}"
    source = f" of {path}" if spec.file else ""
    slices = f"{job.slices} × {of.kind.name}" if job.slices > 1 else of.kind.name
    lines = [
        f"The job {spec.name}{source} on {slices}: {job.pods} pod{'s'[: job.pods != 1]} on {of.machine_type}, "
        f"of topology {of.topology}.",
        "Create it:  kubectl apply --server-side -f FILE   (a plain `apply` refuses large ConfigMaps)",
        f"Delete it:  kubectl delete jobset,configmap,secret {where} -l {label}",
        "The JobSet deletes itself some time after its end; the others have no owner here, and stay until then.",
        f"Its pods run for {format_duration(job.deadlines.pod_s)} at most, and the cluster ends the job "
        f"{format_duration(job.deadlines.job_s)} after {'its admission' if job.target.queue else 'its creation'}.",
    ]
    if job.program.secrets:
        names_of = ", ".join(sorted(job.program.secrets))
        how = "holds the values of" if with_secrets else "is not here, and its pods wait for it: it holds"
        more = "" if with_secrets else "; `--with-secrets` prints it"
        lines.append(f"The Secret {job.name} {how} {names_of}{more}.")
    return tuple(lines)
