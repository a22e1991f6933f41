"""Run a job on this machine (`on: local`): no slice, no lease, no cloud.

Phases, log, artifacts, ledger rows and exit codes are those of `run.program`. The end of this process ends the job too:
Ctrl-C and `tpujob cancel` stop it with grace; if this process is killed, the supervisor stops it.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from orchestrator.core.lease.lease import CANCEL
from orchestrator.core.lease.run_and_attempt import LOCAL, Attempt, AttemptState, Began, Moved, RunRecord, WorkerEnd
from orchestrator.core.text import scripts
from orchestrator.core.text.durations import format_duration
from orchestrator.core.text.environments import Environment
from orchestrator.engine.effects.base import Effect, JobClock, Lock, Now, Record, Report, World
from orchestrator.errors import Canceled, DeadlineExceeded, Interrupted, PayloadFailed, TpujobError
from orchestrator.run import monitor
from orchestrator.run.collection import check_collected
from orchestrator.run.finish import capture, finish
from orchestrator.run.progress import JobProgress, Outcome

if TYPE_CHECKING:
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.places.local.worker import LocalExit, LocalWorker
    from orchestrator.remote.shipping.shipment import Shipment
    from orchestrator.remote.transfer.collect import CollectResult

WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class LocalPhase:
    """One script of the job."""

    name: str
    state: AttemptState
    script: str


@dataclass(frozen=True, slots=True)
class LocalRun:
    """Everything `run_local` needs, decided before it starts."""

    run: RunRecord
    attempt: Attempt
    worker: LocalWorker
    phases: tuple[LocalPhase, ...]
    env: Mapping[str, str]
    shipment: Shipment | None
    artifacts: tuple[str, ...]
    most_bytes: int | None  # of results
    max_duration_s: float
    sink: Callable[[int, bytes], None]
    metrics: Callable[[int, bytes], None]


def prepare(
    spec: JobSpec,
    run: RunRecord,
    attempt: Attempt,
    worker: LocalWorker,
    *,
    shipment: Shipment | None,
    env: Mapping[str, str],
    asked: Environment,
    port: int,
    sink: Callable[[int, bytes], None],
    metrics: Callable[[int, bytes], None],
) -> LocalRun:
    """Return what `run_local` runs. `port`: a free one of this machine, for the coordinator of the job's processes."""
    from orchestrator.places.local.worker import AGENT

    variables = {
        "TPUJOB_RUN": run.id,
        "TPUJOB_WORKER": "0",
        "TPUJOB_WORKERS": "1",
        "TPUJOB_COORDINATOR": f"127.0.0.1:{port}",
    }
    python = "python3" if asked.is_asked_for else shlex.quote(sys.executable)
    main = f"{spec.command}\n" if spec.train is None else scripts.train_main(python)
    setup = scripts.chain(spec.setup) if spec.setup else ""
    if asked.is_asked_for:
        environment = replace(asked, root=str(worker.runs.with_name("envs")))
        setup = environment.setup(shlex.join([*AGENT, "environment"])) + (environment.use(setup) if setup else "")
        main = environment.use(main)
    first = [LocalPhase("setup", AttemptState.SETUP, setup)] if setup else []
    return LocalRun(
        run=run,
        attempt=attempt,
        worker=worker,
        phases=(*first, LocalPhase("main", AttemptState.RUNNING, main)),
        env={**variables, **env},
        shipment=shipment,
        artifacts=tuple(spec.artifacts),
        most_bytes=spec.limits.max_results,
        max_duration_s=spec.limits.max_duration_s,
        sink=sink,
        metrics=metrics,
    )


async def run_local(job: LocalRun) -> Outcome:
    """Run the job. Raises no TpujobError: whatever happens is in the outcome, and nothing of the job is left running."""
    progress = JobProgress(job.run, job.attempt)
    await Lock(job.attempt.id)
    await Record(Began(job.run, job.attempt))
    await capture(progress, _attempt(job, progress))
    if progress.error is not None and progress.collected is None:
        await _save(job, progress)
    await progress.enter(None)
    if progress.collected is not None and progress.collected.uncollected:
        left = await LeaveLocal(job.worker)
        text = f"the results that are not in {job.run.directory} are in {left}: delete them when you are done"
        await Report("results", text)
    else:
        await CloseLocal(job.worker)
    return await finish(progress)


async def _attempt(job: LocalRun, progress: JobProgress) -> None:
    failure: TpujobError | None = None
    began = await Now()
    end_at = began + job.max_duration_s - min(monitor.LAST_MINUTE_S, job.max_duration_s / 10)
    for phase in job.phases:
        await progress.enter(phase.name)
        await Record(Moved(job.attempt.id, await Now(), phase.state))
        await StartLocal(job, phase)
        try:
            await _follow(job, phase.name, end_at)
        except (PayloadFailed, DeadlineExceeded) as error:
            failure = error
            break
    await _collect(job, progress)
    if failure is not None:
        raise failure
    check_collected(progress.collected)


async def _follow(job: LocalRun, phase: str, end_at: float) -> None:
    left_s = end_at - await Now()
    clock = JobClock(job.run.id, LOCAL, phase, 0.0, left_s, None, None)
    await Report(phase, f"at most {format_duration(left_s)} left", passing=True, about=clock)
    while (ended := await WaitLocal(job.worker, WAIT_S)) is None:
        if job.worker.canceled():
            raise Canceled(CANCEL)
        if await Now() >= end_at:
            await _stop(job)
            why = "limits.max_duration"
            raise DeadlineExceeded(f"the job reached {why} and was stopped", hint=f"raise {why}")
    what = "the setup" if phase == "setup" else "the job"
    hint = f"`tpujob logs {job.run.id}` prints what it wrote"
    workers = (WorkerEnd(0, ended.rc),)
    if ended.rc is None:
        raise PayloadFailed(f"{what} was lost: {ended.why}", hint=hint, workers=workers)
    if ended.rc != 0:
        raise PayloadFailed(f"{what} failed with code {ended.rc}", rc=ended.rc, hint=hint, workers=workers)


async def _collect(job: LocalRun, progress: JobProgress) -> None:
    await progress.enter("collect")
    await Report("collect", "collecting the results", passing=True)
    await Record(Moved(job.attempt.id, await Now(), AttemptState.COLLECTING))
    progress.collected = await CollectLocal(job.worker, Path(job.run.directory), job.artifacts, job.most_bytes)


async def _save(job: LocalRun, progress: JobProgress) -> None:
    """Stop the job and collect what it made, such as a checkpoint. A failure here does not change the outcome."""
    await _stop(job)
    try:
        progress.collected = await CollectLocal(job.worker, Path(job.run.directory), job.artifacts, job.most_bytes)
    except Exception as error:  # the end of the run is recorded in any case
        await Report("warning", f"the artifacts were not collected: {error}")


async def _stop(job: LocalRun) -> None:
    """Stop the job: it has a grace period, whatever signals come, and is killed after it."""
    while True:
        try:
            await StopLocal(job.worker, monitor.STOP_GRACE_S)
        except Interrupted:
            text = f"the job is being stopped; what still runs is killed after {monitor.STOP_GRACE_S:.0f} s"
            await Report("stop", text)
        else:
            return


# -- effects on this machine -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartLocal(Effect[None]):
    """Start a phase. Quick, so that no signal comes between the start of the process and its registration."""

    slow: ClassVar[bool] = False
    job: LocalRun
    phase: LocalPhase

    def perform(self, world: World) -> None:
        job = self.job
        job.worker.start(self.phase.name, self.phase.script, job.env, job.shipment, job.sink, job.metrics)


@dataclass(frozen=True, slots=True)
class WaitLocal(Effect["LocalExit | None"]):
    """Wait `timeout_s` at most for the end of the phase; pass its output on meanwhile. None: it goes on."""

    worker: LocalWorker
    timeout_s: float

    def perform(self, world: World) -> LocalExit | None:
        return self.worker.wait(self.timeout_s)


@dataclass(frozen=True, slots=True)
class StopLocal(Effect[None]):
    """Stop the phase: SIGTERM, and SIGKILL after the grace period."""

    worker: LocalWorker
    grace_s: float

    def perform(self, world: World) -> None:
        self.worker.stop(self.grace_s)


@dataclass(frozen=True, slots=True)
class CollectLocal(Effect["CollectResult"]):
    """Move the job's artifacts to the run's directory."""

    worker: LocalWorker
    destination: Path
    artifacts: tuple[str, ...]  # as in the job file
    most_bytes: int | None

    def perform(self, world: World) -> CollectResult:
        return self.worker.collect(self.destination, self.artifacts, self.most_bytes)


@dataclass(frozen=True, slots=True)
class LeaveLocal(Effect[Path]):
    """Leave the results for which there was no room where the job made them; return that directory."""

    slow: ClassVar[bool] = False
    worker: LocalWorker

    def perform(self, world: World) -> Path:
        return self.worker.leave()


@dataclass(frozen=True, slots=True)
class CloseLocal(Effect[None]):
    """End the worker and delete its working directory."""

    slow: ClassVar[bool] = False
    worker: LocalWorker

    def perform(self, world: World) -> None:
        self.worker.close()
