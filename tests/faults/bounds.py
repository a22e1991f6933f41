"""The promise once more, as formulas: how long a TPU may bill without a claim, by failure class.

Written from the promise table (docs/guarantee.md), with Google's periods; nothing here is read from the code under test.
An emulated cloud judges claims `speed` times faster, so these periods shrink; what a person's machine needs does not.
"""

from __future__ import annotations

from dataclasses import dataclass

# Seconds on Google Cloud.
TTL, GRACE, SLOP = 900.0, 180.0, 20.0
BOOT, LINGER, MARGIN, STAGGER, RARE_POLL = 600.0, 600.0, 120.0, 60.0, 300.0
FIRST_LEASE = 9000.0 + BOOT  # what the create call's label reaches over, on the emulated cloud

# Seconds of this machine, however fast claims are judged.
OWN_TEARDOWN = 10.0  # C0
GUARDIAN = 5.0  # C1
TIMER = 300.0  # C2
RETRY = 30.0  # C5: the longest pause between two tries
RETRY_AFTER = 60.0  # the longest that a 429 is obeyed
RESTART = 5.0  # of a switch that was killed
NOISE = 6.0  # rows play side by side on a busy machine, and processes start no faster because the emulated cloud does


@dataclass(frozen=True, slots=True)
class Promise:
    """`absent_s` is D: from an accepted delete to absence, which is the cloud's own time."""

    speed: float
    absent_s: float

    @property
    def scaled_ttl_s(self) -> float:
        return TTL / self.speed

    def own(self, *, failed: int = 0, outage_s: float = 0.0, ready_in_s: float = 0.0) -> float:
        """C0: a normal end, a signal or an exception. `ready_in_s`: the cloud takes no delete before."""
        return OWN_TEARDOWN + NOISE + self._deletes(failed, outage_s) + ready_in_s

    def guardian(self, *, failed: int = 0, outage_s: float = 0.0, ready_in_s: float = 0.0) -> float:
        """C1: the CLI was killed."""
        return GUARDIAN + NOISE + self._deletes(failed, outage_s) + ready_in_s

    def switch(self, *, boot: bool = False, failed: int = 0, outage_s: float = 0.0) -> float:
        """C3, C4, C8: nobody local is left. `boot`: the VM was not up yet."""
        periods = TTL + GRACE + SLOP + (BOOT if boot else 0.0)
        return periods / self.speed + NOISE + self._deletes(failed, outage_s)

    def creating(self, ready_in_s: float) -> float:
        """C3': nobody local is left, and the slice is still being created."""
        return ready_in_s + self.switch(boot=True)

    def detached(self) -> float:
        """C3 of a detached run, from the end of its job."""
        return (LINGER + GRACE + SLOP) / self.speed + NOISE + self._deletes(0, 0.0)

    def unarmed(self) -> float:
        """A detached run whose switch never says that it is armed: refused."""
        return BOOT / self.speed + self.own()

    def long_lease(self, *, worker: int = 0) -> float:
        """C3 where only the label counts any more, from the create call on: worker 0 is gone, worker `worker` acts."""
        late = GRACE + RARE_POLL + worker * STAGGER + SLOP
        return (FIRST_LEASE + late) / self.speed + NOISE + self._deletes(0, 0.0)

    def swept(self, *, every_s: float) -> float:
        """C7 and C10, from the create call on: nothing of ours is left but a sweep, every so many real seconds."""
        return (FIRST_LEASE + MARGIN) / self.speed + every_s + NOISE + self._deletes(0, 0.0)

    def outage(self, outage_s: float) -> float:
        """C5, with the CLI alive."""
        return self.own(outage_s=outage_s) + RETRY

    def _deletes(self, failed: int, outage_s: float) -> float:
        return self.absent_s * (failed + 1) + outage_s
