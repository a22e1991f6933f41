"""Monitor a phase of a job to its end: its workers, its slice, and whether it uses the TPU. A run and an `attach` share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator import errors
from orchestrator.hosts.fleet.effects import ForwardPorts, WaitForWorkers
from orchestrator.places.place import MAX_COST, End, PeriodicTask, Standing, Stay
from orchestrator.promise.effects.base import JobClock, MoneyNear, Now, Report, SliceWorkers
from orchestrator.promise.effects.cloud import GetGuestAttributes
from orchestrator.promise.lease import guest_reports, network
from orchestrator.promise.lease.access import Via
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.lease.run_and_attempt import RunRecord, WorkerEnd
from orchestrator.promise.standing import LOOK_S, check_attempt
from orchestrator.text.terminal import worker_names
from orchestrator.text.units import format_duration, format_usd

if TYPE_CHECKING:
    from orchestrator.hosts.fleet.crew import Crew, FleetPort, FleetStatus
    from orchestrator.hosts.fleet.follow import WorkerStatus


SETTLE_S = 2.0  # after the first failure: what fails everywhere is not stopped before every worker has said so
WATCH_S = 2.0
SILENT_S = 600.0  # a worker that does not answer for so long is lost
PROBLEM_S = 60.0  # with a silent worker and a problem that the API shows: it may pass
REPORTED_BEFORE_S = (7200.0, 1800.0)  # the end is reported so long before
MONEY_NEAR = 0.2  # of the job's time: what is left when it is told that its budget will end it
INDEX_INSIDE = "name an index in its network in `env:` (PIP_INDEX_URL, which uv gets, too)"


async def monitor(
    stay: Stay, at: Standing, crew: Crew, phase: str, run: RunRecord, tasks: Sequence[PeriodicTask] = (), *,
    end: End | None = None, attempt: str | None = None, began: float | None = None, stall_s: float | None = None,
) -> float | None:  # fmt: skip
    """Return once the phase has succeeded on every worker: for how many seconds it ran, as they say; None: they do not.

    The end of a log stream ends nothing.

    `end`: None for that of `at`. `attempt`: look whether it was canceled, for a slice whose claim does not end with it.
    `began`: when the phase began, None for now.

    Raises PayloadFailed when it failed on one worker (the others are stopped), DeadlineExceeded at its end, SliceLost or
    Vanished for what is not the job's own failure: no output for `stall_s`, a worker or the slice that is gone.
    """
    lease, end = at.lease, end or at.end
    looked_at = printed_at = await Now()
    printed = -1
    problem_since: float | None = None
    silence = Silence()
    began = looked_at if began is None else began
    last_s = end.at - looked_at  # no report of the two hours that a short job never had
    reported_s: float | None = None  # the extension that the last report of the job's clock had
    ended: set[int] = set()  # the workers whose end is reported
    told_of_money = False
    while True:
        status = await WaitForWorkers(crew, WATCH_S)
        current = await stay.check(lease)
        if attempt is not None:
            await check_attempt(attempt)
        await _report_ends(status, phase, ended)
        extended_s = 0.0 if lease is None or current is None else current.deadline - lease.deadline
        if status.failed:
            try:  # first of all: of a preempted slice every second counts
                await stay.classify(lease, status)
            except errors.SliceLost as lost:
                if lost.still_there and not status.all_exited:
                    await stay.stop(lease, crew)
                raise
            raise await _failed(stay, lease, crew, await _settled(crew, status), phase, run.id, ended)
        if status.all_succeeded:
            return status.ran_s
        now = await Now()
        if lease is not None:
            for text in silence.news(status.workers, now):
                await Report(stay.traits.reached, text)
        if extended_s != reported_s:
            reported_s, left_s = extended_s, end.at - end.spare_s + extended_s - now
            price = None if lease is None else lease.usd_per_hour
            clock = JobClock(run.id, run.cloud, phase, now - began, left_s, at.cost(now), price)
            await Report(phase, f"at most {format_duration(left_s)} left", passing=True, about=clock)
        if status.log_bytes != printed:
            printed, printed_at = status.log_bytes, now
        elif stall_s is not None and now - printed_at > stall_s:
            await stay.stop(lease, crew)
            raise errors.SliceLost(
                f"the job printed nothing for {format_duration(stall_s)} and was stopped",
                reason="hung",
                still_there=True,
            )
        left_s = end.at + extended_s - now
        if any(left_s <= mark_s < last_s for mark_s in REPORTED_BEFORE_S):
            moves = f"; `tpujob extend {lease.handle} --by 2h` moves the end" if end.movable and lease else ""
            await Report("limit", f"{format_duration(left_s)} until {end.why}{moves}")
        if end.why == MAX_COST and not told_of_money and left_s <= MONEY_NEAR * (end.at - at.began):
            told_of_money = True
            spent_usd = at.cost(now)
            text = f"{format_usd(spent_usd)} spent, and {format_duration(left_s)} until {MAX_COST} ends the job"
            await Report("limit", text, about=MoneyNear(run.id, left_s, spent_usd))
        last_s = left_s
        if now >= end.at + extended_s:
            await stay.stop(lease, crew)
            raise errors.DeadlineExceeded(f"the job reached {end.why} and was stopped", hint=f"raise {end.why}")
        silent_s = status.silent_s(now)
        for task in tasks:
            await task.tick(silent_s)
        node = "this machine" if lease is None else lease.name.node
        if now - looked_at >= (LOOK_S if silent_s == 0 else WATCH_S):
            looked_at = now
            problem = await stay.look(lease)
            problem_since = None if problem is None or silent_s == 0 else problem_since or now
            if problem_since is not None and problem is not None and now - problem_since > PROBLEM_S:
                raise errors.SliceLost(f"{node} is {problem.text}, and a worker is silent", reason=problem.reason)
        if silent_s > (SILENT_S if at.patience_s is None else at.patience_s):
            raise errors.SliceLost(
                f"a worker of {node} does not answer since {silent_s:.0f} s, though the API lists it",
                reason="unreachable",
            )


async def report_workers(crew: Crew, run: RunRecord) -> None:
    """Report how many workers the run has now, before they print anything."""
    count = len(crew.workers)
    await Report("workers", f"{count} of {run.id}", passing=True, about=SliceWorkers(count, run.directory))


async def forward_ports(fleet: FleetPort, ports: tuple[int, ...]) -> None:
    """Let ports of this machine lead to these of worker 0, and report which ones."""
    for line in await ForwardPorts(fleet, ports):
        await Report("ports", line)


def by_command(run: str, ports: Sequence[int]) -> str:
    """Return how to reach the ports of a detached run: no process here forwards them by itself."""
    return f"`tpujob forward {run}` leads to port{'s'[: len(ports) > 1]} {', '.join(map(str, ports))} of worker0"


async def _report_ends(status: FleetStatus, phase: str, reported: set[int]) -> None:
    """Report each worker on which the phase has ended, once; the one that the error will name as the first comes first."""
    for worker in status.ends:
        if worker.index not in reported:
            reported.add(worker.index)
            end = WorkerEnd(worker.index, worker.rc, worker.stopped)
            await Report(phase, f"worker{worker.index} ended with {worker.rc}", passing=True, about=end)


async def _settled(crew: Crew, status: FleetStatus) -> FleetStatus:
    """Return the status once the phase has ended on every worker, or SETTLE_S later."""
    give_up_at = await Now() + SETTLE_S
    while not status.ended and (left_s := give_up_at - await Now()) > 0:
        status = await WaitForWorkers(crew, left_s)
    return status


async def _failed(
    stay: Stay, lease: Lease | None, crew: Crew, status: FleetStatus, phase: str, run: str, reported: set[int]
) -> errors.TpujobError:
    """Stop what is left of a phase that failed; return its error, with the ends of all workers that are known."""
    if not status.all_exited:
        await _report_ends(status, phase, reported)
        left = [worker.index for worker in status.workers if not worker.final]
        await Report("stop", f"stopping what is left of the job on {worker_names(left) or 'its workers'}", passing=True)
        await stay.stop(lease, crew)
        status = await WaitForWorkers(crew, 0.0)
    await _report_ends(status, phase, reported)
    if not (first := status.first_failed).unreachable or lease is None:
        return stay.verdict(lease, status, run) or payload_failed(status, phase, run)
    servers = ", ".join(first.unreachable)
    text = f"the setup failed on worker{first.index} with code {first.rc}: the worker does not reach {servers}"
    return errors.NoRouteOut(text, hint=_route_out(lease))


def _route_out(lease: Lease) -> str:
    """Return what gives the workers a route to a package index."""
    if lease.route.via is Via.EXTERNAL:
        return "does the network of the slice forbid connections to the Internet? Or does the index not answer now?"
    nat = network.route_out(lease.name.project, network.NETWORK, lease.name.zone.rpartition("-")[0])
    return f"the slice has no external address: Cloud NAT gives it a route out ({nat}), or {INDEX_INSIDE}"


# What shells say with a code, and what it mostly comes of.
CODES = {
    126: "126 says that a file of the command may not be executed",
    127: "127 says that there is no such command: look at its name, and at what is installed",
    134: "134 says that it aborted itself (SIGABRT)",
    137: "137 says that it was killed (SIGKILL), usually because the host ran out of memory",
    139: "139 says that it crashed (SIGSEGV), mostly in compiled code of a package",
}


def payload_failed(status: FleetStatus, phase: str, run: str) -> errors.PayloadFailed:
    """Return the error of a phase that has failed on a worker. `run`: its id, for the hint."""
    first = status.first_failed
    worker, rc = first.index, first.rc
    ends = tuple(WorkerEnd(each.index, each.rc, each.stopped) for each in status.workers if each.final)
    failed = sum(each.failed for each in ends)
    what = "the setup" if phase == "setup" else "the job"
    hint = f"`tpujob logs {run} --worker {worker}` prints what worker{worker} wrote"
    if first.disk_full:
        hint = f"the disk of worker{worker} is full; {hint}"
    if rc is None:
        lost_by = first.detail or "its supervisor is gone"
        return errors.PayloadFailed(f"{what} on worker{worker} was lost: {lost_by}", hint=hint, workers=ends)
    if rc in CODES:
        hint = f"{CODES[rc]}; {hint}"
    where = f"{failed} workers, first on worker{worker}" if failed > 1 else f"worker{worker}"
    return errors.PayloadFailed(f"{what} failed on {where} with code {rc}", rc=rc, hint=hint, workers=ends)


# Seconds without a byte: named within ten seconds, as a worker sends something every two, and again later.
NAMED_S = (8.0, 30.0, 60.0, 300.0)
TOGETHER_S = 2.0  # workers that become silent within this time are named together


@dataclass(slots=True)
class Silence:
    """The workers of one phase that are named as silent."""

    _named: dict[int, int] = field(default_factory=dict)  # how often, by worker

    def news(self, workers: Sequence[WorkerStatus], now: float) -> list[str]:
        """Return what is new at `now` (unix seconds): all silent workers if one of them is to be named, those that are back."""
        silent_s = {worker.index: worker.silent_s(now) for worker in workers if not worker.final}
        told: list[str] = []
        if back := [index for index in self._named if silent_s.get(index, 0.0) < NAMED_S[0]]:
            told.append(f"{worker_names(back)} {'answers' if len(back) == 1 else 'answer'} again")
            for index in back:
                del self._named[index]
        if any(self._is_due(index, seconds) for index, seconds in silent_s.items()):
            for index, seconds in silent_s.items():
                while self._is_due(index, seconds + TOGETHER_S):
                    self._named[index] = self._named.get(index, 0) + 1
            told.append(self._line(silent_s, len(workers)))
        return told

    def _is_due(self, index: int, seconds: float) -> bool:
        count = self._named.get(index, 0)
        return count < len(NAMED_S) and seconds >= NAMED_S[count]

    def _line(self, silent_s: dict[int, float], workers: int) -> str:
        longest = format_duration(round(max(silent_s[index] for index in self._named)))
        names = f"{worker_names(self._named)} ({len(self._named)} of {workers})"
        return f"waiting for {names}: nothing came for {longest}; the job may go on there"


# Times `chip_s`: from the start of the job to the first look, between two (a minute: the API limits them), and between two once
# so much has passed. None is the last: a worker under load says it late, one whose job prepares its data first trains alone
# later, and this machine may have slept meanwhile.
FIRST, EVERY, SELDOM = 0.1, 0.2, 5.0


@dataclass(slots=True)
class ChipWatch:
    """A task of `monitor` for a job that began at `began` (unix seconds, the ledger's clock). `chip_s`: of the timings."""

    lease: Lease
    at: Standing
    attempt: str
    chip_s: float
    began: float
    _due: float = 0.0  # the next look, as `passed`
    _told: set[str] = field(default_factory=set)

    async def tick(self, silent_s: float = 0.0) -> None:
        """Ask what the workers have published, if that is due, and report what is new."""
        now = await Now()
        passed = (now - self.began) / self.chip_s - FIRST
        if passed < self._due:
            return
        every = EVERY if passed < SELDOM else SELDOM
        self._due = (int(passed / every) + 1) * every
        try:
            published = await GetGuestAttributes(self.lease.name)
        except errors.CloudError:
            return  # what became of the slice is asked elsewhere
        found = guest_reports.published(published, self.attempt)
        for use in found.keys() - self._told:
            self._told.add(use)
            cost = f"{format_usd(self.at.cost(now))} so far"
            await Report("warning", f"{found[use]}, {cost}; {guest_reports.HINTS[use]}")
