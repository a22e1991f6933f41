"""`tpujob export`: a job as objects of Kubernetes."""

import json
from typing import Annotated

from orchestrator.cli.console import emit_data, open_session
from orchestrator.cli.options import JobArguments, Json, Option
from orchestrator.client.jobs.exporting import exported
from orchestrator.errors import UserError


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
    emit_data(json.dumps(found.as_json(), indent=2) if as_json else str(found))
