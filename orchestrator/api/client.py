"""The one door: what tpujob does, as methods that return typed values. `tpujob` exports it, and every command calls it.

Each call opens a session of its own and closes it, so that a client may be used from several threads at once. A call loads
what it needs, and nothing else: the rooms of `api/` load their modules when they are first used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from orchestrator.api import functions, guarantee, jobs, live, queue, results, slices, sweeps
from orchestrator.api import session as sessions
from orchestrator.api.session.arguments import CHECK, HOLD, LIFE, WAIT, Duration, Provisioning, Via, seconds, size

if TYPE_CHECKING:
    from orchestrator.api.guarantee.gc import GcResult
    from orchestrator.api.jobs.checking import CheckResult
    from orchestrator.api.jobs.ending import Canceled, CanceledSweep
    from orchestrator.api.jobs.job import CheckedJob, Job, ProvisioningKind, ViaKind
    from orchestrator.api.jobs.planning import Export, Plan
    from orchestrator.api.live.top import Top
    from orchestrator.api.queue.door import JobQueue
    from orchestrator.api.results.costs import Since
    from orchestrator.api.session.events import LogLine, OnEvent, RunResult, SweepResult
    from orchestrator.api.session.reporter import Reporter
    from orchestrator.api.session.session import Session
    from orchestrator.api.session.shown_logs import Choice
    from orchestrator.api.slices.down import DownResult
    from orchestrator.api.slices.lending import Slice
    from orchestrator.api.slices.offers import Offers
    from orchestrator.api.slices.status import Status
    from orchestrator.api.slices.up import SliceEnd, SliceOptions, SliceStatus, UpResult
    from orchestrator.api.sweeps.plans import SweepPlan
    from orchestrator.job.sweep import Sweep
    from orchestrator.promise.lease.run_and_attempt import RunRecord
    from orchestrator.report.results import RunReport
    from orchestrator.report.rows.whole_run import RunSummary
    from orchestrator.report.spending import By, CostReport

DEFAULT_NAME = "slice"  # of `slice`
DEFAULT_IDLE = "default"  # of `up`: 1h, or that of the existing slice
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Run:
    """A run of this machine's ledger: a handle, which asks anew each time.

    Example::

        run = tpujob.Client().submit(tpujob.Job(command="python3 train.py", tpu=tpujob.Tpu(accelerator="v5e-8"), code="."))
        for line in run.logs(follow=True):
            print(line.worker, line.text)
        print(run.wait().state)
    """

    _client: Client = field(repr=False, compare=False)
    id: str

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    @property
    def state(self) -> str:
        """Its state now: pending, setup, running, collecting; at the end succeeded, failed, interrupted or error."""
        with self._client._session() as session:
            session.recover()
            return str(session.ledger.run(self.id)[1].state)

    def logs(self, *, follow: bool = False, worker: int | None = None) -> Iterator[LogLine]:
        """Yield the lines of all workers, or of one; with `follow`, until the run has ended. See `Client.logs`."""
        return self._client.logs(self, follow=follow, worker=worker)

    def wait(self, *, on_event: OnEvent | None = None) -> RunResult:
        """Follow it to its end; see `Client.attach`."""
        return self._client.attach(self, on_event=on_event)

    def cancel(self) -> None:
        """End it; see `Client.cancel`."""
        self._client.cancel(self)


class Client:
    """Everything that `tpujob` does. Without arguments the cloud that is configured, else the emulator, as on the command line.

    `on_event` is called with every event, in whichever thread it happens, one at a time. If it raises, it is not called again;
    the work goes on to its end, and then the call raises that exception. Without it, a call in a notebook shows in place what
    goes on. Durations are text such as `"90m"`, or a timedelta.

    Methods raise the errors of `tpujob`, by what to do next: UserError for a wrong request, CloudError and its kinds for the
    API, TeardownUnproven whenever a slice may still be billed.

    Ctrl-C in a call raises Interrupted, after the release of what the call created.

    Example::

        client = tpujob.Client()
        result = client.run(tpujob.Job.load("job.yaml"))
        print(result.state, result.metrics, result.cost_usd)
    """

    def __init__(
        self,
        cloud: Literal["emulated", "google"] | None = None,
        project: str | None = None,
        *,
        on_event: OnEvent | None = None,
    ) -> None:
        self.cloud = cloud
        self.project = project
        self.on_event = on_event
        self._shows: dict[str, Any] = {}  # of a command: of which workers the logs, and whether it watches nodes

    def __repr__(self) -> str:
        return f"Client(cloud={self.cloud!r}, project={self.project!r})"

    @property
    def queue(self) -> JobQueue:
        """The queue of jobs, which start by themselves."""
        return queue.door.JobQueue(self._session, self._check_released)

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def plan(self, job: Job | CheckedJob) -> Plan:
        """Return what `run` would ask for: candidates, prices, the exact requests. Creates nothing.

        Raises UserError for a job that cannot be run.
        """
        with self._session() as session:
            return jobs.planning.preview(session, *jobs.job.spec_and_path(job))

    def check(self, job: Job | CheckedJob, *, steps: int = 10, within: Duration = "10m") -> CheckResult:
        """Return whether the program of a job fits the chips of its accelerator, as the TPU compiler says. Creates nothing.

        `steps` of it run on this machine's CPU, for `within` at most. Not judged is never "fits": `fits` is then False, too.
        Raises UserError for a job that cannot be run, NotJudged where there is no compiler for its chips.
        """
        within_s = seconds(self._named("within"), within, *CHECK)
        with self._session() as session:
            return jobs.planning.check(session, *jobs.job.spec_and_path(job), steps, within_s)

    def export(self, job: Job, *, with_secrets: bool = False) -> Export:
        """Return the objects that `run` would submit to a cluster, of a job with `on="gke"`; as text they are YAML.

        Creates nothing. Each call makes new names. `with_secrets` adds the Secret with the values of your variables. Raises
        UserError for a job that cannot be run on a cluster.
        """
        with self._session() as session:
            return jobs.planning.export(session, *jobs.job.spec_and_path(job), with_secrets=with_secrets)

    def run(
        self, job: Job, *, on_event: OnEvent | None = None, keep: Duration | None = None,
        keep_on_failure: Duration | None = None, max_duration: Duration | None = None, check: bool = False,
        resume: str | None = None,
    ) -> RunResult:  # fmt: skip
        """Run a job to its end, release its slice, and return the result of a success.

        `keep` holds the slice for so long after a success (1m to 7d), `keep_on_failure` after a failure of the job or its setup
        (1m to 24h), for the next run of the job; `max_duration` replaces the job's limit (6m to 7d). `check` runs only what
        `check` finds to fit, or has found, and raises DoesNotFit or NotJudged for the rest. `resume` is the id of a run that
        has lost its slice and its process: this is its next attempt, on any machine, from what its workers saved to `bucket`.

        Raises the error that ended a job that did not succeed, with the RunResult as its `result`: PayloadFailed for the job's
        own failure, SliceLost, CapacityError, DeadlineExceeded, ArtifactError, Interrupted and so on; TeardownUnproven if a
        slice is not proven absent. Raises UserError for a job that cannot be run; then nothing was created.
        """
        how = {
            "keep_s": self._limit("keep", keep, *HOLD),
            "keep_on_failure_s": self._limit("keep_on_failure", keep_on_failure, *sessions.arguments.HOLD_FAILED),
            "max_duration_s": self._limit("max_duration", max_duration, *LIFE),
        }
        return self._start(job, on_event, check=check, resume=resume, **how)

    def plan_sweep(self, job: Job | CheckedJob) -> SweepPlan:
        """Return what `sweep` would run and ask for, and what it costs at most. Creates nothing.

        Raises UserError for a job that cannot be run.
        """
        with self._session() as session:
            return sweeps.plans.preview(session, jobs.job.sweep_of(job), jobs.job.path_of(job))

    def sweep(self, job: Job | CheckedJob, *, again: bool = False, on_event: OnEvent | None = None) -> SweepResult:
        """Run the variants of a job with `matrix` or `variants`, and return what became of each.

        `job.parallel` slices run them, each one variant after the other. A variant that fails does not stop the others: its
        result has the error. What succeeded before with the same job, code and cloud is not run again, except with `again`.
        Events have the variant's label as `variant`.

        Raises UserError for what cannot be run; then nothing was created. Raises Interrupted after Ctrl-C, and TeardownUnproven
        if a slice is not proven absent, with the SweepResult as its `result`: the same call goes on there.
        """
        with self._session(on_event) as session:
            return self._swept(
                sweeps.sweeps.run_sweep(
                    session, jobs.job.sweep_of(job), jobs.job.path_of(job), again=again, logs=self._shows.get("logs")
                )
            )

    def submit(
        self, job: Job, *, on_event: OnEvent | None = None, max_duration: Duration | None = None,
        resume: str | None = None,
    ) -> Run:  # fmt: skip
        """Start a job and return once it runs without this process. Its slice deletes itself when the job has ended.

        `resume` is that of `run`.

        Raises what `run` raises up to that moment; WatchdogNotArmed if the slice cannot be trusted to delete itself.
        """
        limit = self._limit("max_duration", max_duration, *LIFE)
        return Run(self, self._start(job, on_event, max_duration_s=limit, detach=True, resume=resume).run)

    def attach(self, run: str | Run, *, owner: str | None = None, on_event: OnEvent | None = None) -> RunResult:
        """Follow a submitted run to its end, collect its artifacts, release its slice, and return the result of a success.

        `run` is a run's id, its first letters, or a job's name. One that another machine submitted is found by the labels of
        its slice: of this user, or of another `owner` who is named. Raises what `run` raises; UnknownRun; UserError where
        another machine follows the run. After Interrupted the run goes on: `error.result.detached` says so.
        """
        with self._session(on_event) as session:
            return self._successful(session, jobs.runs.attach(session, _id(run), owner=owner, **self._shows))

    def cancel(self, run: str | Run, *, owner: str | None = None) -> Canceled | CanceledSweep:
        """End a run and delete its slice, proven; return what became of it. Results are not collected, but with `on="local"`.

        A run that has ended already is left alone; one on a held slice is stopped, and the slice stays. The name of a sweep
        ends all of its runs, and no other one starts. `owner`: see `attach`. Raises UnknownRun; UserError for a name of
        several; TeardownUnproven; TpujobError if the process of the run does not stop it.
        """
        with self._session(quiet=True, light=True) as session:
            canceled = jobs.ending.cancel(session, _id(run), owner=owner)
            if not canceled.released:
                self._check_released(session)
            return canceled

    def collect(
        self, run: str | Run, *, max_results: str | None = None, work: str | None = None, to: str | Path | None = None,
        owner: str | None = None, on_event: OnEvent | None = None,
    ) -> RunResult:  # fmt: skip
        """Collect the results that a run left on its slice, release the slice, and return the run's result.

        `max_results` replaces the job's limit: a size such as `"80GB"`, or `"none"`. `work`: a pattern, such as `"*"`, of
        files beside the artifacts that come without a limit, to the directory `to` if there is one. `owner`: see `attach`.
        Raises the run's own error if the run was not a success; ArtifactError while results are missing; UnknownRun;
        UserError for a run that has not ended.
        """
        most_bytes = None if max_results is None else size(self._named("max_results"), max_results)
        with self._session(on_event) as session:
            place = None if to is None else Path(to)
            result = jobs.ending.collect(session, _id(run), max_results=most_bytes, work=work, to=place, owner=owner)
            return self._successful(session, result)

    def get(self, run: str) -> Run:
        """Return the run of this id, its first letters, or a job's name (its newest run). Raises UnknownRun."""
        with self._session() as session:
            return Run(self, sessions.lookup.run(session, run)[0].id)

    def runs(self) -> list[RunSummary]:
        """Return the runs of this machine, newest first."""
        with self._session() as session:
            return list(results.history.runs(session))

    def show(self, run: str | Run | None = None) -> RunReport:
        """Return everything about a run, or the newest one: attempts, slice, cost, metrics, files, and its story in events.

        Raises UnknownRun.
        """
        with self._session() as session:
            return results.reports.show(session, None if run is None else _id(run))

    def cost(
        self, name: str | None = None, *, month: str | None = None, since: Since | None = None, by: By = "job"
    ) -> CostReport:
        """Return what this machine's slices and runs cost: an estimate by a dated price table, each cloud apart.

        `name`: only a run, a job or a sweep, by default of all time. `month` is one of UTC such as `"2026-11"`; `since` a day,
        a datetime, or how long (`"30d"`, a timedelta); without either it is this month. `by` is run, job, project, accelerator,
        owner or cause. Dollars are None where a price is unknown. Raises UserError for a period that does not exist or has not
        begun; UnknownRun. `queue.cost` is the same for the jobs of the queue.
        """
        with self._session() as session:
            return results.costs.cost(session, name, month=month, since=since, by=by)

    def report(self, *runs: str | Run, out: str | Path | None = None) -> Path:
        """Write the page of a run, or one that compares several or the runs of a sweep; return its path.

        Without `out`, the page of a run is `report.html` in its directory, and that of several lies below the directory of all
        runs. Raises UnknownRun; ConfigError if the file cannot be written.
        """
        with self._session() as session:
            return results.pages.write_report(session, [_id(run) for run in runs], None if out is None else Path(out))

    def logs(
        self, run: str | Run, *, follow: bool = False, worker: int | None = None, owner: str | None = None
    ) -> Iterator[LogLine]:
        """Yield the lines of all workers, or of one, as far as they arrived here; with `follow`, until the run has ended.

        Those of a run that only another machine knows come from its workers; `owner`: see `attach`.

        Raises UnknownRun for a run without a log; UserError for a worker that it does not have.
        """
        with self._session() as session:
            workers: Choice = "all" if worker is None else (worker,)
            for lines in results.logs.read_logs(session, _id(run), follow=follow, workers=workers, owner=owner):
                yield from (sessions.events.LogLine(lines.worker, text) for text in lines.lines)

    # -- functions -----------------------------------------------------------------------------------------------------

    def call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function on a TPU and return its value.

        A function that `tpujob.function` did not decorate gets the default TPU of a job. Raises what `run` raises;
        RemoteFunctionError for an exception in the function; UserError for a function that cannot travel, and for arguments
        that JSON does not carry.
        """
        if not isinstance(function, functions.function.RemoteFunction):
            function = functions.function.function()(function)
        return function._run(self, args, kwargs)

    def _map(self, sweep: Sweep, job: Job, again: bool, return_exceptions: bool, on_event: Any) -> list[Any]:
        """Run the calls of `RemoteFunction.map`. `job`: one of them, for its paths. `on_event`: as for `sweep`."""
        with self._session(on_event) as session:
            result = self._swept(sweeps.sweeps.run_sweep(session, sweep, jobs.job.path_of(job), again=again))
            return functions.outcome.values_of(
                result, session.reporter.secrets.hide, return_exceptions=return_exceptions
            )

    # -- slices --------------------------------------------------------------------------------------------------------

    def slice(
        self, accelerator: str, *, zone: str | Sequence[str] | None = None, runtime: str | None = None,
        provisioning: ProvisioningKind = "on-demand", wait: Duration | None = None, max_duration: Duration = "24h",
        name: str = DEFAULT_NAME, via: ViaKind | None = None, on_event: OnEvent | None = None,
    ) -> Slice:  # fmt: skip
        """Return a slice for a `with` block: READY when the block begins, proven absent when it ends, however it ends.

        The slice belongs to this process: if the process is killed, the guardian deletes the slice. `wait` is for capacity (1s
        to 7d; None: every zone is asked once); the slice exists for `max_duration` at most (6m to 7d). `via` is the way to its
        workers (None: as your settings say). `run` does not use it: a job gets a slice of its own, or one that `up` holds.
        """
        options = self._wished(
            name, accelerator, zone if zone is None or isinstance(zone, str) else ",".join(zone), runtime,
            provisioning, wait, max_duration, via,
        )  # fmt: skip
        return slices.lending.Slice(lambda: self._session(on_event), options)

    def up(
        self, name: str | None = None, *, accelerator: str | None = None, zone: str | None = None,
        runtime: str | None = None, provisioning: ProvisioningKind | None = None, wait: Duration | None = None,
        max_duration: Duration = "24h", idle: Duration | None = DEFAULT_IDLE, recreate: bool = False,
        via: ViaKind | None = None, on_event: OnEvent | None = None,
    ) -> UpResult:  # fmt: skip
        """Bring a slice to READY and hold it until `down`, also beyond this process. Doing it twice changes nothing.

        It is deleted after `max_duration`, and once nothing has used it for `idle` (None: never; by default 1h, or as it was
        created). A preempted slice is deleted and created again with `recreate`, and otherwise raises NeedsConsent. Raises
        CapacityError, QuotaError and the other errors of the API; UserError for what does not fit an existing slice.
        """
        wished = self._wished(name, accelerator, zone, runtime, provisioning, wait, max_duration, via)
        options = replace(wished, idle_s=self._idle_s(idle), recreate=recreate)
        with self._session(on_event) as session:
            return slices.up.bring_up(session, options)

    def down(
        self, name: str | None = None, *, owner: str | None = None, everything: bool = False,
        on_event: OnEvent | None = None,
    ) -> DownResult:  # fmt: skip
        """Delete a slice and prove that it is absent. Without a name: the slice of `up` without a name.

        `owner`: whose slice, if not this user's. `everything`: every slice of this machine's ledger. Raises TeardownUnproven
        for one that is not proven absent; UserError for an unknown name.
        """
        with self._session(on_event, quiet=True, light=True) as session:
            result = slices.down.take_down(session, name, owner=owner, everything=everything)
            self._check_released(session)
            if result.error is not None:
                raise result.error
            return result

    def stop(self, name: str | None = None) -> SliceStatus:
        """Stop a held slice: it keeps its disk, its name, its quota and its end. Costs go on by the price table.

        No watchdog runs until `start`: at its end the next call, `tpujob` command or gc timer deletes it. Raises UserError if
        there is none or it is in use.
        """
        with self._session() as session:
            return slices.up.stop(session, name)

    def start(self, name: str | None = None) -> SliceStatus:
        """Start a stopped slice and wait until it is READY. Raises UserError if there is none."""
        with self._session() as session:
            return slices.up.start(session, name)

    def extend(self, name: str, by: Duration, *, owner: str | None = None) -> SliceEnd:
        """Move the end of a slice, or of the slice of a run, by 1m to 7d. `owner`: see `attach`.

        Raises UserError beyond its limits.
        """
        by_s = seconds(self._named("by"), by, *HOLD)
        with self._session() as session:
            return slices.up.extend(session, name, by_s, owner=owner)

    @contextmanager
    def forward(self, name: str | Run | None, *ports: int, worker: int = 0) -> Iterator[dict[int, int]]:
        """Forward ports of a worker of a slice or run to this machine for a `with` block: yields each one's port of 127.0.0.1.

        That is the same one unless it is in use. Without ports, the `ports` of the run's job. Raises UserError for a slice that
        is not there or not READY; Unreachable.
        """
        wished = (None if name is None else _id(name), [slices.shell.PortWish(port) for port in ports], worker)
        with self._session() as session, slices.shell.forwarding(session, *wished) as (_, forwarded):
            yield {each.port: each.local for each in forwarded}

    def status(self, *, on_event: OnEvent | None = None) -> Status:
        """Return every slice of tpujob that the API shows or this machine's ledger has open, with its claim and its cost.

        Raises nothing for an API that does not answer: `Status.exit_code` is 0 only for a complete answer.
        """
        with self._session(on_event, light=True) as session:
            return slices.status.status(session)

    def top(self, *, ended: bool = False, on_event: OnEvent | None = None) -> Top:
        """Return what goes on: a row for each run, queued job and slice of this user, with its newest figures and its cost.

        A run that ended stays for an hour, with `ended` for ever. What did not answer is in `Top.problems`, and raises nothing.
        """
        with self._session(on_event, light=True) as session:
            return live.top.table(session, live.top.ask(session), ended=ended)

    def offers(
        self, accelerator: str | None = None, *, zone: str | None = None, spot: bool = False, refresh: bool = False
    ) -> Offers:
        """Return which TPUs there are, where and for how much: of a type or generation, in a comma list of places; or all.

        `refresh` asks the API which of them the project has, and remembers the answer. Raises UserError for an unknown type
        or place, CloudError when no zone answers.
        """
        with self._session(light=True) as session:
            asked: dict[str, Any] = {"accelerator": accelerator, "zone": zone, "spot": spot, "refresh": refresh}
            return slices.offers.offers(session, all_sizes=True, **asked)

    def gc(self, places: Sequence[str] = (), *, dry_run: bool = False, on_event: OnEvent | None = None) -> GcResult:
        """Delete every slice of the project whose claim is over, whichever machine made it; return what was seen.

        `places` are zones and regions; empty means every zone. `GcResult.done` is true when every zone answered and everything
        that was to be deleted is proven absent. Raises UserError for an unknown place; AuthError.
        """
        return self._collect_garbage(on_event, dry_run, "tpu", self.cloud, self.project, places)

    def gc_cluster(
        self, namespaces: Sequence[str] = (), *, context: str | None = None, cluster: str | None = None,
        dry_run: bool = False, on_event: OnEvent | None = None,
    ) -> GcResult:  # fmt: skip
        """Delete what jobs with `on: gke` left in namespaces of a cluster after their end; return what was seen.

        What is not given is that of `gke:` in the settings. `zones` of the result are the namespaces. Raises ConfigError
        without a usable cluster; AuthError.
        """
        return self._collect_garbage(on_event, dry_run, "gke", parts=namespaces, context=context, cluster=cluster)

    # -- inside: a command line changes how a call listens, names its parameters and ends (`api/command_line.py`) -------

    @contextmanager
    def _reporter(self, on_event: OnEvent | None) -> Iterator[Reporter]:
        with sessions.reporter.listening(on_event or self.on_event) as reporter:
            yield reporter

    @contextmanager
    def _session(self, on_event: OnEvent | None = None, **how: bool) -> Iterator[Session]:
        """`how`: `quiet` and `light` of `Session.open`."""
        with self._reporter(on_event) as reporter:
            opens = sessions.session.Session.open
            session = opens(self.cloud, self.project, reporter=reporter, after_end=after_end, **how)
            try:
                yield session
            finally:
                session.close()

    def _named(self, parameter: str) -> str:
        """Return what messages call this parameter."""
        return parameter

    def _successful(self, session: Session, result: RunResult) -> RunResult:
        return functions.raised.successful(session, result)

    def _swept(self, result: SweepResult) -> SweepResult:
        return functions.raised.swept(result)

    def _check_released(self, session: Session) -> None:
        functions.raised.check_released(session)

    def _limit(self, parameter: str, given: Duration | None, least: str, most: str) -> float | None:
        """Return the seconds of a duration. Raises UserError unless it is from `least` to `most`."""
        return None if given is None else seconds(self._named(parameter), given, least, most)

    def _start(self, job: Job | CheckedJob, on_event: OnEvent | None, **how: Any) -> RunResult:
        with self._session(on_event) as session:
            options = jobs.runs.RunOptions(**self._shows, again_of=getattr(job, "again_of", None), **how)
            if options.resume is not None:
                queue.queue.check_not_queued(session, options.resume)
            return self._successful(session, jobs.runs.start_run(session, *jobs.job.spec_and_path(job), options))

    def _wished(
        self, name: str | None, accelerator: str | None, zone: str | None, runtime: str | None,
        provisioning: str | None, wait: Duration | None, max_duration: Duration, via: str | None,
    ) -> SliceOptions:  # fmt: skip
        return slices.up.SliceOptions(
            name=name,
            zone=zone,
            accelerator=accelerator,
            runtime=runtime,
            provisioning=Provisioning(provisioning) if provisioning is not None else None,
            wait_s=self._limit("wait", wait, *WAIT) or 0.0,
            max_duration_s=seconds(self._named("max_duration"), max_duration, *LIFE),
            via=Via(via) if via is not None else None,
        )

    def _idle_s(self, idle: Duration | None) -> float | None:
        """Return what `SliceOptions.idle_s` says of it."""
        return None if idle == DEFAULT_IDLE else math.inf if idle is None else seconds(self._named("idle"), idle, *HOLD)

    def _collect_garbage(self, on_event: OnEvent | None, dry_run: bool, /, *where: Any, **more: Any) -> GcResult:
        with self._reporter(on_event) as reporter:
            return guarantee.gc.collect_garbage(reporter, guarantee.gc.area_of(*where, **more), dry_run=dry_run)


def after_end(session: Session, run: RunRecord) -> None:
    """Do what follows the end of a run whose process was killed."""
    results.pages.of_another_process(session, run)


def _id(run: str | Run) -> str:
    return run.id if isinstance(run, Run) else run
