"""What the pods of a job run: scripts, variables, code and agent, as `vm.pod` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.jobfile.rules.env import secret_sources
from orchestrator.core.text import artifacts
from orchestrator.core.text.sizes import format_size
from orchestrator.errors import JobSpecError
from orchestrator.places.gke.code import CodeArchive, pack_code
from orchestrator.places.gke.objects.program import TOO_LARGE, PodProgram, room_for_code
from orchestrator.places.preparation.phases import pod_scripts

if TYPE_CHECKING:
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.remote.shipping.shipment import Shipment

SCHEMA = 1
# Of results in the log of a pod, as base64 21 MiB. A node rotates a log of more than 10 MiB, looks every ten seconds, and lets
# the log of a container that has ended be: a command that is attached seldom loses any, and names what it loses.
INLINE_BYTES = 16 << 20


def program_of(
    spec: JobSpec,
    job_path: Path,
    *,
    run: str,
    node: str,
    topology: str,
    peers_s: float,
    env: Mapping[str, str],
    shipment: Shipment | None,
    scratch: Path,
) -> tuple[PodProgram, CodeArchive | None]:
    """Return the program, and the code if it is to be uploaded to the request's `code_object` before anything is created.

    `env`: the job's variables, with the values of secrets. `node`: the name of the JobSet. `peers_s`: how long a
    pod waits for the others. `scratch`: where the archive is
    written; the caller deletes it. Raises JobSpecError for code that fits nowhere.
    """
    from orchestrator.remote.ssh import agent

    archive = None if shipment is None else pack_code(shipment, scratch / "code.tar.gz")
    hidden = {name for name, value in spec.env.items() if secret_sources({name: value})}
    request: dict[str, Any] = {
        "schema": SCHEMA,
        "run": run,
        "attempt": f"{run}-1",
        "phases": [
            {"name": name, "script": script}
            for name, script in pod_scripts(spec, code_id=shipment.id if shipment else None, job_path=job_path)
        ],
        "env": {
            "TPU_NAME": node,
            "TPUJOB_TOPOLOGY": topology,
            **{name: value for name, value in env.items() if name not in hidden},
        },
        "code_sha256": None if archive is None else archive.sha256,
        "code_object": None,
        "artifacts": list(artifacts.patterns(spec.artifacts)),
        "beside": artifacts.takes_all(spec.artifacts),
        "inline_bytes": INLINE_BYTES,
        "bucket": spec.bucket,
        "max_duration_s": spec.limits.max_duration_s,
        "max_log": spec.limits.max_log,
        "peers_s": peers_s,
        "stall_s": spec.limits.stall,
    }
    packed = agent.pod_archive()
    secrets = {name: env[name] for name in sorted(hidden)}
    room = room_for_code(request, packed)
    if archive is None or archive.size_bytes <= room:
        return PodProgram(request, packed, None if archive is None else archive.path.read_bytes(), secrets), None
    if spec.bucket is None:
        raise _too_large(spec, format_size(archive.size_bytes), format_size(max(room, 0)))
    request["code_object"] = f"{spec.bucket.rstrip('/')}/{run}/code.tar.gz"
    return PodProgram(request, packed, None, secrets), archive


def _too_large(spec: JobSpec, size: str, room: str) -> JobSpecError:
    is_sample = spec.code is None and spec.train is not None and spec.train.fallback == "sample"
    at = ("train", "fallback") if is_sample else ("code",)
    text = f"what is shipped takes {size} when packed, and the ConfigMap of a job has room for {room}"
    hint = "write `fallback: synthetic`, or name a `bucket:`, which takes code of any size" if is_sample else TOO_LARGE
    return JobSpecError([spec.mistake(at, text)], hint=hint)
