"""The scripts of a job's phases on every worker, with the environment that they make and use, and the variables that they get.

The variables are TPU_NAME, TPUJOB_*, PJRT_DEVICE: docs/job-file.md lists them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator import catalog
from orchestrator.hosts.fleet.crew import StartRequest
from orchestrator.hosts.ssh import agent
from orchestrator.hosts.transfer.collect import MOST_BESIDE
from orchestrator.places.place import Phase
from orchestrator.places.preparation.records import record_of
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.lease.periods import GOOGLE, emulated
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.text import artifacts, scripts
from orchestrator.text.scripts import Environment, of_training
from orchestrator.vm.buckets import manifest

if TYPE_CHECKING:
    from orchestrator.hosts.shipping.shipment import Shipment
    from orchestrator.job.job_spec import JobSpec


@dataclass(frozen=True, slots=True)
class Emulation:
    """The emulated cloud: so many processes stand for the cores of a host, or as many as the host has cores."""

    cores: int
    chip_s: float = emulated().chip_s


def worker_environment(
    run: RunRecord,
    attempt: Attempt,
    lease: Lease,
    index: int,
    hosts: Sequence[str],
    coordinator: str,
    emulation: Emulation | None,
) -> dict[str, str]:
    """Return the variables that tpujob sets for one worker (docs/job-file.md)."""
    variables = {
        "TPU_NAME": lease.name.node,
        "TPUJOB_RUN": run.id,
        "TPUJOB_ATTEMPT": attempt.id,
        "TPUJOB_WORKER": str(index),
        "TPUJOB_WORKERS": str(len(hosts)),
        "TPUJOB_HOSTS": ",".join(hosts),
        "TPUJOB_COORDINATOR": coordinator,
        "PJRT_DEVICE": "CPU" if emulation else "TPU",
    }
    kind = catalog.lookup(lease.accelerator_type)
    if kind is not None:
        variables["TPUJOB_TOPOLOGY"] = kind.topology
    if emulation is not None:
        cores = min(emulation.cores, kind.cores_per_host) if kind is not None else emulation.cores
        variables["TPUJOB_EMULATED_CORES"] = str(cores)
    return variables


# What the image of a pod has to have for a training with PyTorch, by its backend.
_TORCH: dict[str, tuple[str, ...]] = dict.fromkeys(("xla", "auto"), ("torch", "torch_xla", "numpy"))
_TORCH |= dict.fromkeys(("cuda", "cpu"), ("torch", "numpy"))
_TORCH["tpu"] = ("torch", "torch_tpu", "numpy")

JAX_CACHE = "JAX_COMPILATION_CACHE_DIR"  # which the supervisor of a worker sets

# Where `data:` is kept for later runs: on the disk of the job's directory, which gets links to it. Of a pod: beside that.
WORKER_DATA, POD_DATA = "~/tpujob/data", "../../data"


def phases(
    spec: JobSpec,
    run: RunRecord,
    *,
    shipment: Shipment | None,
    env: Mapping[str, str],
    emulation: Emulation | None,
    environment: Environment | None,
    save_s: float | None = None,
) -> tuple[Phase, ...]:
    """Return `setup` (if there is anything to set up) and `main`, each the same script on every worker.

    `environment`: `environment_of` the job, with its lock. `save_s`: the workers save what the job has written to its bucket at
    least that often.
    """
    setup, main = _texts(spec, shipment.id if shipment else None, emulation, environment)

    def script(phase: str, text: str, bucket: str | None = None) -> PhaseScript:
        shipped = shipment.id if shipment else None
        return PhaseScript(phase, text, run, env, shipped, emulation, bucket, artifacts.patterns(spec.artifacts), saved)

    saved = None if save_s is None else saved_to(spec, run.id, save_s)
    first = [Phase("setup", AttemptState.SETUP, script("setup", setup))] if setup or saved is not None else []
    if spec.bucket is not None and _has_jax(spec, environment) and JAX_CACHE not in env:
        fetch, send = (agent.command("jax_cache", way, f"{spec.bucket}/jax") for way in ("fetch", "send"))
        main = scripts.with_jax_cache(main, fetch, send)
    return (*first, Phase("main", AttemptState.RUNNING, script("main", main, spec.bucket)))


def _has_jax(spec: JobSpec, environment: Environment | None) -> bool:
    """Return whether the job installs JAX, itself or for another package."""
    installed = "" if environment is None else environment.lock + environment.requirements
    return re.search(r"^jax\b", installed, re.M | re.I) is not None or "jax" in " ".join(spec.setup or ())


def saved_to(spec: JobSpec, run: str, every_s: float) -> SavedTo | None:
    """Return where the workers save the work of a job; None for one without a bucket."""
    beside = MOST_BESIDE if artifacts.takes_all(spec.artifacts) else None
    return None if spec.bucket is None else SavedTo(manifest.url_of(spec.bucket, run), every_s, beside)


def pod_scripts(
    spec: JobSpec, *, code_id: str | None, environment: Environment | None, saved: SavedTo | None = None, node: str = ""
) -> tuple[tuple[str, str], ...]:
    """Return the same phases for the pods of a cluster, as (name, script).

    An image that has what a training needs is used as it is; in another one, setup installs it. `code_id`: of what is shipped.
    `saved`: where they save the work of a job that may be restarted, `node` being its JobSet.
    """
    setup, main = _texts(spec, code_id, None, environment, in_pod=True)
    if saved is not None:
        patterns = artifacts.patterns(spec.artifacts)
        setup, main = (_saving(*each, saved, node, patterns) for each in (("setup", setup), ("main", main)))
    return (*((("setup", setup),) if setup else ()), ("main", main))


def _texts(
    spec: JobSpec,
    code_id: str | None,
    emulation: Emulation | None,
    environment: Environment | None,
    *,
    in_pod: bool = False,
) -> tuple[str, str]:
    """Return the scripts of both phases; that of setup is empty if there is nothing to set up."""
    if environment is not None and environment.uses_code:
        environment = replace(environment, code_sha256=code_id)
    setup = scripts.chain(spec.setup) if spec.setup else ""
    if spec.train is not None:
        main = scripts.train_main("python3")
    else:
        main = f"{spec.command}\n" if emulation is None else scripts.announce_lent_device(f"{spec.command}\n")

    if spec.tpu_metrics:  # 3 is the log of the job; an emulated worker has chips only where the emulator was told so
        look = f"{agent.command('chips', f'{emulation.chip_s if emulation else GOOGLE.chip_s:g}')} 3>&1"
        main = scripts.beside(main, f'[ ! -d "${{TPUJOB_EMULATED_CHIPS:-}}" ] || {look}' if emulation else look)
    if emulation is None and spec.tpu_metrics:
        main = scripts.beside(main, agent.command_of_the_job("tpu_metrics", '"$TPUJOB_ARTIFACTS"'))
    main = _with_host(main, spec, emulation)
    asks = spec.requirements is not None or spec.python is not None
    if environment is not None and in_pod and spec.train is not None and not asks:
        made = scripts.unless_python_has(_TORCH[spec.train.backend], environment.setup(agent.command("environment")))
        setup = made + (environment.use_if_made(setup) if setup else "")
        main = environment.use_if_made(main)
    elif environment is not None:
        setup = environment.setup(agent.command("environment")) + (environment.use(setup) if setup else "")
        main = environment.use(main)
    elif trains_with_torch(spec):
        setup, main = scripts.in_lent_environment(setup) if setup else "", scripts.in_lent_environment(main)
    if spec.data:
        setup = scripts.with_data(setup, spec.data, agent.command("data"), POD_DATA if in_pod else WORKER_DATA)
    return setup, main


FIRST_WORKER = '[ "$TPUJOB_WORKER" != 0 ] ||'
HOST_EVERY_S = 5


def _with_host(main: str, spec: JobSpec, emulation: Emulation | None) -> str:
    """Return the script with what says which packages the job has, and what its host does, beside it."""
    listing = agent.command_of_the_job("job_packages", '"$TPUJOB_ARTIFACTS"')
    sampling = f'{agent.command("host_metrics")} "$TPUJOB_ARTIFACTS" {HOST_EVERY_S}'
    if not spec.tpu_metrics:
        return main
    main = scripts.beside(main, f"{FIRST_WORKER} {listing}")
    # All emulated workers are on one machine.
    return scripts.beside(main, sampling if emulation is None else f"{FIRST_WORKER} {sampling}")


def environment_of(spec: JobSpec, asked: Environment, emulation: Emulation | None) -> Environment | None:
    """Return the environment that the job needs on a worker; None where it needs none but those that are there.

    `asked`: what its `requirements:` and `python:` say.
    """
    asked = replace(asked, install_uv=True) if emulation is None else asked.without_tpu()
    if spec.train is None or not trains_with_torch(spec):
        return asked if asked.is_asked_for else None
    if emulation is None:
        return of_training(spec.train.backend, asked)
    return replace(asked, base=scripts.LENT_PYTHON) if asked.is_asked_for else None


def trains_with_torch(spec: JobSpec) -> bool:
    """Return whether the job is a training with PyTorch."""
    return spec.train is not None and spec.train.backend != "none"


@dataclass(frozen=True, slots=True)
class SavedTo:
    """Where the workers save the work of the job. `beside_bytes`: so much of what lies beside the artifacts, None: nothing."""

    url: str  # gs://…
    every_s: float
    beside_bytes: int | None


@dataclass(frozen=True, slots=True)
class PhaseScript:
    """The script of one phase. Called with the addresses of the workers, it returns the request that starts it."""

    phase: str
    text: str
    run: RunRecord
    env: Mapping[str, str]
    manifest: str | None  # of what is shipped
    emulation: Emulation | None
    bucket: str | None  # upload the artifacts there after the script
    artifacts: tuple[str, ...]
    saved: SavedTo | None = None

    def __call__(self, attempt: Attempt, lease: Lease | None, hosts: Sequence[str], coordinator: str) -> StartRequest:
        assert lease is not None
        text = self.text
        if self.saved is not None:
            text = _saving(self.phase, text, self.saved, lease.name.node, self.artifacts)
        return StartRequest(
            attempt=attempt.id,
            phase=self.phase,
            manifest=self.manifest,
            max_log=self.run.spec.limits.max_log,
            record=record_of(self.run, attempt) if self.phase == "main" else None,
            script=text if self.bucket is None else scripts.with_upload(text, self._upload(attempt)),
            env_by_worker=[
                {**worker_environment(self.run, attempt, lease, index, hosts, coordinator, self.emulation), **self.env}
                for index in range(len(hosts))
            ],
        )

    def _upload(self, attempt: Attempt) -> str:
        command = agent.command("upload", attempt.id, f"{self.bucket}/{self.run.id}", json.dumps(self.artifacts))
        return f'{command} "$TPUJOB_WORKER"'


def _saving(phase: str, text: str, to: SavedTo, node: str, patterns: tuple[str, ...]) -> str:
    """Return the script with what fetches the saved work before the setup, or what saves it beside the job."""
    if phase == "setup":
        return f"( {agent.command('restore_work', node, to.url)} ) || exit\n{text}"
    wanted = json.dumps({"patterns": patterns, "beside": to.beside_bytes})
    return scripts.beside(text, f"{agent.command('save_work', node, to.url, wanted, f'{to.every_s:g}')} 3>&1")
