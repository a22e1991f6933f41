"""A job as the objects of a cluster, the same for `run`, which submits them, and for `export`, which prints them as YAML.

Before the objects come which cluster, nodes and image the job gets, by its file and the settings; what it ships, as one
archive; and what its pods run (scripts, variables, code and agent), as `vm.pod.pod` reads it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import yaml

from orchestrator import job as job_file
from orchestrator.capacity.provisioning import Provisioning
from orchestrator.catalog import gke
from orchestrator.errors import JobSpecError
from orchestrator.hosts.shipping.shipment import Shipment
from orchestrator.hosts.ssh import agent
from orchestrator.job import cluster as settings
from orchestrator.job.cluster import ClusterTarget, ClusterWish
from orchestrator.job.rules.env import secret_sources
from orchestrator.places.gke.objects import manifest
from orchestrator.places.gke.objects.manifest import (
    INLINE_BYTES,
    TOO_LARGE,
    ClusterJob,
    ClusterShape,
    PodProgram,
    deadlines,
    room_for_code,
)
from orchestrator.places.gke.objects.nodes import Capacity
from orchestrator.places.preparation import code, records, resolving
from orchestrator.places.preparation.code import told_shipment
from orchestrator.places.preparation.phases import pod_scripts, saved_to
from orchestrator.places.preparation.resolving import Resolved
from orchestrator.promise.lease import periods
from orchestrator.text import artifacts, names
from orchestrator.text.units import format_size

if TYPE_CHECKING:
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.places.desk import Desk


def target_of(spec: JobSpec, of_settings: ClusterWish) -> ClusterTarget:
    """Return the target of a job. Raises JobSpecError for what neither the job nor the settings say."""
    wish = spec.gke.wish.over(of_settings)
    only = spec.tpu.alternatives[0]
    reserved = only.effective_provisioning is Provisioning.RESERVED
    found = settings.problems(wish, reserved=reserved, together=only.queue)
    mistakes = [spec.mistake(("gke", key), why) for key, why in found]
    if mistakes:
        raise JobSpecError(mistakes, hint="docs/job-file.md has the keys of `gke:`")
    return settings.target_of(wish, reserved=reserved)


def shape_of(spec: JobSpec, of_settings: ClusterWish) -> ClusterShape:
    """Return what a job asks a cluster for. Raises JobSpecError as `target_of` does."""
    target, only = target_of(spec, of_settings), spec.tpu.alternatives[0]
    found = gke.lookup(only.accelerator, target.machine_type)
    assert found is not None, "the rules of the job file have checked the type and the machine type"
    return ClusterShape(
        target=target,
        slice=found,
        slices=spec.tpu.slices,
        capacity=Capacity(only.effective_provisioning, together=only.queue, reservation=target.reservation),
        deadlines=deadlines(
            spec.limits.max_duration_s,
            wait_s=spec.tpu.wait,
            linger_s=spec.limits.linger,
            queued=target.queue is not None,
            starts=1 + restarts_of(spec),
            grace_s=target.grace,
        ),
    )


def restarts_of(spec: JobSpec) -> int:
    """Return how often the cluster may start the job again."""
    return spec.max_restarts if spec.on_preemption == "restart" else 0


LEVEL = 6  # of gzip: the next ones save a percent, and take twice as long


@dataclass(frozen=True, slots=True)
class CodeArchive:
    """A .tar.gz in a file of this machine, and its hash."""

    path: Path
    sha256: str
    size_bytes: int


def pack_code(shipment: Shipment, into: Path) -> CodeArchive:
    """Write the archive to this file: sorted paths, no times, no owners, and of the modes whether a file can be executed."""
    with (
        into.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        _add(archive, shipment)
    with into.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    return CodeArchive(into, digest, into.stat().st_size)


def _add(archive: tarfile.TarFile, shipment: Shipment) -> None:
    manifest = shipment.manifest
    for path in manifest.directories:
        archive.addfile(_member(path, tarfile.DIRTYPE, 0o755))
    for each in manifest.files:
        member = _member(each.path, tarfile.REGTYPE, 0o755 if each.executable else 0o644)
        member.size = each.size_bytes
        # Nothing is kept of an empty file.
        with shipment.contents[each.sha256].open("rb") if each.size_bytes else io.BytesIO() as content:
            archive.addfile(member, content)
    for path, leads_to in manifest.links:
        member = _member(path, tarfile.SYMTYPE, 0o777)
        member.linkname = leads_to
        archive.addfile(member)


def _member(path: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)  # owner 0, time 0
    member.type, member.mode = kind, mode
    return member


SCHEMA = 1
# A pod that failed since another one is gone waits for that to end the job: the other has the grace of the job, and then as
# long to send its results; of a node that is lost, the control plane learns within a minute.
HOLD_S = 120.0
COORDINATOR_S = 60.0  # pods of a job start within less, and a job whose pods do not meet waits for it in vain


def _request(
    spec: JobSpec, chosen: Resolved, shape: ClusterShape, shipped: Shipment | None, run: str, node: str
) -> dict[str, Any]:
    """Return what the pods are told of the job itself. `node`: the name of the JobSet."""
    restarts = restarts_of(spec)
    scripts = pod_scripts(
        spec,
        code_id=shipped.id if shipped else None,
        environment=chosen.environment,
        saved=saved_to(spec, run, periods.GOOGLE.save_s) if restarts else None,
        node=node,
    )
    return {
        "schema": SCHEMA,
        "run": run,
        "max_restarts": restarts,
        "hold_s": HOLD_S + shape.target.grace if restarts and shape.pods > 1 else 0,
        "grace_s": shape.target.grace,
        "phases": [{"name": name, "script": script} for name, script in scripts],
        "env": {"TPU_NAME": node, "TPUJOB_TOPOLOGY": shape.slice.topology},
        "code_sha256": None,
        "code_object": None,
        "artifacts": list(artifacts.patterns(spec.artifacts)),
        "beside": artifacts.takes_all(spec.artifacts),
        "inline_bytes": INLINE_BYTES,
        "bucket": spec.bucket,
        "max_duration_s": spec.limits.max_duration_s,
        "max_log": spec.limits.max_log,
        "coordinator_s": COORDINATOR_S,
        "stall_s": spec.limits.stall,
    }


def _program(
    spec: JobSpec, request: dict[str, Any], archive: CodeArchive | None, secrets: Mapping[str, str]
) -> tuple[PodProgram, CodeArchive | None]:
    """Return the program, and the code if it is to be uploaded to the request's `code_object` before anything is created.

    Raises JobSpecError for code that fits nowhere.
    """
    packed = agent.pod_archive()
    room = room_for_code(request, packed)
    if archive is None or archive.size_bytes <= room:
        return PodProgram(request, packed, None if archive is None else archive.path.read_bytes(), secrets), None
    if spec.bucket is None:
        raise _too_large(spec, format_size(archive.size_bytes), format_size(max(room, 0)))
    at = f"{spec.bucket.rstrip('/')}/{request['run']}/code.tar.gz"
    request["code_object"] = request["record"]["run"]["spec"]["cluster"]["code_object"] = at
    return PodProgram(request, packed, None, secrets), archive


def _too_large(spec: JobSpec, size: str, room: str) -> JobSpecError:
    is_sample = spec.code is None and spec.train is not None and spec.train.fallback == "sample"
    at = ("train", "fallback") if is_sample else ("code",)
    text = f"what is shipped takes {size} when packed, and the ConfigMap of a job has room for {room}"
    hint = "write `fallback: synthetic`, or name a `bucket:`, which takes code of any size" if is_sample else TOO_LARGE
    return JobSpecError([spec.mistake(at, text)], hint=hint)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job whose objects may be created, once `upload` is where the request of the program says (`code_object`)."""

    job: ClusterJob
    chosen: Resolved
    upload: CodeArchive | None = None  # as long as the stack of `prepare` is open
    shipment: Shipment | None = None  # of which the code was packed

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
    unset = {} if with_secrets else dict.fromkeys(secret_sources(spec.env), "")
    return job_file.job_spec.resolve_env(spec, {**os.environ, **unset})


def prepare(
    desk: Desk, spec: JobSpec, path: Path, *, run: str, lease_id: str, env: Mapping[str, str], stack: ExitStack
) -> Prepared:
    """Return the job as objects; the same for the same job, code, names and settings. Asks no cluster.

    `env`: the variables of the job, resolved. Raises JobSpecError and UserError for a job that cannot be run.
    """
    shape = shape_of(spec, desk.target.gke)
    code.check_directories(spec, path)
    shipment = told_shipment(desk, spec, path, stack)
    node = names.node_name(desk.owner, lease_id)
    chosen = resolving.resolve(desk, spec, path, env, resolving.pods_of(shape.target.image))
    scratch = Path(stack.enter_context(TemporaryDirectory(prefix="tpujob-code-")))
    archive = None if shipment is None else pack_code(shipment, scratch / "code.tar.gz")
    hidden = {name for name, value in spec.env.items() if secret_sources({name: value})}
    request = _request(spec, chosen, shape, shipment, run, node)
    request["env"] |= {name: value for name, value in env.items() if name not in hidden}
    request["code_sha256"] = archive and archive.sha256
    told = {key: value for key, value in records.values_of(spec).items() if key not in records.OF_THIS_MACHINE}
    phases = [each["name"] for each in request["phases"]]
    told["cluster"] = {"phases": phases, "pods": shape.pods, "code_object": None}
    record = {"id": run, "name": str(spec.name), "job_path": path.name, "spec": told}
    request["record"] = {"run": record, "attempt": f"{run}-1"}  # for machines without the ledger
    program, upload = _program(spec, request, archive, {name: env[name] for name in sorted(hidden)})
    labels = manifest.labels_of(lease_id=lease_id, owner=desk.owner, name=spec.name, run=run)
    asked = {each.name: getattr(shape, each.name) for each in fields(shape)}
    return Prepared(ClusterJob(**asked, name=node, labels=labels, program=program), chosen, upload, shipment)


# Readers differ in what is a number (`1e3`, `0x1f`, `1_000`, `12:30`) or a truth value (`y`, `on`): such text is quoted.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*(:[A-Za-z0-9_./-]+)*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # a label that is written twice is the same value, not a reference


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else '"'
    if "\n" in text and not re.search(r"[^\n\x20-\x7e\xa0-\uffff]| \n", text):
        style = "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(documents: Iterable[Mapping[str, Any]], comment: Sequence[str] = ()) -> str:
    """Return the documents as YAML, each after `---`, below lines of comment."""
    head = "".join(f"# {line}\n" if line else "#\n" for line in comment)
    return head + yaml.dump_all(
        documents, Dumper=_Dumper, explicit_start=True, sort_keys=False, allow_unicode=True, width=2**20
    )
