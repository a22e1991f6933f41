"""From a job and a plan to a `JobRun`: checks, the run's record, code, scripts, environment. Sends nothing."""

from __future__ import annotations

import importlib.util
import json
import secrets
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.jobfile.rules.env import secret_sources
from orchestrator.core.lease.lease import HeldFor, Lease, LeaseState
from orchestrator.core.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.core.lease.timings import Timings
from orchestrator.core.planning.capacity_request import CapacityRequest
from orchestrator.core.planning.plan import Plan
from orchestrator.core.text import names, scripts
from orchestrator.core.text.environments import Environment, of_training
from orchestrator.engine.jobs import requirements
from orchestrator.engine.jobs.environment import Emulation, worker_environment
from orchestrator.engine.jobs.job_run import JobPhase, JobRun
from orchestrator.engine.jobs.lane import Lane
from orchestrator.engine.provision.drafts import Drafter
from orchestrator.errors import JobSpecError, UserError

OF_A_SWEEP = {"matrix", "variants", "parallel"}  # keys that no single job has

if TYPE_CHECKING:
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.core.jobfile.train_keys import TrainSection
    from orchestrator.remote.fleet.fleet import StartRequest
    from orchestrator.remote.shipping.shipment import Shipment
    from orchestrator.remote.shipping.tree import Source, Survey


def capacity_requests(spec: JobSpec, timings: Timings, *, keep_s: float = 0.0) -> tuple[CapacityRequest, ...]:
    """Return what the job asks for, one request for each alternative. `keep_s`: hold the slice so long after a success."""
    held_s = max(keep_s, spec.keep_on_failure or 0.0)
    return tuple(
        CapacityRequest(
            accelerator=one.accelerator,
            places=one.zone,
            runtime=one.runtime,
            provisioning=one.effective_provisioning,
            queue=one.queue,
            max_duration_s=spec.limits.max_duration_s + held_s,
            max_cost=spec.limits.max_cost,
            absent_s=timings.absent_s,
            unlisted=one.unlisted,
        )
        for one in spec.tpu.alternatives
    )


def fits(lease: Lease, plan: Plan, spec: JobSpec, now: float) -> bool:
    """Return whether the job can run on this held slice: it is READY, fits an alternative, and has time enough.

    One that is held because a job failed is for the next run of that job, which may use it up to its deadline.
    """
    retried = lease.held_for is HeldFor.FAILURE
    ends_at = lease.deadline if retried else lease.ends_at
    planned = {(one.accelerator_type, one.zone, one.spot) for one in plan.candidates}
    return (
        lease.state is LeaseState.READY
        and lease.hold_until is not None
        and (not retried or lease.handle == spec.name)
        and (lease.accelerator_type, lease.name.zone, lease.spot) in planned
        and any(
            lease.accelerator_type == one.accelerator
            and lease.spot == one.effective_provisioning.spot
            and one.runtime in (None, lease.runtime_version)
            for one in spec.tpu.alternatives
        )
        and ends_at - now > min(spec.limits.max_duration_s, 600)
    )


def check_local_training(backend: str = "xla", subject: str = "emulated workers train") -> None:
    """Raise UserError if this Python environment lacks what training on emulated workers, or `on: local`, imports."""
    if backend == "none":
        return
    wanted = ("torch", "numpy", *{"xla": ["torch_xla"], "tpu": ["torch_tpu"]}.get(backend, []))
    missing = [module for module in wanted if importlib.util.find_spec(module) is None]
    if missing:
        raise UserError(
            f"{subject} with the torch of this Python environment, which has no {' and no '.join(missing)}",
            hint="pip install 'tpujob[local]' (in a checkout: pip install -e '.[local]')",
        )


def survey(
    spec: JobSpec, job_path: Path, *, own_directories: Collection[Path] = (), emulated: bool = False
) -> Survey | None:
    """Return what the job ships: the payload with its configuration, `code:` and `data_dir:`; None when that is nothing.

    `own_directories` are tpujob's (runs, state) and not shipped. `emulated`: the job runs on the emulated cloud. Raises
    JobSpecError for a directory that is missing, and UserError for what is refused, such as a file that looks like a secret.
    """
    from orchestrator.remote.shipping import tree

    sources: dict[str, Source] = {}
    if spec.code is not None:
        sources["."] = tree.Source(_directory(spec, job_path, spec.code, ("code",)), gitignore=True)
    if spec.train is not None:
        sources |= _payload_files(spec.train, emulated=emulated)
        config = spec.train.model_dump(mode="json")
        if spec.train.data_dir is not None:
            # Data is seldom in git: a .gitignore says nothing about it.
            sources["data"] = tree.Source(_directory(spec, job_path, spec.train.data_dir, ("train", "data_dir")))
            config["data_dir"] = "data"
        sources["train.json"] = tree.Source(json.dumps(config, indent=1, sort_keys=True).encode())
    return tree.survey(sources, own_directories=own_directories) if sources else None


def _payload_files(train: TrainSection, *, emulated: bool) -> dict[str, Source]:
    """Return the payload's modules, and its sample of MNIST (1.3 MB) where the training may fall back on it."""
    from orchestrator.remote.shipping.tree import Source

    root = _payload_directory()
    files = list(root.rglob("*.py"))
    if (train.entry, train.dataset, train.data_dir) == (None, "mnist", None) and (emulated or train.fallback):
        files += [path for path in (root / "data" / "mnist_sample").iterdir() if path.is_file()]
    return {f"payload/{path.relative_to(root).as_posix()}": Source(path) for path in files}


def _payload_directory() -> Path:
    found = importlib.util.find_spec("payload")  # not imported: the client needs no torch
    if found is None or not found.submodule_search_locations:
        raise UserError("the payload package is not installed beside tpujob", hint="reinstall tpujob")
    return Path(found.submodule_search_locations[0])


def _directory(spec: JobSpec, job_path: Path, relative: str, field: tuple[str, ...]) -> Path:
    path = job_path.parent / relative
    if not path.is_dir():
        base = "the job file" if spec.file else f"{job_path.parent}"
        problem = spec.mistake(field, f"{path} is not a directory; paths are relative to {base}")
        hint = f"`tpujob plan {job_path}` checks a file without creating anything" if spec.file else None
        raise JobSpecError([problem], hint=hint)
    return path


def phases(
    spec: JobSpec,
    run: RunRecord,
    *,
    shipment: Shipment | None,
    env: Mapping[str, str],
    emulation: Emulation | None,
    job_path: Path,
) -> tuple[JobPhase, ...]:
    """Return `setup` (if there is anything to set up) and `main`, each the same script on every worker.

    Raises JobSpecError for `requirements:` that no worker can install.
    """
    asked = requirements.read(spec, job_path, code_sha256=shipment.id if shipment else None)
    setup = scripts.chain(spec.setup) if spec.setup else ""
    if spec.train is not None:
        main = scripts.train_main("python3")
    else:
        main = f"{spec.command}\n" if emulation is None else scripts.announce_lent_device(f"{spec.command}\n")
    environment = _environment(spec, asked, emulation)
    if environment is not None:
        from orchestrator.remote.ssh import agent

        setup = environment.setup(agent.command("environment")) + (environment.use(setup) if setup else "")
        main = environment.use(main)
    elif _trains_with_torch(spec):
        setup, main = scripts.in_lent_environment(setup) if setup else "", scripts.in_lent_environment(main)

    def script(phase: str, text: str, bucket: str | None = None) -> PhaseScript:
        manifest = shipment.id if shipment else None
        return PhaseScript(phase, text, run, env, manifest, emulation, bucket, tuple(spec.artifacts))

    first = [JobPhase("setup", AttemptState.SETUP, script("setup", setup))] if setup else []
    return (*first, JobPhase("main", AttemptState.RUNNING, script("main", main, spec.bucket)))


def _environment(spec: JobSpec, asked: Environment, emulation: Emulation | None) -> Environment | None:
    """Return the environment that the job needs on a worker; None where it needs none but those that are there."""
    asked = replace(asked, install_uv=emulation is None)
    if spec.train is None or not _trains_with_torch(spec):
        return asked if asked.is_asked_for else None
    if emulation is None:
        return of_training(spec.train.backend, asked)
    return replace(asked, base=scripts.LENT_PYTHON) if asked.is_asked_for else None


def _trains_with_torch(spec: JobSpec) -> bool:
    return spec.train is not None and spec.train.backend != "none"


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

    def __call__(self, attempt: Attempt, lease: Lease, hosts: Sequence[str], coordinator: str) -> StartRequest:
        from orchestrator.remote.fleet.fleet import StartRequest

        return StartRequest(
            attempt=attempt.id,
            phase=self.phase,
            manifest=self.manifest,
            script=self.text if self.bucket is None else scripts.with_upload(self.text, self._upload(attempt)),
            env_by_worker=[
                {**worker_environment(self.run, attempt, lease, index, hosts, coordinator, self.emulation), **self.env}
                for index in range(len(hosts))
            ],
        )

    def _upload(self, attempt: Attempt) -> str:
        from orchestrator.remote.ssh import agent

        place = f"{self.bucket}/{self.run.id}"
        command = agent.command("upload", attempt.id, place, json.dumps(list(self.artifacts)))
        return f'{command} "$TPUJOB_WORKER"'


def check_bucket(spec: JobSpec, cloud: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a job with a bucket needs. Raises JobSpecError: the emulated cloud has no Cloud Storage."""
    if spec.bucket is None or cloud != "emulated":
        return {}
    host = environ.get("STORAGE_EMULATOR_HOST")
    if not host:
        text = "the emulated cloud has no Cloud Storage; remove this, or set STORAGE_EMULATOR_HOST to an emulator of it"
        raise JobSpecError([spec.mistake(("bucket",), text)])
    return {"STORAGE_EMULATOR_HOST": host}


def check_python(spec: JobSpec, cloud: str) -> None:
    """Raise JobSpecError for a training that is to run on another Python than the one whose torch the emulator lends."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if cloud == "emulated" and _trains_with_torch(spec) and spec.python not in (None, own):
        text = f"emulated workers train with the torch of tpujob's own Python, {own}; leave this out here"
        raise JobSpecError([spec.mistake(("python",), text)])


def _printable(path: Path) -> str:
    return str(path).encode("utf-8", "replace").decode()


def check_directories(spec: JobSpec, job_path: Path) -> None:
    """Raise JobSpecError for a directory that the job ships and that is missing, with the line that names it.

    The same for `requirements:`.
    """
    for field, value in ((("code",), spec.code), (("train", "data_dir"), spec.train.data_dir if spec.train else None)):
        if value is not None:
            _directory(spec, job_path, value, field)
    requirements.read(spec, job_path)


def new_run(
    spec: JobSpec,
    job_path: Path,
    cloud: str,
    runs_directory: Path,
    now: float,
    *,
    sweep: Mapping[str, Any] | None = None,
) -> tuple[RunRecord, Attempt]:
    """Return a new run and its first attempt. `now`: the ledger's time of this cloud. `sweep`: of which sweep it is, and
    which of its variants.
    """
    run_id = names.new_run_id(secrets.randbits(names.RUN_BITS))
    directory = runs_directory / f"{spec.name}-{run_id}"
    job_text, directory_text = _printable(job_path), _printable(directory)
    if directory_text != str(directory):
        raise UserError(
            f"{directory_text}: a path that is not UTF-8", hint="run from another directory, or set runs_dir"
        )
    described: dict[str, Any] = spec.model_dump(mode="json", exclude={"env", *OF_A_SWEEP})
    described["secret_sources"] = secret_sources(spec.env)  # names: `attach` hides their values too
    if sweep is not None:
        described["sweep"] = dict(sweep)
    run = RunRecord(run_id, str(spec.name), job_text, cloud, now, directory_text, described)
    return run, Attempt(id=f"{run_id}-1", run_id=run_id)


def job_run(
    spec: JobSpec,
    run: RunRecord,
    attempt: Attempt,
    *,
    plan: Plan,
    drafter: Drafter,
    held: Lease | None,
    lane: Lane | None = None,
    shipment: Shipment | None,
    phases: tuple[JobPhase, ...],
    sink: Callable[[int, bytes], None],
    metrics: Callable[[int, bytes], None],
    keep_s: float | None,
    detach: bool = False,
) -> JobRun:
    """Return what `run_job` runs. Names and keys of the first candidates are made here. Raises CloudUnavailable."""
    from orchestrator.remote.transfer.saved_work import SavedWork

    directory = Path(run.directory)
    restarts = spec.max_restarts if spec.on_preemption == "restart" else 0
    return JobRun(
        run=run,
        attempt=attempt,
        drafts=drafter.make(),
        held=held,
        shipment=shipment,
        lane=lane,
        phases=phases,
        artifacts=tuple(spec.artifacts),
        directory=directory,
        sink=sink,
        metrics=metrics,
        max_duration_s=spec.limits.max_duration_s,
        keep_s=keep_s,
        keep_on_failure_s=spec.keep_on_failure,
        detach=detach,
        wait_s=plan.wait_s,
        race=plan.race,
        max_restarts=restarts,
        drafter=drafter,
        saved_work=SavedWork(directory / "saved", tuple(spec.artifacts)) if restarts else None,
        stall_s=spec.limits.stall,
        linger_s=spec.limits.linger,
        most_bytes=spec.limits.max_results,
    )
