"""`Client.queue`: jobs that wait, and start by themselves, one after the other or several at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.api import jobs, results
from orchestrator.api.queue import queue as queues
from orchestrator.api.queue.hands import RecordIn
from orchestrator.api.session.arguments import Duration, seconds
from orchestrator.promise.lease.run_spec import SweepPart
from orchestrator.queue.passes import play

if TYPE_CHECKING:
    from orchestrator.api.jobs.job import CheckedJob, Job
    from orchestrator.api.queue.queue import QueueEntry, QueueReport
    from orchestrator.api.results.costs import Since
    from orchestrator.api.session.session import Session
    from orchestrator.report.spending import By, CostReport

PASSES = "10s", "1d"


class JobQueue:
    """The queue that the settings name: by default that of this machine. Every method asks its store anew.

    Methods raise UserError for a job that the queue does not have, ConfigError for a record that cannot be read, CloudError for
    a store that does not answer. Nothing is changed then.
    """

    def __init__(
        self, session: Callable[[], AbstractContextManager[Session]], check_released: Callable[[Session], None]
    ) -> None:
        self._session, self._check_released = session, check_released

    def add(self, *asked: Job | CheckedJob, name: str | None = None, priority: int = 0) -> tuple[QueueEntry, ...]:
        """Add jobs, or sweeps with all their jobs, with their code as it is now: all or none. Return them.

        `name`: of a sweep, in the list; `priority`: those with a higher one begin first. The secrets of a job are not kept: the
        machine that starts it has the variables. Raises UserError for a job that cannot be run.
        """
        with self._session() as session:
            wanted = []
            for job in asked:
                if jobs.job.is_sweep(job):
                    sweep = jobs.job.sweep_of(job)
                    wanted += queues.jobs_of(
                        session, sweep if name is None else replace(sweep, name=name), jobs.job.path_of(job)
                    )
                else:
                    wanted.append((*jobs.job.spec_and_path(job), SweepPart(name=name)))
            made = {each.id for each in queues.add(session, wanted, priority=priority)}
            return tuple(each for each in queues.report(session).jobs if each.id in made)

    def report(self) -> QueueReport:
        """Return the queue: what has a slice, what waits and why, and what ended."""
        with self._session() as session:
            return queues.report(session)

    def cost(
        self, name: str | None = None, *, month: str | None = None, since: Since | None = None, by: By = "job"
    ) -> CostReport:
        """Return what the jobs of the queue that ran on this machine cost, as `Client.cost`.

        The owner of a job is who added it, and it waits from then on.
        """
        with self._session() as session:
            jobs = play(RecordIn(queues.store_of(session)).read()).queue.jobs
            return results.costs.cost(session, name, month=month, since=since, by=by, queued=jobs)

    def hold(self, *names: str) -> tuple[QueueEntry, ...]:
        """Keep jobs that wait from starting. `names`: ids, or names of jobs or sweeps."""
        return self._altered(names, held=True)

    def release(self, *names: str) -> tuple[QueueEntry, ...]:
        """Let jobs start that were held, and ask again at once where one was refused."""
        return self._altered(names, ask_again=True, held=False, not_before=0.0)

    def remove(self, *names: str) -> tuple[QueueEntry, ...]:
        """Take jobs out of the queue. One that has a slice is canceled, and its slice deleted, by the next pass."""
        return self._altered(names, removed=True)

    def move(self, name: str, *, first: bool = False, priority: int | None = None) -> tuple[QueueEntry, ...]:
        """Move a job, or those of a sweep, before all others (`first`), or to another priority."""
        with self._session() as session:
            return queues.move(session, name, first=first, priority=priority)

    def run(self, *, forever: bool = False, every: Duration = "1m") -> QueueReport:
        """Make a pass: do all that is due, then return the queue. `forever`: one every `every` (10s to 1d), until Ctrl-C.

        Any number of these may run at once, on any machine. Raises Interrupted, once what the pass had begun has started or is
        proven gone; TeardownUnproven for a slice that is not proven gone: the next pass goes on with it.
        """
        every_s = seconds("every", every, *PASSES)
        with self._session() as session:
            report = queues.run_passes(session, forever=forever, every_s=every_s)
            self._check_released(session)
            return report

    def _altered(self, names: Sequence[str], *, ask_again: bool = False, **changed: object) -> tuple[QueueEntry, ...]:
        with self._session() as session:
            return queues.alter(session, names, lambda job: replace(job, **changed), ask_again=ask_again)  # type: ignore[arg-type]
