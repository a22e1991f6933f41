"""What holds of the keys in the OS Login profile, and of the ways by which a run asks for its slices.

It is told of imports and removals as they arrive at OS Login, of answers, and of what processes report; the lease says only
whether it has a key at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from cloud_tpu_emulator.model.records import Node
from orchestrator.errors import CloudError, CloudUnavailable
from orchestrator.promise.lease.lease import Lease
from tests.simulation.model.faults import covers
from tests.simulation.oracle.invariants import Invariant

if TYPE_CHECKING:
    from orchestrator.promise.lease.access import Route
    from tests.simulation.model.world import World
    from tests.simulation.oracle.claims import Claim, Resource

OUTLIVES_S, TOLERANCE_S = 3600.0, 15.0
PATIENCE_S = (
    10.0  # the shortest that a process spends on a release, before it leaves a key that OS Login does not remove
)
LEFT = "stays in your OS Login profile until it expires"


@dataclass
class Removal:
    """What became of the removal of one key, up to the end of its lease."""

    failed_first_at: float | None = None
    final: bool = False  # OS Login refused, and another try would not help
    reported: bool = False


@dataclass
class LoginOracle:
    world: World
    removals: dict[str, Removal] = field(default_factory=dict)  # by lease
    down_at: dict[str, float] = field(default_factory=dict)  # when a process began to release it
    gone_at: dict[str, float] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)  # lease → the name of its node
    refused: dict[str, set[Route]] = field(default_factory=dict)  # claim → the ways that a policy refused

    # -- events ----------------------------------------------------------------------------------------------------------

    def key_set(self, lease: Lease, expires_at: float) -> None:
        """A key arrived at OS Login, or another expiry."""
        self.nodes[lease.id] = lease.name.node
        claim = self.world.oracle.claim_of(lease.id)
        final_at = self._final_at(claim, lease)
        if expires_at - OUTLIVES_S > final_at + TOLERANCE_S:
            over_s = expires_at - final_at
            text = f"the key of {lease.name.node} expires {over_s:.0f} s after its deadline"
            self.world.violated(Invariant.KEY_REMOVED, text)
        if expires_at < claim_needs(claim, lease):
            text = f"the key of {lease.name.node} expires before its slice must end"
            self.world.violated(Invariant.KEY_FIRST, text)

    def removal_failed(self, lease: Lease, error: CloudError) -> None:
        if lease.id in self.gone_at:
            return  # another process was faster
        known = self.removals.setdefault(lease.id, Removal())
        now = self.world.timeline.now
        known.failed_first_at = now if known.failed_first_at is None else known.failed_first_at
        known.final = not isinstance(error, CloudUnavailable)

    def removed(self, lease: Lease) -> None:
        self.removals[lease.id] = Removal()

    def told(self, text: str) -> None:
        if LEFT in text:
            for node, lease in self.world.oracle.intents.items():  # its key may arrive later
                if text.startswith(node):
                    self.removals.setdefault(lease.id, Removal()).reported = True

    def intended(self, claim: Claim | None, lease: Lease) -> None:
        """Check that a run does not ask again by a way that a policy refused."""
        if claim is not None and lease.route in self.refused.get(claim.label, ()):
            self.world.violated(
                Invariant.WAYS_END, f"{claim.label} asks again by a way that was refused: {lease.route}"
            )

    def way_refused(self, node_id: str) -> None:
        """A process that wants a node is told that a policy refuses its create. A release does not care why there is none."""
        lease = self.world.oracle.intents.get(node_id)
        claim = None if lease is None else self.world.oracle.claim_of(lease.id)
        full, now = self.world.plan.disk_full, self.world.faults.elapsed_s()
        if lease is None or claim is None or lease.id in self.down_at or (full is not None and covers([full], now)):
            return  # a run whose ledger is full ends, whatever it is told
        made = self.world.oracle.resources.values()
        if any(each.lease_id == lease.id and each.owner_deleted_at is not None for each in made):
            return  # it is released, which a full disk kept out of the ledger
        self.refused.setdefault(claim.label, set()).add(lease.route)

    def created(self, node: Node, known: Resource) -> None:
        """Check that the key of a node with OS Login was imported before."""
        if node.spec.get("metadata", {}).get("enable-oslogin") == "TRUE" and known.lease_id not in self.nodes:
            self.world.violated(Invariant.KEY_FIRST, f"{known} exists, and its key was never imported")

    def lease_gone(self, lease: Lease) -> None:
        """Check that the key was removed first, or that its removal failed for long enough and this was reported."""
        self.gone_at[lease.id] = self.world.timeline.now
        if lease.id in self._keys():
            self._check_left(lease.id, lease.name.node)

    def at_the_end(self) -> None:
        for lease_id in self._keys():
            if lease_id in self.gone_at:
                self._check_left(lease_id, self.nodes[lease_id])

    # -- judgement -------------------------------------------------------------------------------------------------------

    def _check_left(self, lease_id: str, node: str) -> None:
        known, gone_at = self.removals.get(lease_id, Removal()), self.gone_at[lease_id]
        if known.failed_first_at is None:
            self.world.violated(Invariant.KEY_REMOVED, f"{node} is GONE, and its key is in the profile")
        elif not known.reported:
            self.world.violated(Invariant.KEY_REMOVED, f"{node} is GONE; its key is left, which nothing reports")
        elif not known.final:  # with a full disk, the teardown begins before the ledger says so
            tried_s = gone_at - min(self.down_at.get(lease_id, gone_at), known.failed_first_at)
            if tried_s < PATIENCE_S:
                self.world.violated(Invariant.KEY_REMOVED, f"the key of {node} is left after {tried_s:.1f} s")

    def _final_at(self, claim: Claim | None, lease: Lease) -> float:
        """Return the latest deadline that the lease can have. A queued one waits first, from now if there is no request yet."""
        if claim is None:
            return inf
        if lease.name.queued and lease.id not in claim.requested_at:
            return self.world.timeline.now + (claim.wait_s + claim.life_s) * 1.01
        return claim.final_at(lease.id)

    def _keys(self) -> set[str]:
        return self.world.cloud.login_keys()


def claim_needs(claim: Claim | None, lease: Lease) -> float:
    """Return the earliest at which the key of a lease may expire: clocks may run wrong by one percent."""
    if claim is None:
        return 0.0
    return (
        claim.drafted_at.get(lease.id, claim.begun_at) + min(claim.life_s, claim.certain_life_s or claim.life_s) * 0.99
    )
