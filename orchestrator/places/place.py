"""The contract of a place: what it is, as data, and what a run asks of it while a job stays there.

A run is one program (`run.program`): obtain → settle → connect → deliver → start → follow → collect → release; `attach` is the
same program, which begins in the middle. It asks a `Stay` for what differs from place to place. Methods that await effects are
programs (`engine.effects.base`), so that a test can end them at every step. `tests/places/` plays what each of them promises.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from orchestrator.core.lease.cloud_api import Capabilities
from orchestrator.core.lease.lease import Lease
from orchestrator.core.lease.run_and_attempt import Attempt, AttemptState
from orchestrator.engine.leases.obligations import Obligations
from orchestrator.engine.leases.standing import SliceProblem
from orchestrator.errors import TpujobError

if TYPE_CHECKING:
    from orchestrator.engine.provision.drafts import Draft
    from orchestrator.places.traits import Traits
    from orchestrator.remote.fleet.port import Crew
    from orchestrator.remote.fleet.steps import FleetStatus, StartRequest
    from orchestrator.remote.transfer.collect import CollectResult


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

    async def leave(self, error: TpujobError | None, collected: CollectResult | None) -> CollectResult | None:
        """End what a lease does not end; return what is collected by now. Raises nothing."""

    def goes_on(self, error: TpujobError, collected: CollectResult | None) -> bool:
        """Return whether a job that runs without a process still does, after this error of the command that followed it."""
