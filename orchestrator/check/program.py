"""The program of a job as it is played: scripts and variables of an emulated worker, with the shapes of a real chip."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cloud_tpu_emulator.vms import pythons
from orchestrator.hosts.fleet.crew import StartRequest
from orchestrator.hosts.fleet.local import AGENT, LocalCrew
from orchestrator.job.rules.env import secret_sources
from orchestrator.job.train_keys import EmulatedSection
from orchestrator.places.preparation import code, requirements, resolving
from orchestrator.places.preparation.phases import Emulation, environment_of, trains_with_torch
from orchestrator.text import scripts

if TYPE_CHECKING:
    from orchestrator.check.target import Chips
    from orchestrator.hosts.shipping.shipment import Shipment
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.places.desk import Desk
    from orchestrator.places.place import Workers
    from orchestrator.places.preparation.resolving import Resolved

IN_PROGRAM = Path(__file__).with_name("in_program.py")  # Python imports its copy, sitecustomize.py, at its start
PUBLISHED = ("mnist", "fashion-mnist")  # of which drawn digits have the shapes and numbers


@dataclass(frozen=True, slots=True)
class Program:
    """A job, its code and its packages: what a check is of."""

    spec: JobSpec  # as it is played
    shipment: Shipment | None
    resolved: Resolved  # for the workers of the real job

    def key(self, accelerator: str, env: Mapping[str, str]) -> str:
        """Return a hash of all that decides what XLA compiles: code, arguments, variables, packages, and chips; no secrets."""
        secret = secret_sources(self.spec.env)
        variables = sorted((name, "" if name in secret else value) for name, value in env.items())
        packages = self.resolved.lock.lines or (self.resolved.environment or scripts.Environment()).requirements
        content = None if self.shipment is None else self.shipment.id
        what = (content, self.spec.command, self.spec.setup, variables, packages, self.resolved.python, accelerator)
        return hashlib.sha256(json.dumps(what, default=str).encode()).hexdigest()[:16]


def program_of(
    desk: Desk, spec: JobSpec, path: Path, env: Mapping[str, str], workers: Workers, stack: ExitStack
) -> Program:
    """Return the program of a job. Raises JobSpecError for what no worker can install, UserError for what is not shipped."""
    played = as_played(spec)
    code.check_directories(spec, path)
    shipment = code.shipment_of(desk, code.survey_of(desk, played, path), stack)
    return Program(played, shipment, resolving.resolve(desk, spec, path, env, workers))


def as_played(spec: JobSpec) -> JobSpec:
    """Return the job without what the emulation makes smaller, and with data of the same shapes that needs no network."""
    if spec.train is None:
        return spec
    changes: dict[str, object] = {"emulated": EmulatedSection()}
    if spec.train.entry is None and spec.train.dataset in PUBLISHED:
        changes |= {"dataset": "synthetic", "fallback": None}
    return spec.model_copy(update={"train": spec.train.model_copy(update=changes)})


def with_batch(desk: Desk, program: Program, path: Path, batch_size: int, stack: ExitStack) -> Program:
    """Return the same program of the built-in training with another batch."""
    assert program.spec.train is not None
    train = program.spec.train.model_copy(update={"batch_size": batch_size})
    spec = program.spec.model_copy(update={"train": train})
    return replace(program, spec=spec, shipment=code.shipment_of(desk, code.survey_of(desk, spec, path), stack))


@dataclass(frozen=True, slots=True)
class Staged:
    """What is started: a crew of this machine, and the phases. Dumps and steps go to `directory`."""

    crew: LocalCrew
    phases: tuple[StartRequest, ...]
    directory: Path


def stage(
    desk: Desk, program: Program, path: Path, env: Mapping[str, str], chips: Chips, steps: int, directory: Path
) -> Staged:
    """Return the program, ready to be started in this directory, with the Pythons of an emulated worker."""
    spec, attempt = program.spec, f"check-{directory.name}"
    seen = directory / "seen"
    seen.mkdir()
    worker = directory / "worker"
    pythons.Pythons(desk.directory / "lent").make_all(worker, lend_torch=True)
    setup, main = _texts(desk, program, path, env)
    crew = LocalCrew(directory / "runs", attempt, shipment=program.shipment, max_log=spec.limits.max_log)
    facts = crew.facts()
    own = _variables(chips, attempt, worker, seen, steps) | {
        "TPUJOB_HOSTS": facts.address,
        "TPUJOB_COORDINATOR": f"{facts.address}:{facts.free_port}",
    }
    if spec.train is not None:
        own["TPUJOB_ONE_OF"] = "1" if spec.train.cores == 1 else str(chips.devices)
    if spec.train is not None and spec.train.entry is None:
        own["TPUJOB_CHECK_LEAST_S"] = "0"  # its steps are known
    first = [StartRequest(attempt, "setup", setup, ({**own, **env, "TPUJOB_CHECK": ""},))] if setup else []
    return Staged(crew, (*first, StartRequest(attempt, "main", main, ({**own, **env},))), seen)


def _texts(desk: Desk, program: Program, path: Path, env: Mapping[str, str]) -> tuple[str, str]:
    """Return the scripts of setup, "" for none, and of the job."""
    spec, chosen = program.spec, program.resolved
    emulation = Emulation(1)
    # Torch is lent, with the Python of an emulated worker.
    if chosen.lock.lines and "torch" not in chosen.lock.versions:
        spec = spec.model_copy(update={"python": chosen.python})
    asked = resolving.resolve(desk, spec, path, env, resolving.EMULATED, emulation).environment
    if asked is None:
        asked = environment_of(spec, requirements.read(spec, path), emulation)
    if asked is not None and asked.uses_code and program.shipment is not None:
        asked = replace(asked, code_sha256=program.shipment.id)
    setup = scripts.chain(spec.setup) if spec.setup else ""
    own = scripts.announce_lent_device(f"{spec.command}\n")
    main = own if spec.train is None else scripts.train_main("python3")
    if asked is not None:
        made = replace(asked, root=str(desk.directory / "envs"))
        setup = made.setup(shlex.join([*AGENT, "environment"])) + (made.use(setup) if setup else "")
        return setup, made.use(main)
    if trains_with_torch(spec):
        return scripts.in_lent_environment(setup) if setup else "", scripts.in_lent_environment(main)
    return setup, main


def _variables(chips: Chips, attempt: str, worker: Path, seen: Path, steps: int) -> dict[str, str]:
    watching = worker / "watching"
    watching.mkdir()
    shutil.copy(IN_PROGRAM, watching / "sitecustomize.py")
    return {
        "TPU_NAME": "check",
        "TPUJOB_RUN": attempt,
        "TPUJOB_ATTEMPT": attempt,
        "TPUJOB_WORKER": "0",
        "TPUJOB_WORKERS": "1",
        "TPUJOB_TOPOLOGY": chips.topology,
        "TPUJOB_EMULATED_CORES": str(chips.devices),
        "TPUJOB_EMULATED_TRAINING": str(worker / pythons.TRAINING / "bin"),
        "TPUJOB_EMULATED_LENT": "torch",
        "PJRT_DEVICE": "CPU",
        "XLA_IR_DEBUG": "1",  # programs of torch_xla name their lines
        "XLA_HLO_DEBUG": "1",
        "JAX_PLATFORMS": "cpu",
        # Virtual devices wait for each other in one pool of threads.
        "NPROC": os.environ.get("NPROC", str(max(16, 2 * chips.devices))),
        "PATH": f"{worker / pythons.COMMANDS / 'bin'}:{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": str(watching),
        "VIRTUAL_ENV": "",
        "TPUJOB_CHECK": str(seen),
        "TPUJOB_CHECK_STEPS": str(steps),
        "TPUJOB_CHECK_DEVICES": str(chips.devices),
    }
