"""The stay of a job on this machine (`on: local`): no slice, no lease, no cloud.

The end of this process ends the job too: Ctrl-C and `tpujob cancel` stop it with grace; if this process is killed, the
supervisor stops it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.core.lease.cloud_api import Capabilities
from orchestrator.core.lease.lease import CANCEL, Lease
from orchestrator.engine.effects.base import MakeNow, Report
from orchestrator.engine.effects.workers import StartCollection, StopPhase, WaitForCollection
from orchestrator.engine.leases.obligations import Obligations
from orchestrator.engine.leases.standing import SliceProblem
from orchestrator.errors import Canceled, Interrupted, TpujobError
from orchestrator.places.leased import STOP_GRACE_S
from orchestrator.places.local.traits import TRAITS
from orchestrator.places.place import Ask, End, Standing, Watch
from orchestrator.places.traits import Traits

if TYPE_CHECKING:
    from orchestrator.engine.provision.drafts import Draft
    from orchestrator.places.local.crew import LocalCrew
    from orchestrator.remote.fleet.port import Crew
    from orchestrator.remote.fleet.steps import FleetStatus
    from orchestrator.remote.transfer.collect import CollectRequest, CollectResult

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
                text = f"the job is being stopped; what still runs is killed after {STOP_GRACE_S:.0f} s"
                await Report("stop", text)
            else:
                return

    async def watch_rest(self, lease: Lease) -> None:
        """Watch nothing: nothing is billed."""

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

    def goes_on(self, error: TpujobError, collected: CollectResult | None) -> bool:
        return False
