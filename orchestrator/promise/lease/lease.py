"""A lease: the obligation for one billable slice, from intent to proven absence. Pure: its states, and what they mean.

What changes a lease is in `promise.lease.changes`. The attempt that uses a lease has its own states
(`promise.lease.run_and_attempt`): it may fail, succeed or be lost, and none of that ends the obligation.

(No `slots` here, in `cloud_api` and in `run_and_attempt`: they double the time to create a class.)
"""

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.promise.lease.access import DIRECT, Route


class LeaseState(StrEnum):
    """The states of a lease, in order; GONE and FORGOTTEN are final."""

    INTENT = "intent"  # the name is recorded; a create may or may not have left
    CREATING = "creating"  # the API confirmed the create
    READY = "ready"  # the slice was seen READY; its create has settled
    DOWN = "down"  # to be deleted; stays here, whatever happens, until absence is proven
    GONE = "gone"  # absence proven
    FORGOTTEN = "forgotten"  # the user took the obligation over: nothing is proven, and it is never called gone


class Mode(StrEnum):
    """What the claim rests on, as the label `tpujob-mode` tells the watchdog on the VM and gc."""

    RUN = "run"  # the process that created the slice, while it sends heartbeats
    HOLD = "hold"  # the user, until `hold_until`
    DETACHED = "detached"  # the job on the VM, until it ends


class HeldFor(StrEnum):
    """Why a slice is held."""

    USER = "user"  # `tpujob up`, `run --keep`
    RESULTS = "results"  # results of its run that are not collected
    FAILURE = "failure"  # its run failed: to look, and for the next run of the job, which takes it over


CANCEL, DOWN = "tpujob cancel", "tpujob down"  # the reasons of a release that cancels the run on the slice


class Purpose(StrEnum):
    """What the slice is for."""

    RUN = "run"  # ends with its run
    QUEUE = "queue"  # ends with its run, after which the queue looks once that runs on its own
    HOLD = "hold"  # created by `tpujob up`, or kept after a run (see HeldFor): ends with `down`, or at `hold_until`
    ELSEWHERE = "elsewhere"  # made by another machine, whose claim it is: ends here only with `down` and its like


@dataclass(frozen=True)
class SliceName:
    """A slice's project, zone and node id. The id is chosen and recorded before the create call, and never used twice.

    A `queued` slice is a queued resource and the node created from it, both under this one id.
    """

    project: str
    zone: str
    node: str
    queued: bool = False


@dataclass(frozen=True)
class Lease:
    """One row of the ledger. Times are unix seconds of the ledger.

    `deadline` is final: past it, any tpujob command deletes the slice.
    """

    id: str
    handle: str  # the name for the user: that of `up`, or the job's
    purpose: Purpose
    cloud: str  # "emulated", "google" or "gke": a lease is only ever acted on in the cloud that it names
    name: SliceName
    accelerator_type: str
    runtime_version: str
    spot: bool
    owner: str
    deadline: float
    created_at: float
    provisioning: str = "on-demand"  # a value of `capacity.provisioning.Provisioning`
    ready_by: float | None = None  # until when a queued request may wait for capacity
    usd_per_hour: float | None = None  # None: no price is known
    budget_usd: float | None = None  # the most that it may cost; the deadline keeps to it
    state: LeaseState = LeaseState.INTENT
    hold_until: float | None = None
    held_for: HeldFor | None = None  # since it was held first
    detached_at: float | None = None  # since then the claim rests on the job on the VM, not on a process here
    sent_at: float | None = None  # the last create call left no earlier than this (recorded before it leaves)
    sends: int = 0  # create calls that may have had, or may yet have, an effect
    operation: str | None = None  # the create's operation, once the API has named it
    settled: bool = False  # every create that left was seen to end: none can create the slice any more
    ready_at: float | None = None
    down_at: float | None = None
    gone_at: float | None = None
    reason: str = ""  # why it is to be deleted
    idle_s: float | None = None  # its watchdog deletes it when it is held and unused for so long; None: never
    run: str | None = None  # the id of its run; None: created by `up`
    route: Route = DIRECT  # to its workers
    slices: int = 1  # of this type; a job on a cluster may have several
    understood: bool = True  # False: it has a word of a newer tpujob, which alone says when its claim is over

    @property
    def billed_from(self) -> float | None:
        """Since when it may be billed: a node since its create call, a queued slice since READY. None: not yet."""
        return self.ready_at if self.name.queued else self.sent_at

    @property
    def open(self) -> bool:
        """Whether the obligation still stands."""
        return self.state not in (LeaseState.GONE, LeaseState.FORGOTTEN)

    @property
    def canceled_by(self) -> str | None:
        """The command with which the user ended the slice, and the run on it; None: it has not ended, or for another reason."""
        return self.reason if self.reason in (CANCEL, DOWN) else None

    @property
    def mode(self) -> Mode:
        """What the claim rests on now."""
        if self.detached_at is not None:
            return Mode.DETACHED
        # A slice of `up` belongs to its process until it is held: if that dies before, the heartbeats that stop count.
        return Mode.RUN if self.hold_until is None else Mode.HOLD

    @property
    def runs_detached(self) -> bool:
        """Whether the claim rests on a job that goes on, or waits for its start, without a process here."""
        return self.detached_at is not None and self.state in (LeaseState.CREATING, LeaseState.READY)

    def is_waited_out(self, now: float) -> bool:
        """Return whether its detached job was to run by now, though that is not known yet. `now`: ledger time."""
        waits = self.runs_detached and self.state is LeaseState.CREATING
        return waits and self.ready_by is not None and now >= self.ready_by

    @property
    def ends_at(self) -> float:
        """When its claim ends at the latest, as far as is known now."""
        return self.deadline if self.hold_until is None else min(self.hold_until, self.deadline)


def release_reason(lease: Lease, *, now: float, owner_alive: bool) -> str | None:
    """Return why the lease may be released; None while it is claimed, or closed. `now`: ledger time.

    `owner_alive`: a live process holds the lease's lock.
    """
    if not lease.open:
        return None
    if lease.state is LeaseState.DOWN:
        return None if owner_alive else lease.reason or "its teardown was not finished"
    if lease.purpose is Purpose.ELSEWHERE:
        return None  # another machine may have moved its end: the labels decide, which watchdog and gc obey
    if now >= lease.deadline:
        return "it reached its deadline"
    if owner_alive or lease.runs_detached:
        return None
    if lease.state is LeaseState.READY and lease.hold_until is not None:
        return None if now < lease.hold_until else "the time it was to be kept is over"
    return "the process that created it is gone"
