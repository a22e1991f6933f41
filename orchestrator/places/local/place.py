"""This machine as a place: the job runs here, as a process of its own, and nothing is asked for."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from orchestrator.core.lease.run_and_attempt import LOCAL, AttemptState
from orchestrator.core.text import scripts
from orchestrator.errors import UserError
from orchestrator.places.local.crew import AGENT, LocalCrew, ask_to_end, remove_leftovers
from orchestrator.places.local.stay import LocalStay
from orchestrator.places.local.traits import TRAITS
from orchestrator.places.no_reach import NoReach
from orchestrator.places.place import Phase, PlanMade, Prepared, Wish
from orchestrator.places.preparation import checks, records, requirements
from orchestrator.places.preparation.code import told_shipment
from orchestrator.remote.fleet.steps import StartRequest

if TYPE_CHECKING:
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.core.lease.lease import Lease
    from orchestrator.core.lease.run_and_attempt import Attempt, RunRecord
    from orchestrator.core.planning.plan import Plan
    from orchestrator.core.text.environments import Environment
    from orchestrator.places.desk import Desk, Lines

NO_CLOUD_OPTIONS = "a job with `on: local` uses no cloud: --keep, --detach, --cloud and --project do not apply"


class ThisMachine:
    traits = TRAITS

    def check(self, desk: Desk, spec: JobSpec, path: Path, wish: Wish) -> None:
        if wish.keep_s is not None or wish.detach or wish.cloud_is_named:
            raise UserError(NO_CLOUD_OPTIONS)
        if spec.train is not None and not wish.only_plan:
            checks.check_local_training(spec.train.backend, "a job with `on: local` trains")

    def capacity(self, desk: Desk, spec: JobSpec, wish: Wish) -> None:
        return None

    def describe(self, desk: Desk, spec: JobSpec, plan: Plan) -> Sequence[str]:
        return ()

    def plan(self, desk: Desk, spec: JobSpec, path: Path) -> PlanMade:
        return PlanMade(LOCAL, None, notes=("this machine: no cloud is asked for anything",))

    def prepare(
        self, desk: Desk, spec: JobSpec, env: Mapping[str, str], path: Path, wish: Wish, stack: ExitStack
    ) -> Prepared:
        from orchestrator.remote.transfer.collect import CollectRequest

        wish.check_workers(1)
        desk.reporter.notice("cloud", "none: `on: local` runs the job on this machine, as your user")
        desk.recover()
        working = desk.directory / "local"
        remove_leftovers(working, desk.locks.is_locked)
        run, attempt = records.new_run(spec, path, LOCAL, desk.runs_directory, desk.now(LOCAL), sweep=wish.sweep)
        shipment = told_shipment(desk, spec, path, stack)
        asked = requirements.read(spec, path, code_sha256=shipment.id if shipment else None)
        crew = LocalCrew(working, attempt.id, shipment=shipment, max_log=spec.limits.max_log)
        order = CollectRequest.of_job(spec.artifacts, attempt.id, Path(run.directory), spec.limits.max_results)
        return Prepared(run, attempt, LocalStay(crew, order), phases(spec, run, working, env, asked))

    def attached(self, run: RunRecord, lease: Lease) -> NoReturn:
        raise AssertionError("no job on this machine outlives its process")

    def end_run(self, desk: Desk, run: RunRecord, attempt: Attempt) -> None:
        ask_to_end(desk.directory / "local", attempt.id)

    def tidy(self, desk: Desk, run: RunRecord) -> None:
        """Delete nothing: the end of a job does."""

    def open_cloud(self, lines: Lines, cloud: str) -> NoReturn:
        raise AssertionError("no cloud is asked for a job on this machine")

    def reach(self, desk: Desk, cloud: str) -> NoReach:
        return NoReach()


def phases(
    spec: JobSpec, run: RunRecord, working: Path, env: Mapping[str, str], asked: Environment
) -> tuple[Phase, ...]:
    """Return `setup` (if there is anything to set up) and `main`. `working`: the directory of the attempts of local jobs."""
    python = "python3" if asked.is_asked_for else shlex.quote(sys.executable)
    main = f"{spec.command}\n" if spec.train is None else scripts.train_main(python)
    setup = scripts.chain(spec.setup) if spec.setup else ""
    if asked.is_asked_for:
        environment = replace(asked, root=str(working.with_name("envs")))
        setup = environment.setup(shlex.join([*AGENT, "environment"])) + (environment.use(setup) if setup else "")
        main = environment.use(main)

    def request(phase: str, script: str) -> Callable[[Attempt, Lease | None, Sequence[str], str], StartRequest]:
        def made(attempt: Attempt, lease: Lease | None, hosts: Sequence[str], coordinator: str) -> StartRequest:
            own = {"TPUJOB_RUN": run.id, "TPUJOB_WORKER": "0", "TPUJOB_WORKERS": "1", "TPUJOB_COORDINATOR": coordinator}
            return StartRequest(attempt.id, phase, script, ({**own, **env},))

        return made

    first = [Phase("setup", AttemptState.SETUP, request("setup", setup))] if setup else []
    return (*first, Phase("main", AttemptState.RUNNING, request("main", main)))


PLACE = ThisMachine()
