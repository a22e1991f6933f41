"""The contract of a place: what it is, as data, and what a run asks of it while a job stays there.

A run is one program (`run.program`): obtain → settle → connect → deliver → start → follow → collect → release; `attach` is the
same program, which begins in the middle. It asks a `Stay` for what differs from place to place. Methods that await effects are
programs (`promise.effects.base`), so that a test can end them at every step. `tests/places/` plays what each of them promises.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.errors import SliceLost, TpujobError
from orchestrator.promise.lease.cloud_api import Capabilities, Cloud
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord, SavedState
from orchestrator.promise.obligations import Obligations
from orchestrator.promise.standing import SliceProblem

if TYPE_CHECKING:
    from orchestrator.capacity.plan import Plan
    from orchestrator.hosts.fleet.crew import Crew, FleetStatus, StartRequest
    from orchestrator.hosts.fleet.saved_work import SavedWork
    from orchestrator.hosts.shipping.shipment import Shipment
    from orchestrator.hosts.transfer.collect import CollectRequest, CollectResult
    from orchestrator.hosts.transfer.collection import Collection
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.places.desk import Desk, Lines
    from orchestrator.promise.effects.world import ReachPort
    from orchestrator.promise.obtain.drafts import Draft
    from orchestrator.text.terminal import Table
    from orchestrator.traits import Traits


@dataclass(frozen=True, slots=True)
class Ask:
    """What one attempt asks for. Times are unix seconds of the ledger."""

    attempt: Attempt
    at: float
    max_duration_s: float  # of the job, less what its attempts before have used
    used_s: float = 0.0  # of the job's time, by attempts whose slices were lost
    spent_usd: float = 0.0  # by them
    again: bool = False  # an attempt before this one has lost its slice
    attached: bool = False  # the job runs already, or waits for its start


MAX_COST = "limits.max_cost"


@dataclass(frozen=True, slots=True)
class End:
    """When the job is stopped (unix seconds, the ledger's clock), and by which limit."""

    at: float
    why: str = "limits.max_duration"
    movable: bool = True  # by `tpujob extend`
    spare_s: float = 0.0  # of it, for a job that keeps the limit by itself


@dataclass(frozen=True, slots=True)
class Standing:
    """A job whose workers can be reached now. Times are unix seconds of the ledger."""

    lease: Lease | None  # None: nothing is billed
    began: float
    end: End
    billed_since: float
    spent_usd: float = 0.0  # by attempts before
    patience_s: float | None = None  # a worker that does not answer for so long is lost; None: as `run.monitor` has it
    starts: tuple[
        float, ...
    ] = ()  # of the job, each an attempt, at a place that starts it again by itself; else nothing

    def cost(self, now: float) -> float | None:
        """Return the dollars so far; None without a known price."""
        price = None if self.lease is None else self.lease.usd_per_hour
        return None if price is None else self.spent_usd + price * max(now - self.billed_since, 0.0) / 3600


@dataclass(frozen=True, slots=True)
class Phase:
    """One supervised script on every worker: `setup`, if there is anything to set up, or `main`.

    `request(attempt, lease, hosts, coordinator)` returns the start request, once the addresses are known. None: the phase
    starts without this machine.
    """

    name: str
    state: AttemptState
    request: Callable[[Attempt, Lease | None, Sequence[str], str], StartRequest] | None = None


STATES = {"setup": AttemptState.SETUP, "main": AttemptState.RUNNING}  # of an attempt, by the name of its phase


class PeriodicTask(Protocol):
    """Work that is done in small steps while a job runs."""

    async def tick(self, silent_s: float = 0.0) -> None:
        """Do the next step, if it is due. `silent_s`: for so long a worker has not answered; 0 if all do."""


Watch = Callable[[End], Awaitable[None]]


class Ground(Protocol):
    """What a job stands on. `lease`: None at a place that bills nothing."""

    async def check(self, lease: Lease | None) -> Lease | None:
        """Return the lease as it is now. Raises Vanished or Canceled once the user has ended the job. Asks no cloud."""

    async def look(self, lease: Lease | None) -> SliceProblem | None:
        """Ask the place whether it is still there; return a problem that it shows.

        Raises Vanished or SliceLost if it is not. A place that does not answer raises nothing.
        """


class Stay(Ground, Protocol):
    """The stay of one job at a place, prepared before anything is asked for."""

    @property
    def traits(self) -> Traits:
        """What is true of the place."""

    @property
    def drafts(self) -> tuple[Draft, ...]:
        """What is asked for, in order; names and leases are chosen. Empty where nothing is created."""

    async def obtain(self, ask: Ask, owed: Obligations, capabilities: Capabilities) -> Lease | None:
        """Ask for what the job runs on; return its lease, once it is accepted or READY.

        The lease is in `owed` before the call that creates anything leaves. Raises CapacityError and other CloudErrors,
        Vanished if another command has released it meanwhile.
        """

    async def settle(self, ask: Ask, lease: Lease | None, capabilities: Capabilities) -> Standing:
        """Wait until the job's workers are there, and record that; return since when the job runs, and until when it may.

        Raises what the place says of a job that cannot start, Vanished or SliceLost if it was taken away.
        """

    async def connect(self, ask: Ask, lease: Lease | None) -> Crew:
        """Connect to all workers. Raises RemoteError, or what the place says of workers that are gone."""

    async def classify(self, lease: Lease | None, status: FleetStatus) -> None:
        """Raise SliceLost if the place made the job fail; its `still_there` says whether the workers can still be reached."""

    def verdict(self, lease: Lease | None, status: FleetStatus, run: str) -> TpujobError | None:
        """Return why the job failed, where its place knows more than its exit codes; None: they say it."""

    async def follow(self, watch: Watch, standing: Standing, crew: Crew) -> None:
        """Watch a phase until `standing.end`, with what the place knows of its end.

        Raises PayloadFailed and DeadlineExceeded for the job's own failures, SliceLost and Vanished for the others.
        """

    async def stop(self, lease: Lease | None, crew: Crew) -> None:
        """Stop the phase on every worker, with a period of grace. A worker that cannot be reached is reported."""

    async def tell_rest(self, lease: Lease, *, watch: bool) -> None:
        """Report what the end of the lease leaves billed. `watch`: until it is gone, for a bounded time."""

    async def leave(self, error: TpujobError | None, collected: CollectResult | None) -> CollectResult | None:
        """End what a lease does not end; return what is collected by now. Raises nothing."""

    def starts_again(self, lost: SliceLost, attempt: Attempt) -> bool:
        """Return whether the place starts the job again by itself, on the same lease, after this end of an attempt."""

    async def saved(self) -> SavedState | None:
        """Return what the workers have saved of the work of the job; None where only the process of the run knows."""

    def goes_on(self, error: TpujobError, collected: CollectResult | None) -> bool:
        """Return whether a job that runs without a process still does, after this error of the command that followed it."""


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """A run of a queue: it has its id since it was added, and the queue counts its attempts."""

    run: str
    attempt: int  # from 1; one that gets no slice is made again under the same number
    # Called when the slice is the job's, before that starts; raises if it must not.
    before_start: Callable[[Lease], None]
    # Called when the start fails after that: returns whether the slice is still this process's to delete.
    not_started: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Wish:
    """How a command wishes to run a job, beside what its file says."""

    keep_s: float | None = None  # hold the slice for so long after a success
    detach: bool = False  # return once the job has started
    cloud_is_named: bool = False  # by the command, not by the settings
    one_of_several: bool = False  # of a sweep on one slice, whose plan and data are told already
    has_slice: bool = False  # which the run before leaves to it
    sweep: Mapping[str, Any] | None = None  # of which sweep the run is, and which of its variants
    resume: str | None = None  # the run whose saved work in the bucket of the job the next attempt goes on from
    queued: QueuedRun | None = None
    only_plan: bool = False  # nothing is run: this machine need not have what a run needs of it
    check_workers: Callable[[int], None] = lambda count: None  # raises UserError for too few workers


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job that is ready to begin; nothing is asked for yet."""

    run: RunRecord
    attempt: Attempt
    stay: Stay
    phases: tuple[Phase, ...]
    shipment: Shipment | None = None  # what is sent once the workers are there
    shipped: Shipment | None = None  # what is with the job otherwise: in the request, or on this machine
    held: Lease | None = None  # a held slice that fits
    saved_work: SavedWork | None = None
    resumed: SavedState | None = None  # what the run that goes on has in its bucket
    max_restarts: int = 0
    drafted: Sequence[str] = ()  # leases whose keys are made
    files: Mapping[str, str] = field(default_factory=dict)  # texts that go into the directory of the run first


@dataclass(frozen=True, slots=True)
class PlanMade:
    """What a run would ask for. `plan` None: nothing."""

    cloud: str
    project: str | None
    plan: Plan | None = None
    requests: tuple[Mapping[str, Any], ...] = ()  # method, url and body of the create call of each candidate
    notes: tuple[str, ...] = ()  # the plan in sentences
    table: Table | None = None  # of the candidates
    overlap_usd: float | None = 0.0  # of a race, while its losers are deleted
    environment: Mapping[str, Any] | None = None  # the versions that were chosen for `requirements:`
    more: Mapping[str, Any] = field(default_factory=dict)  # what only this place has, as JSON values

    def shape(self, spec: JobSpec) -> dict[str, Any]:
        """Return the whole as JSON values; at every place with the same keys."""
        plan = self.plan
        first = None if plan is None else plan.candidates[0]
        asked = () if plan is None else zip(plan.candidates, self.requests, strict=False)
        return {
            "job": spec.name,
            "cloud": self.cloud,
            "project": self.project,
            "candidates": [{**one.shape(), "request": request} for one, request in asked],
            "dropped": [] if plan is None else [asdict(dropped) for dropped in plan.dropped],
            "order": spec.tpu.order if plan is None else plan.order,
            "race": plan is not None and plan.race,
            "wait_s": 0.0 if plan is None else plan.wait_s,
            "asked": None if plan is None else plan.availability_note,
            "workers": 1 if first is None else first.workers,
            "cores": None if first is None else first.cores,
            "max_duration_s": spec.limits.max_duration_s if plan is None else plan.max_duration_s,
            "max_results_bytes": spec.limits.max_results,
            "worst_case_usd": 0.0 if plan is None else plan.worst_case_usd,
            "overlap_usd": self.overlap_usd,
            "request": self.requests[0] if self.requests else None,
            "environment": self.environment,
            **self.more,
        }


@dataclass(frozen=True, slots=True)
class Workers:
    """For what packages are chosen."""

    what: str  # such as "a TPU VM"
    python: str  # where the job names none; "": not known here
    platform: str | None  # as uv names it; None: that of this machine
    lend_torch: bool = False


@dataclass(frozen=True, slots=True)
class CompileTarget:
    """For what XLA compiles a job: accelerator types, in order, of which it gets one; and the workers that install packages."""

    accelerators: tuple[str, ...]
    workers: Workers
    slices: int = 1


class Place(Protocol):
    """A kind of place. It has no state: what it knows of a command, it asks the `Desk`."""

    traits: Traits

    def check(self, desk: Desk, spec: JobSpec, path: Path, wish: Wish) -> None:
        """Refuse a job, or a wish, before anything is asked for. Raises JobSpecError with the line of the key, UserError.

        What the file alone tells is refused when it is read: `check.problems` beside this.
        """

    def capacity(self, desk: Desk, spec: JobSpec, wish: Wish) -> Plan | None:
        """Return what the job asks for; None: nothing. Raises UserError if none of its alternatives can be asked for."""

    def describe(self, desk: Desk, spec: JobSpec, plan: Plan) -> Sequence[str]:
        """Return the plan in sentences."""

    def plan(self, desk: Desk, spec: JobSpec, path: Path) -> PlanMade:
        """Return what a run would ask for, with the exact requests. Sends none of them. Raises as `check` and `capacity`."""

    def prepare(
        self, desk: Desk, spec: JobSpec, env: Mapping[str, str], path: Path, wish: Wish, stack: ExitStack
    ) -> Prepared:
        """Say the plan, and return the job, ready to begin; `stack` lets go of what it holds on this machine.

        `env`: the variables of the job, resolved. Raises as `check` and `capacity`; nothing was created then.
        """

    def attached(self, run: RunRecord, lease: Lease) -> tuple[Stay, tuple[Phase, ...]]:
        """Return the stay of a job that runs without a process, and the phases that are followed."""

    def compiles_for(self, desk: Desk, spec: JobSpec) -> CompileTarget | None:
        """Return for what the programs of a job are compiled there; None: for no TPU. Raises UserError."""

    def end_run(self, desk: Desk, run: RunRecord, attempt: Attempt) -> None:
        """Tell the process of a run that the user has ended it. What it has is released, or stopped, after that."""

    def tidy(self, desk: Desk, run: RunRecord) -> None:
        """Delete what the end of its lease does not delete of a run. A failure is reported."""

    def rest(self, desk: Desk, project: str, names: Sequence[str]) -> str:
        """Return which of these machines (`NodesUsed`) are there for ended jobs alone, in words. Raises CloudError."""

    def stored(self, desk: Desk, run: RunRecord, order: CollectRequest) -> Collection | None:
        """Start collecting what a run has left outside its slice, for any machine; None: nothing is left there."""

    def open_cloud(self, lines: Lines, cloud: str) -> Cloud:
        """Return the client of a cloud of this place. Raises CloudError, ConfigError."""

    def reach(self, desk: Desk, cloud: str) -> ReachPort:
        """Return the ways to the workers of a cloud of this place. Connects to nothing yet."""
