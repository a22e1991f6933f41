"""`tpujob plan|export`: check a job and show what `run` would ask the cloud for, or print it as objects of Kubernetes."""

import json
from typing import Annotated

from orchestrator.api.command_line import CommandClient
from orchestrator.api.jobs.planning import Plan
from orchestrator.api.sweeps.plans import SweepPlan, on_slices
from orchestrator.cli.console.output import console, emit_json, open_client
from orchestrator.cli.console.tables import print_table
from orchestrator.cli.options import Cloud, JobArguments, Json, KeepOnFailure, Option, Project
from orchestrator.errors import JobSpecError, UserError


def plan(
    job: JobArguments,
    keep_on_failure: KeepOnFailure = None,
    as_json: Json = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Check a job and show what `run` would do: candidates, prices, the exact request. Creates nothing."""
    client = open_client(cloud, project)
    try:
        found = client.load(job.request(keep_on_failure))
    except JobSpecError as error:
        error.hint = None  # it names `tpujob plan`
        raise
    if found.is_sweep:
        of_sweep = client.plan_sweep(found)
        emit_json(of_sweep.shape) if as_json else _print_sweep(client, of_sweep)
    else:
        made = client.plan(found)
        emit_json(made.shape) if as_json else _print(client, made)


def _print_sweep(client: CommandClient, made: SweepPlan) -> None:
    if any(made.plans.values()) and on_slices(made.sweep):
        client.announce()
    for note in made.notes:
        console().notice("plan", note)
    print_table(made.table.head, made.table.rows, right=made.table.right, shortens=(1,))


def _print(client: CommandClient, preview: Plan) -> None:
    if preview.requests and preview.table is not None:  # a job on a cluster names that itself
        client.announce()
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

    They work by themselves: `tpujob export job.yaml | kubectl create -f -`. Each call makes new names. A job with
    `on: tpu` is exported as one with `on: gke`; what a cluster cannot do is refused by name.
    """
    if to != "jobset":
        raise UserError(f"--to {to}: it is `jobset`")
    keys = {"image": image, "namespace": namespace, "queue": queue}
    found = open_client().export_request(job.request(), with_secrets=with_secrets, **keys)
    # As it is, for another program: it has no control characters, and secrets in it are meant to be there.
    console().out(json.dumps(found.as_json(), indent=2) if as_json else str(found).removesuffix("\n"))
