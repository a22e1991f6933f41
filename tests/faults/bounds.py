"""The promise once more, as formulas: how long a TPU may bill without a claim, by failure class.

Written from the promise table (docs/guarantee.md), with Google's periods; nothing here is read from the code under test.
An emulated cloud judges claims `speed` times faster, so these periods shrink; what a person's machine needs does not, and
grows on one that is slow or busy (`machine`).
"""

from __future__ import annotations

from dataclasses import dataclass

# Seconds on Google Cloud.
TTL, GRACE, SLOP = 900.0, 180.0, 20.0
BOOT, LINGER, MARGIN, STAGGER, RARE_POLL = 600.0, 600.0, 120.0, 60.0, 300.0
SHORT_LABEL = 1800.0  # how far ahead a label is set in rows that wait for its end

# Seconds of a quiet machine, however fast claims are judged.
OWN_TEARDOWN = 10.0  # C0
GUARDIAN = 5.0  # C1
TIMER = 300.0  # C2
RETRY = 30.0  # C5: the longest pause between two tries
RETRY_AFTER = 60.0  # the longest that a 429 is obeyed
RESTART = 5.0  # of a switch that was killed
NOISE = 6.0  # processes start no faster because the emulated cloud does
OWN_DELETE = 2.0  # what a delete takes besides the emulator's `delete_s`: ending the processes of the VMs


@dataclass(frozen=True, slots=True)
class Promise:
    """`delete_s` is the emulator's. `slowness`: how many times as long as on a quiet machine everything takes on this one."""

    speed: float
    delete_s: float
    slowness: float = 1.0

    @property
    def absent_s(self) -> float:
        """D: from an accepted delete to absence, which is the cloud's own time."""
        return self.delete_s + self.work(OWN_DELETE)

    def work(self, seconds: float) -> float:
        """What takes so long on a quiet machine."""
        return seconds * self.slowness

    def own(self, *, failed: int = 0, outage_s: float = 0.0, ready_in_s: float = 0.0) -> float:
        """C0: a normal end, a signal or an exception. `ready_in_s`: the cloud takes no delete before."""
        return self.work(OWN_TEARDOWN + NOISE) + self._deletes(failed, outage_s) + ready_in_s

    def guardian(self, *, failed: int = 0, outage_s: float = 0.0, ready_in_s: float = 0.0) -> float:
        """C1: the CLI was killed."""
        return self.work(GUARDIAN + NOISE) + self._deletes(failed, outage_s) + ready_in_s

    def switch(self, *, boot: bool = False, failed: int = 0, outage_s: float = 0.0) -> float:
        """C3, C4, C8: nobody local is left. `boot`: the VM was not up yet."""
        periods = TTL + GRACE + SLOP + (BOOT if boot else 0.0)
        return periods / self.speed + self.work(NOISE) + self._deletes(failed, outage_s)

    def creating(self, ready_in_s: float) -> float:
        """C3': nobody local is left, and the slice is still being created."""
        return ready_in_s + self.switch(boot=True)

    def detached(self) -> float:
        """C3 of a detached run, from the end of its job."""
        return (LINGER + GRACE + SLOP) / self.speed + self.work(NOISE) + self._deletes(0, 0.0)

    def unarmed(self) -> float:
        """A detached run whose switch never says that it is armed: refused."""
        return BOOT / self.speed + self.own()

    def after_label(self, *, worker: int = 0) -> float:
        """C3 where only the label counts any more, from its end on: worker 0 is gone, worker `worker` acts."""
        late = GRACE + RARE_POLL + worker * STAGGER + SLOP
        return late / self.speed + self.work(NOISE) + self._deletes(0, 0.0)

    def swept(self) -> float:
        """C7 and C10, from the label's end on: nothing of ours is left but a sweep, and it comes as soon as it may."""
        return MARGIN / self.speed + self.work(NOISE) + self._deletes(0, 0.0)

    def outage(self, outage_s: float) -> float:
        """C5, with the CLI or its guardian alive."""
        return self.own(outage_s=outage_s) + RETRY

    def _deletes(self, failed: int, outage_s: float) -> float:
        return self.absent_s * (failed + 1) + outage_s
