"""A job as the objects of a cluster: one function for `run`, which submits them, and for `export`, which prints them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from orchestrator.core.text import names
from orchestrator.places.gke import targets
from orchestrator.places.gke.objects import manifest
from orchestrator.places.gke.objects.manifest import ClusterJob
from orchestrator.places.gke.pod_program import program_of
from orchestrator.places.preparation import checks
from orchestrator.places.preparation.code import told_shipment

if TYPE_CHECKING:
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.places.desk import Desk
    from orchestrator.places.gke.code import CodeArchive


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job whose objects may be created, once `upload` is where the request of the program says (`code_object`)."""

    job: ClusterJob
    upload: CodeArchive | None = None  # as long as the stack of `prepare` is open

    def documents(self) -> tuple[dict[str, Any], ...]:
        """Return the objects, the JobSet first. Raises UserError for what no object can hold."""
        return manifest.documents(self.job)

    @property
    def code_object(self) -> str | None:
        """Where `upload` goes: gs://BUCKET/NAME."""
        found = self.job.program.request["code_object"]
        return None if found is None else str(found)


def variables(spec: JobSpec, *, with_secrets: bool) -> dict[str, str]:
    """Return the job's variables, resolved; without `with_secrets`, those that hold secrets need not be set, and are empty.

    Raises JobSpecError if a variable is not set.
    """
    from orchestrator.core.jobfile import keys
    from orchestrator.core.jobfile.rules.env import secret_sources

    unset = {} if with_secrets else dict.fromkeys(secret_sources(spec.env), "")
    return keys.resolve_env(spec, {**os.environ, **unset})


def prepare(
    desk: Desk, spec: JobSpec, path: Path, *, run: str, lease_id: str, env: Mapping[str, str], stack: ExitStack
) -> Prepared:
    """Return the job as objects; the same for the same job, code, names and settings. Asks no cluster.

    `env`: the variables of the job, resolved. Raises JobSpecError and UserError for a job that cannot be run.
    """
    shape = targets.shape_of(spec, desk.target.gke)
    checks.check_directories(spec, path)
    shipment = told_shipment(desk, spec, path, stack)
    node = names.node_name(desk.owner, lease_id)
    program, upload = program_of(
        spec,
        path,
        run=run,
        node=node,
        topology=shape.slice.topology,
        peers_s=shape.deadlines.peers_s,
        env=env,
        shipment=shipment,
        scratch=Path(stack.enter_context(TemporaryDirectory(prefix="tpujob-code-"))),
    )
    job = ClusterJob(
        name=node,
        labels=manifest.labels_of(lease_id=lease_id, owner=desk.owner, name=spec.name, run=run),
        target=shape.target,
        slice=shape.slice,
        slices=shape.slices,
        capacity=shape.capacity,
        deadlines=shape.deadlines,
        program=program,
    )
    return Prepared(job, upload)
