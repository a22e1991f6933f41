"""This machine as a place (`on: local`): the job runs here, as a process of its own, without slice, lease and cloud.

The end of this process ends the job too: Ctrl-C and `tpujob cancel` stop it with grace; if this process is killed, the
supervisor stops it.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from orchestrator.errors import Canceled, Interrupted, SliceLost, TpujobError, UserError
from orchestrator.hosts.fleet.crew import Crew, FleetStatus, StartRequest
from orchestrator.hosts.fleet.effects import StartCollection, StopPhase, WaitForCollection
from orchestrator.hosts.fleet.local import AGENT, LocalCrew, ask_to_end, remove_leftovers
from orchestrator.hosts.transfer.collect import CollectRequest
from orchestrator.places.leased import STOP_GRACE_S, NoReach
from orchestrator.places.local.traits import TRAITS
from orchestrator.places.place import Ask, End, Phase, PlanMade, Prepared, Standing, Watch, Wish
from orchestrator.places.preparation import code, records, requirements
from orchestrator.places.preparation.code import told_shipment
from orchestrator.promise.effects.base import MakeNow, Report
from orchestrator.promise.lease.cloud_api import Capabilities
from orchestrator.promise.lease.lease import CANCEL, Lease
from orchestrator.promise.lease.run_and_attempt import LOCAL, Attempt, AttemptState, RunRecord, SavedState
from orchestrator.promise.obligations import Obligations
from orchestrator.promise.standing import SliceProblem
from orchestrator.text import scripts
from orchestrator.traits import Traits

if TYPE_CHECKING:
    from orchestrator.capacity.plan import Plan
    from orchestrator.hosts.transfer.collect import CollectResult
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.places.desk import Desk, Lines
    from orchestrator.promise.obtain.drafts import Draft
    from orchestrator.text.scripts import Environment


LAST_MINUTE_S = 60.0  # kept free before the limit, to collect
WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class LocalStay:
    """`order`: what is collected of a job that did not come that far."""

    crew: LocalCrew
    order: CollectRequest

    @property
    def traits(self) -> Traits:
        return TRAITS

    @property
    def drafts(self) -> tuple[Draft, ...]:
        return ()

    async def obtain(self, ask: Ask, owed: Obligations, capabilities: Capabilities) -> None:
        return None

    async def settle(self, ask: Ask, lease: Lease | None, capabilities: Capabilities) -> Standing:
        spare_s = min(LAST_MINUTE_S, ask.max_duration_s / 10)
        return Standing(None, ask.at, End(ask.at + ask.max_duration_s - spare_s, movable=False), ask.at)

    async def connect(self, ask: Ask, lease: Lease | None) -> Crew:
        return self.crew

    async def check(self, lease: Lease | None) -> None:
        if self.crew.asked_to_end():
            raise Canceled(CANCEL)

    async def look(self, lease: Lease | None) -> SliceProblem | None:
        return None

    async def classify(self, lease: Lease | None, status: FleetStatus) -> None:
        """Raise nothing: what ends a job here is its own."""

    def verdict(self, lease: Lease | None, status: FleetStatus, run: str) -> TpujobError | None:
        return None

    async def follow(self, watch: Watch, standing: Standing, crew: Crew) -> None:
        await watch(standing.end)

    async def stop(self, lease: Lease | None, crew: Crew) -> None:
        """Stop the job: it has a grace period, whatever signals come, and is killed after it."""
        while True:
            try:
                await StopPhase(crew, STOP_GRACE_S)
            except Interrupted:
                await Report("stop", f"the job is being stopped; what still runs is killed after {STOP_GRACE_S:.0f} s")
            else:
                return

    async def tell_rest(self, lease: Lease, *, watch: bool) -> None:
        """Report nothing: nothing is billed."""

    async def leave(self, error: TpujobError | None, collected: CollectResult | None) -> CollectResult | None:
        if error is not None and collected is None:
            collected = await self._save()
        if collected is not None and collected.uncollected:
            left = await MakeNow(self.crew.leave)
            text = f"the results that are not in {self.order.destination} are in {left}: delete them when you are done"
            await Report("results", text)
        else:
            await MakeNow(self.crew.close)
        return collected

    async def _save(self) -> CollectResult | None:
        """Stop the job and collect what it made, such as a checkpoint. A failure here does not change the outcome."""
        await self.stop(None, self.crew)
        try:
            collection = await StartCollection(self.crew, self.order)
            while (found := (await WaitForCollection(collection, WAIT_S)).result) is None:
                pass
        except Exception as error:  # the end of the run is recorded in any case
            await Report("warning", f"the artifacts were not collected: {error}")
            return None
        return found

    def starts_again(self, lost: SliceLost, attempt: Attempt) -> bool:
        return False

    async def saved(self) -> SavedState | None:
        return None

    def goes_on(self, error: TpujobError, collected: CollectResult | None) -> bool:
        return False


NO_CLOUD_OPTIONS = "a job with `on: local` uses no cloud: --keep, --detach, --cloud and --project do not apply"


class ThisMachine:
    traits = TRAITS

    def check(self, desk: Desk, spec: JobSpec, path: Path, wish: Wish) -> None:
        if wish.keep_s is not None or wish.detach or wish.cloud_is_named:
            raise UserError(NO_CLOUD_OPTIONS)
        if spec.train is not None and not wish.only_plan:
            code.check_local_training(spec.train.backend, "a job with `on: local` trains")

    def capacity(self, desk: Desk, spec: JobSpec, wish: Wish) -> None:
        return None

    def describe(self, desk: Desk, spec: JobSpec, plan: Plan) -> Sequence[str]:
        return ()

    def plan(self, desk: Desk, spec: JobSpec, path: Path) -> PlanMade:
        return PlanMade(LOCAL, None, notes=("this machine: no cloud is asked for anything",))

    def prepare(
        self, desk: Desk, spec: JobSpec, env: Mapping[str, str], path: Path, wish: Wish, stack: ExitStack
    ) -> Prepared:
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
        return Prepared(run, attempt, LocalStay(crew, order), phases(spec, run, working, env, asked), shipped=shipment)

    def attached(self, run: RunRecord, lease: Lease) -> NoReturn:
        raise AssertionError("no job on this machine outlives its process")

    def compiles_for(self, desk: Desk, spec: JobSpec) -> None:
        return None

    def end_run(self, desk: Desk, run: RunRecord, attempt: Attempt) -> None:
        ask_to_end(desk.directory / "local", attempt.id)

    def tidy(self, desk: Desk, run: RunRecord) -> None:
        """Delete nothing: the end of a job does."""

    def rest(self, desk: Desk, project: str, names: Sequence[str]) -> str:
        return ""

    def stored(self, desk: Desk, run: RunRecord, order: CollectRequest) -> None:
        return None

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
