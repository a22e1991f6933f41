"""`tpujob plan|export`: check a job and show what `run` would ask the cloud for, or print it as objects of Kubernetes."""

import json
from typing import Annotated

from orchestrator.api.jobs.planning import JobRequest, PlanPreview, environment, exported, parted, preview, read
from orchestrator.api.session.session import Session
from orchestrator.api.sweeps.plans import SweepPreview, on_slices
from orchestrator.api.sweeps.plans import preview as preview_sweep
from orchestrator.cli.console import console, emit_json, open_session
from orchestrator.cli.options import Cloud, JobArguments, Json, KeepOnFailure, Option, Project
from orchestrator.cli.tables import print_table
from orchestrator.errors import JobSpecError, UserError


def plan(
    job: JobArguments,
    keep_on_failure: KeepOnFailure = None,
    as_json: Json = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Check a job and show what `run` would do: candidates, prices, the exact request. Creates nothing."""
    session = open_session(cloud, project)
    made = _preview(session, job.request(keep_on_failure))
    if as_json:
        emit_json(made.shape)
    elif isinstance(made, SweepPreview):
        _print_sweep(session, made)
    else:
        _print(session, made)


def _preview(session: Session, request: JobRequest) -> PlanPreview | SweepPreview:
    try:
        found, path = read(request)
    except JobSpecError as error:
        error.hint = None  # it names `tpujob plan`
        raise
    spec, sweep = parted(found)
    if sweep is not None:
        return preview_sweep(session, sweep, path)
    assert spec is not None
    environment(spec, session.reporter)
    return preview(session, spec, path)


def _print_sweep(session: Session, made: SweepPreview) -> None:
    if any(made.plans.values()) and on_slices(made.sweep):
        session.announce()
    for note in made.notes:
        console().notice("plan", note)
    print_table(made.table.head, made.table.rows, right=made.table.right, shortens=(1,))


def _print(session: Session, preview: PlanPreview) -> None:
    if preview.requests and preview.table is not None:  # a job on a cluster names that itself
        session.announce()
    for note in preview.notes:
        console().notice("plan", note)
    if preview.table is not None:
        rows, optional = preview.table.rows, [4]
        if len(reasons := {row[7] for row in rows}) == 1 < len(rows):
            console().notice("plan", f"why these {len(rows)}: {reasons.pop()}")
            optional = [7, 4]
        print_table(preview.table.head, rows, right=preview.table.right, optional=optional, wraps=(7, 3))
    if preview.requests:
        first, *others = preview.requests
        body = "; `--json` has its body, and the others" if others else "; `--json` has its body"
        console().notice("request", f"{first['method']} {first['url']}{body}")


def export(
    job: JobArguments,
    to: Annotated[str, Option("--to", metavar="jobset", help="What to print; there is nothing but jobset.")] = "jobset",
    image: Annotated[str | None, Option(metavar="IMAGE", help="The container image: the key gke.image.")] = None,
    namespace: Annotated[str | None, Option(metavar="NAME", help="The key gke.namespace.")] = None,
    queue: Annotated[str | None, Option(metavar="NAME", help="The LocalQueue of Kueue: the key gke.queue.")] = None,
    with_secrets: Annotated[
        bool, Option("--with-secrets", help="Print the Secret, too, with the values of your variables.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the objects that `run` would submit to a cluster: JobSet, ConfigMap and Secret. Creates nothing.

    They work by themselves: `tpujob export job.yaml | kubectl apply --server-side -f -`. Each call makes new names. A job with
    `on: tpu` is exported as one with `on: gke`; what a cluster cannot do is refused by name.
    """
    if to != "jobset":
        raise UserError(f"--to {to}: it is `jobset`")
    session = open_session()
    keys = {"image": image, "namespace": namespace, "queue": queue}
    found = exported(session, job.request(), with_secrets=with_secrets, **keys)
    # As it is, for another program: it has no control characters, and secrets in it are meant to be there.
    console().out(json.dumps(found.as_json(), indent=2) if as_json else str(found).removesuffix("\n"))
