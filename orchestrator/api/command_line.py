"""The client of a command line: the calls of `Client`, as a command makes them, and what only a command does.

It reports to a console, names parameters as options, and returns how a run ended, where `Client` raises: the exit code says
it. One session serves the whole command. It stays open to the end of the process, which its locks and its guardian watch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.api import guarantee, jobs, live, results, slices
from orchestrator.api import queue as queues
from orchestrator.api import session as sessions
from orchestrator.api.client import Client, after_end
from orchestrator.api.session.arguments import HOLD, Duration
from orchestrator.errors import Interrupted, TpujobError
from orchestrator.text.units import format_duration
from orchestrator.traits import traits_on

if TYPE_CHECKING:
    from orchestrator.api.guarantee.doctor import Diagnosis
    from orchestrator.api.guarantee.forget import ForgetResult
    from orchestrator.api.guarantee.gc import GcResult, LocalGcResult
    from orchestrator.api.jobs.job import CheckedJob
    from orchestrator.api.jobs.planning import Export, JobRequest, Plan
    from orchestrator.api.live.top import Watch
    from orchestrator.api.queue.queue import QueueEntry
    from orchestrator.api.session.events import LogLines, OnEvent, RunResult, SweepResult
    from orchestrator.api.session.reporter import Reporter
    from orchestrator.api.session.session import Session
    from orchestrator.api.session.shown_logs import Choice
    from orchestrator.api.slices.copies import Copy
    from orchestrator.api.slices.down import DownResult
    from orchestrator.api.slices.offers import Offers
    from orchestrator.api.slices.shell import Include, PortWish, Shell, Show, SshOptions
    from orchestrator.hosts.fleet.on_workers import Forwarded
    from orchestrator.report.comparison.figures import RunFigures

LONG_WAIT_S = 3600.0  # of `tpu.wait`: `submit` of a job that may wait longer leaves that to the queue
OPTIONS = {"max_duration": "--ttl"}  # whose name is not that of the parameter


class CommandClient(Client):
    """A `Client` whose events go to `reporter`. `logs`: of which workers the command shows the logs."""

    def __init__(
        self,
        reporter: Reporter,
        cloud: str | None = None,
        project: str | None = None,
        *,
        logs: Choice = None,
        watch_nodes: bool = False,
    ) -> None:
        super().__init__(cloud, project)  # type: ignore[arg-type]  # a word of the user's, which is checked when it opens
        self.reporter = reporter
        self._shows = {"logs": logs, "watch_nodes": watch_nodes}
        self._open: Session | None = None
        self._files = ExitStack()  # which only this command reads

    @property
    def session(self) -> Session:
        """The session of the command. Raises ConfigError."""
        with self._session() as session:
            return session

    @property
    def unproven(self) -> bool:
        """Whether a release of this command is not proven: then its exit code is 75."""
        return self._open is not None and bool(self._open.unproven)

    @property
    def open_slices(self) -> list[str]:
        """Name, node and state of the slices that the ledger of an open session has not closed."""
        try:
            leases = [] if self._open is None else self._open.ledger.open_leases()
        except TpujobError:
            return []
        return [f"{lease.handle} ({lease.name.node}), {lease.state}" for lease in leases]

    def leave(self) -> None:
        """Remove its files, and let go of what the command has told of: in a CI job, wait a moment until it is delivered."""
        self._files.close()
        if self._open is not None:
            self._open.notifier.close()

    def announce(self) -> None:
        """Report the cloud, and why it is that one."""
        self.session.announce()

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def watching(self) -> AbstractContextManager[Watch]:
        """Return what looks again and again at all that goes on, in sessions of its own, for a `with` block."""
        return closing(live.top.Watch(self._others()))

    def serve(self, tell: Callable[[str, Path], object]) -> None:
        """Serve all that goes on as a page, until nothing has looked for an hour.

        `tell` gets its address, and a file that leads a browser there.
        """
        with (
            live.serving.serving(self._others()) as served,
            live.serving.opener(self.session.directory, served.address) as path,
        ):
            tell(served.address, path)
            served.wait()

    def _others(self) -> Callable[[], AbstractContextManager[Session]]:
        """Return what opens silent sessions beside that of the command. What they cannot prove gone is the command's."""
        with self._session(light=True) as own:
            unproven = own.unproven

        def another() -> AbstractContextManager[Session]:
            silent = sessions.reporter.Reporter(secrets=self.reporter.secrets)
            opens = sessions.session.Session.open
            opened = opens(self.cloud, self.project, reporter=silent, light=True, after_end=after_end)
            opened.unproven = unproven
            return closing(opened)

        return another

    def load(self, request: JobRequest) -> CheckedJob:
        """Return the job or sweep of a file or a command, changed as the options say. Raises JobSpecError, UserError."""
        with self._session():
            return jobs.planning.read(request)

    def load_again(self, run: str, request: JobRequest) -> CheckedJob:
        """Return the job of a run, to run it again, changed as the options say. Raises UnknownRun, UserError."""
        with self._session() as session:
            return jobs.repeating.load(session, run, self._files, tuple(replace(request, file=Path(run)).overrides()))

    def plan(self, job: Any) -> Plan:
        with self._session() as session:
            jobs.planning.environment(jobs.job.spec_of(job), session.reporter)
            return jobs.planning.preview(session, *jobs.job.spec_and_path(job))

    def begin(
        self, job: CheckedJob, *, keep: Duration | None = None, detach: bool = False, check: bool = False,
        resume: str | None = None,
    ) -> RunResult:  # fmt: skip
        """Run a job to its end, or leave once it has started. `check`: only if its program is found to fit. `resume`: the run
        that goes on.
        """
        keep_s = self._limit("keep", keep, *HOLD)
        how = {"detach": detach, "check": check, "resume": resume, "cloud_is_named": self.session.cloud_is_named}
        return self._start(job, None, keep_s=keep_s, **how)

    def submits_to_queue(self, job: CheckedJob) -> str | None:
        """Return why `submit` puts this job into the queue; None: it starts it at once."""
        if job.is_sweep:
            return "the jobs of a sweep start one after the other"
        spec = jobs.job.spec_of(job)
        if not traits_on(spec.on).vms:
            return None
        if spec.on_preemption == "restart":
            return "it is to go on after a preemption"
        return f"it may wait for {format_duration(spec.tpu.wait)}" if spec.tpu.wait > LONG_WAIT_S else None

    def enqueue(self, job: CheckedJob, why: str) -> Sequence[QueueEntry]:
        """Add a job to the queue, and say why."""
        with self._session() as session:
            added = self.queue.add(job)
            names = ", ".join(f"{each.name} ({each.id})" for each in added)
            session.reporter.notice("queue", f"{names}: in the queue, since {why}; `tpujob queue` shows it")
            return added

    def first_pass(self) -> None:
        """Make the pass of a `submit`, whose jobs are in the queue, whatever comes of it."""
        with self._session() as session:
            try:
                queues.queue.run_passes(session)
            except Interrupted:
                raise
            except TpujobError as error:  # it is in the queue all the same
                session.reporter.fail(error)
            if (alone := queues.queue.nothing_goes_on()) is not None:
                session.reporter.notice("note", alone)

    def export_request(self, request: JobRequest, *, with_secrets: bool, **gke: str | None) -> Export:
        with self._session() as session:
            return jobs.planning.exported(session, request, with_secrets=with_secrets, **gke)

    def exit_code(self, result: RunResult) -> int:
        """Return the exit code of the command that ends with this result."""
        return jobs.results.command_exit_code(self.session, result)

    # -- results -------------------------------------------------------------------------------------------------------

    def lines(self, run: str | None, *, follow: bool, workers: Choice, owner: str | None = None) -> Iterator[LogLines]:
        with self._session() as session:
            yield from results.logs.read_logs(
                session, run, follow=follow, workers=workers, option="--worker", owner=owner
            )

    def queued(self) -> Sequence[Any]:
        """Return the variants that wait in a sweep that goes on."""
        with self._session() as session:
            return sessions.sweep_progress.queued(session)

    def figures(self, runs: Sequence[str]) -> tuple[RunFigures, ...]:
        """Return the figures of runs, or of those of a sweep, in this order. Raises UnknownRun, UserError."""
        with self._session() as session:
            return results.reports.compare(session, runs)

    # -- slices --------------------------------------------------------------------------------------------------------

    def down(
        self,
        name: str | None = None,
        *,
        owner: str | None = None,
        everything: bool = False,
        on_event: OnEvent | None = None,
    ) -> DownResult:
        with self._session(quiet=True, light=True) as session:
            return slices.down.take_down(session, name, owner=owner, everything=everything)

    def plan_up(self, *wished: Any, idle: Duration | None) -> dict[str, Any]:
        """Return the request that `up` would send. Creates nothing. `wished`: as for `_wished`."""
        options = replace(self._wished(*wished), idle_s=self._idle_s(idle))
        with self._session() as session:
            return slices.up.preview_up(session, options)

    def shown_offers(self, *, all_sizes: bool, **asked: Any) -> Offers:
        """Return the same as `offers`; without `all_sizes`, no slices of very many hosts."""
        with self._session(light=True) as session:
            return slices.offers.offers(session, all_sizes=all_sizes, **asked)

    def ssh(
        self, name: str | None, options: SshOptions, command: Sequence[str], *, owner: str | None = None
    ) -> list[str]:
        """Return the command line of a shell or a command on a worker."""
        with self._session() as session:
            return slices.shell.ssh_argv(session, name, options, command, owner)

    def ssh_everywhere(self, name: str | None, command: Sequence[str], show: Show, *, owner: str | None = None) -> int:
        """Run a command on all workers, and return the exit code of the first one that failed."""
        with self._session() as session:
            return slices.shell.run_on_all(session, name, command, show, owner)

    def copy(self, copy: Copy, show: Callable[[int, list[str]], None]) -> list[str] | int:
        """Return the command line that copies, or copy everywhere and return the exit code."""
        with self._session() as session:
            shell = slices.copies.open_copy(session, copy)
            if not copy.everywhere:
                return slices.copies.copy_argv(shell, copy)
            return slices.copies.copy_everywhere(session, shell, copy, show)

    def forwarding(
        self, name: str | None, wishes: Sequence[PortWish], worker: int
    ) -> AbstractContextManager[tuple[Shell, list[Forwarded]]]:
        """Forward ports for a `with` block."""
        return slices.shell.forwarding(self.session, name, wishes, worker)

    def wait_for_end(self, shell: Shell) -> str:
        """Wait until the slice ends, and return why."""
        return slices.shell.wait_for_end(self.session, shell)

    def ssh_config(self, name: str) -> str:
        """Return the configuration of a slice for OpenSSH."""
        with self._session() as session:
            return slices.shell.config_of(session, name)

    def include(self, *, install: bool = False, remove: bool = False) -> Include:
        """Return the line for ~/.ssh/config with which OpenSSH knows every slice; put it there, or take it out."""
        with self._session() as session:
            shell = slices.shell
            change = shell.install_include if install else shell.remove_include if remove else shell.include
            return change(session)

    # -- the guarantee -------------------------------------------------------------------------------------------------

    def finish_own(self, *, quiet: bool) -> LocalGcResult:
        """Finish what this machine's ledger owes."""
        with self._session(quiet=quiet, light=True) as session:
            found = guarantee.gc.finish_own(session)
            has_queue = queues.queue.is_there(session)
        if has_queue:  # a pass creates slices: it needs a session of its own
            with closing(
                sessions.session.Session.open(self.cloud, self.project, reporter=self.reporter, after_end=after_end)
            ) as own:
                queues.queue.pass_of_timer(own)
        return found

    def has_zones(self, on: str) -> bool:
        """Return whether `--cloud`, `--project` and zones say where a place is looked at; else its cluster does."""
        return traits_on(on).by_target

    def collect_garbage(self, on: str, *, dry_run: bool, quiet: bool, **where: Any) -> GcResult:
        """Delete what has no claim at a place."""
        asked = guarantee.gc.area_of(on, **where)
        return guarantee.gc.collect_garbage(self.reporter, asked, dry_run=dry_run, quiet=quiet)

    def end_claim(self, node: str, zone: str) -> None:
        """Write on a slice that its claim is over. Raises CloudError."""
        guarantee.gc.end_claim(self.session, node, zone)

    def diagnose(self, file: Path | None, via: str | None) -> Diagnosis:
        """Return which layers of the guarantee are live. Raises JobSpecError, UserError of the job file."""
        wished = guarantee.doctor.access_of(file, via)
        return guarantee.doctor.diagnose(self.reporter, cloud=self.cloud, project=self.project, wished=wished)

    def try_notify(self, file: Path | None) -> str:
        """Send a test message to the receiver of the settings, or of a job file; return what came back."""
        with self._session(light=True) as session:
            return guarantee.telling.send_test(session, file)

    def forget(self, name: str, *, verified: bool, reason: str) -> ForgetResult:
        """Stop asking after a slice whose deletion cannot be proven."""
        with self._session(quiet=True, light=True) as session:
            return guarantee.forget.forget(session, name, verified=verified, reason=reason)

    # -- inside --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _reporter(self, on_event: OnEvent | None) -> Iterator[Reporter]:
        yield self.reporter

    @contextmanager
    def _session(self, on_event: OnEvent | None = None, **how: bool) -> Iterator[Session]:
        if self._open is None:
            opens = sessions.session.Session.open
            self._open = opens(self.cloud, self.project, reporter=self.reporter, after_end=after_end, **how)
        yield self._open

    def _named(self, parameter: str) -> str:
        return OPTIONS.get(parameter) or f"--{parameter.replace('_', '-')}"

    def _successful(self, session: Session, result: RunResult) -> RunResult:
        return result

    def _swept(self, result: SweepResult) -> SweepResult:
        return result

    def _check_released(self, session: Session) -> None:
        """The alerts have been printed, and the exit code says it."""
