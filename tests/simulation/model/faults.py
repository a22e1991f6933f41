"""What goes wrong in one world: a plan drawn from a seed, and the outcome of each call under it.

A world enables a few families of faults at high rates and leaves the others out (swarm testing): a bug that needs two
particular faults together is found far sooner that way than in worlds where everything is slightly broken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from cloud_tpu_emulator.faults.fault import Fault
from cloud_tpu_emulator.faults.kinds import CREATES, KINDS
from cloud_tpu_emulator.model.records import Node, QueuedResource
from orchestrator.errors import AuthError, CloudError, CloudUnavailable

if TYPE_CHECKING:
    from tests.simulation.model.process import Process
    from tests.simulation.model.world import World

FOREVER = 1e12
TIMEOUT_S = 15.0  # timeout of a call, as in places/tpu/api/client.py
TRAVEL_S = 5.0  # longest way of a call that has its effect
VM_TIMEOUT_S = 2.0  # timeout of a call of the watchdog, at the emulated speed
LISTS = ("nodes.list", "queuedResources.list", "operations.list")
Window = tuple[float, float]  # seconds after the start of the world


@dataclass
class FaultPlan:
    """Times are seconds after the start. By default there are no faults."""

    families: tuple[str, ...] = ()
    # calls of all processes and watchdogs: probabilities
    rates: dict[str, float] = field(default_factory=dict)  # kind → probability
    login_rates: dict[str, float] = field(default_factory=dict)  # the same for calls to OS Login, beside `rates`
    rates_until: float = FOREVER
    # edges that are cut: "api" (for all), "laptop-api", "laptop-vm", "vm-api", "ci-api", "os-login"
    cut: dict[str, list[Window]] = field(default_factory=dict)
    forbidden: dict[str, list[Window]] = field(default_factory=dict)  # edge → 403: credentials revoked
    # the cloud
    create_effects: list[Fault] = field(default_factory=list)  # for the first creates, in order
    refusing: dict[str, CloudError] = field(default_factory=dict)  # zone → the reply to each create there
    lost_creates: int = 0  # that many creates have their effect, and their replies get lost
    lost_patches: int = 0
    delete_effects: list[Fault] = field(default_factory=list)  # for the first deletes, in order
    stuck: set[str] = field(default_factory=set)  # nodes of which every delete is accepted and comes to nothing
    patch_effects: list[Fault] = field(default_factory=list)
    while_creating: Fault | None = None  # what happens to deletes of a node in CREATING
    request_delete_effects: list[Fault] = field(default_factory=list)  # for the first deletes of queued requests
    vm_may_delete_requests: bool = True
    unreachable: float = 0.0  # probability of a partial list
    operations_gone: float = 0.0
    stockouts: tuple[str, ...] = ()  # zones
    full: list[tuple[str, float, float]] = field(default_factory=list)  # zone, start and end of its stockout
    closed: tuple[str, ...] = ()  # zones that accept no queued requests
    no_quota: tuple[str, ...] = ()
    forbid_external_ips: bool = False  # policies of the organization
    require_os_login: bool = False
    policy_says: str = (
        "call"  # how they refuse: the call; its operation, leaving a node; "in spite": and a node all the same
    )
    login_full: list[Window] = field(default_factory=list)  # when the OS Login profile is full
    delete_s: float = 1.0
    provision_s: float = 5.0
    accept_s: float = 0.2  # the emulator's settings of the same names
    queue_s: float = 1.0
    suspend_s: float = 0.5
    refuse_s: float = 1.5
    preempt_at: float | None = None
    preemptions: list[tuple[float, float]] = field(
        default_factory=list
    )  # time of the notice, and how long before the preemption it comes
    user_deletes_at: float | None = None
    spoiled: list[tuple[str, Window, Fault]] = field(default_factory=list)  # call, window, fault
    create_verb: str | None = None  # verb of create operations, if not the usual one
    slow_replies: dict[str, float] = field(default_factory=dict)  # call → extra seconds of its reply
    # processes: (name of a process, step, what dies) or (None, time, what dies)
    crashes: list[tuple[str | None, float, str]] = field(default_factory=list)
    signals: list[float] = field(default_factory=list)
    stopped: list[Window] = field(default_factory=list)  # SIGSTOP and SIGCONT of the command
    asleep: list[Window] = field(default_factory=list)  # the laptop is suspended
    reboot_after_s: float | None = None
    command_after_s: float | None = None  # the next tpujob command after a crash or a reboot
    guardian: str = "on"  # on, off (disabled), fails (does not start)
    # VMs
    script_runs: bool = True
    watchdog_dies: list[tuple[int, float, float | None]] = field(default_factory=list)  # worker, when, restarted after
    vms_paused: list[Window] = field(default_factory=list)  # live migration, a hanging host
    worker_dies: list[tuple[int, float, float | None]] = field(default_factory=list)
    # files and clocks of the client machine
    disk_full: Window | None = None
    ledger_lost_at: float | None = None
    clock_offset_s: float = 0.0
    clock_drift: float = 0.0
    clock_steps: list[tuple[float, float]] = field(
        default_factory=list
    )  # when the wall clock of the laptop is set, and by how much
    vm_drift: float = 0.0

    @property
    def stuck_creates_s(self) -> float:
        """Return by how much all creates are late, in total."""
        return sum(fault.seconds for fault in self.create_effects if "seconds" in fault.parameters)


class CallOutcome:
    """The outcome of one call. `reaches`: it has its effect. `error`: what the caller gets instead of the answer."""

    __slots__ = ("back_s", "effect", "error", "reaches", "there_s")

    def __init__(
        self,
        there_s: float = 0.05,
        back_s: float = 0.05,
        error: CloudError | None = None,
        reaches: bool = True,
        effect: Fault | None = None,
    ) -> None:
        self.there_s, self.back_s, self.error, self.reaches, self.effect = there_s, back_s, error, reaches, effect


def cloud_fault(kind: str, operation: str, **parameters: Any) -> Fault:
    """Return a fault of the emulator."""
    known = KINDS[kind]
    assert known.parameters.keys() >= parameters.keys(), f"{kind} has no {parameters.keys() - known.parameters.keys()}"
    return Fault(kind, operation, frozenset({operation}), parameters={**known.parameters, **parameters})


def covers(windows: list[Window], now: float) -> bool:
    return any(begin <= now < end for begin, end in windows)


def _unavailable(text: str, retry_after_s: float | None = None) -> CloudUnavailable:
    return CloudUnavailable(text, retry_after_s=retry_after_s)


# kind of a rate → the outcome of a call
_FATES: dict[str, Callable[[Random], CallOutcome]] = {
    "drop": lambda rng: CallOutcome(0.05, rng.uniform(0.0, 1.0), _unavailable("connection reset"), reaches=False),
    "lost_reply": lambda rng: CallOutcome(0.05, rng.uniform(0.0, 1.0), _unavailable("connection reset")),
    "e503": lambda rng: CallOutcome(0.05, 0.1, _unavailable("503"), reaches=False),
    "e503_effect": lambda rng: CallOutcome(0.05, 0.1, _unavailable("503")),
    "e429": lambda rng: CallOutcome(0.05, 0.1, _unavailable("429", rng.uniform(1.0, 10.0)), reaches=False),
    "hang": lambda rng: CallOutcome(0.05, TIMEOUT_S, _unavailable("timed out"), reaches=False),
    "hang_effect": lambda rng: CallOutcome(rng.uniform(0.05, TRAVEL_S), TIMEOUT_S, _unavailable("timed out")),
    "slow": lambda rng: CallOutcome(rng.uniform(0.5, 4.0), rng.uniform(0.1, 1.0)),
}


class FaultInjector:
    """Applies the plan. It has a generator of its own, so that the same calls in the same order have the same outcomes."""

    def __init__(self, world: World, plan: FaultPlan, seed: int) -> None:
        self.world, self.plan = world, plan
        self.rng = Random(seed ^ 0x5EED)
        self.begun_at = world.timeline.now
        self._rates = list(plan.rates.items())
        self.failed_calls: list[tuple[float, str, float]] = []  # when, role of the caller (or "vm"), duration
        self.slow_calls: list[tuple[float, str, float]] = []  # the same for calls that were answered
        self.creates = self.deletes = self.patches = self.request_deletes = 0

    def elapsed_s(self) -> float:
        return self.world.timeline.now - self.begun_at

    def vms_resume_in_s(self) -> float:
        """Return how much longer the VMs are paused."""
        now = self.elapsed_s()
        return max((end - now for begin, end in self.plan.vms_paused if begin <= now < end), default=0.0)

    def is_cut(self, *edges: str) -> bool:
        cut = self.plan.cut
        if "laptop-vm" in edges and self.plan.vms_paused and self.vms_resume_in_s():
            return True
        return bool(cut) and any(edge in cut and covers(cut[edge], self.elapsed_s()) for edge in edges)

    def outcome_of_call(self, verb: str, caller: str, edge: str, process: Process | None = None) -> CallOutcome:
        plan, rng = self.plan, self.rng
        now = self.world.timeline.now - self.begun_at
        if verb.startswith("osLogin."):
            return self._outcome_of_login(edge, now)
        if plan.cut and self.is_cut("api", edge):
            timeout_s = VM_TIMEOUT_S if caller == "vm" else TIMEOUT_S
            return CallOutcome(0.05, 0.1 if rng.random() < 0.5 else timeout_s, _unavailable("no answer"), reaches=False)
        if caller == "vm" and verb == "queuedResources.delete" and not plan.vm_may_delete_requests:
            return CallOutcome(0.05, 0.05, AuthError("permission denied"), reaches=False)
        if edge in plan.forbidden and covers(plan.forbidden[edge], now):
            return CallOutcome(0.05, 0.05, AuthError("permission denied"), reaches=False)
        if self._rates and now < plan.rates_until:
            luck = rng.random()
            for kind, probability in self._rates:
                luck -= probability
                if luck < 0:
                    outcome = _FATES[kind](rng)
                    if caller == "vm":
                        outcome.there_s, outcome.back_s = (
                            min(outcome.there_s, VM_TIMEOUT_S),
                            min(outcome.back_s, VM_TIMEOUT_S),
                        )
                    if outcome.reaches:
                        outcome.effect = self._effect(verb)
                    if outcome.error is None:
                        role = "vm" if process is None else process.role
                        self.slow_calls.append((self.world.timeline.now, role, outcome.there_s + outcome.back_s))
                    return outcome
        outcome = CallOutcome(0.02 + 0.08 * rng.random(), 0.02 + 0.08 * rng.random())
        outcome.back_s += plan.slow_replies.get(verb, 0.0)
        outcome.effect = self._effect(verb)
        if verb in CREATES:
            lost = self.creates <= plan.lost_creates
        else:
            lost = verb == "nodes.patch" and self.patches <= plan.lost_patches
        if lost:
            outcome.error = _unavailable("connection reset")
        return outcome

    def _outcome_of_login(self, edge: str, now: float) -> CallOutcome:
        """OS Login is an API of its own: it may be away, refuse, or be slow alone."""
        plan, rng = self.plan, self.rng
        if self.is_cut("api", edge, "os-login"):
            return CallOutcome(0.05, 0.1 if rng.random() < 0.5 else TIMEOUT_S, _unavailable("no answer"), reaches=False)
        if any(covers(plan.forbidden.get(each, []), now) for each in (edge, "os-login")):
            return CallOutcome(0.05, 0.05, AuthError("permission denied"), reaches=False)
        if now < plan.rates_until:
            luck = rng.random()
            for kind, probability in [*self._rates, *plan.login_rates.items()]:
                luck -= probability
                if luck < 0:
                    return _FATES[kind](rng)
        return CallOutcome(0.02 + 0.08 * rng.random(), 0.02 + 0.08 * rng.random())

    def _effect(self, verb: str) -> Fault | None:
        plan = self.plan
        if verb in CREATES:
            self.creates += 1
            return plan.create_effects[self.creates - 1] if self.creates <= len(plan.create_effects) else None
        if verb == "nodes.patch":
            self.patches += 1
            return plan.patch_effects[self.patches - 1] if self.patches <= len(plan.patch_effects) else None
        for name, window, fault in plan.spoiled:
            if name == verb and covers([window], self.elapsed_s()):
                return fault
        if plan.unreachable and verb in LISTS and self._early():
            return _UNREACHABLE if self.rng.random() < plan.unreachable else None
        if plan.operations_gone and verb == "operations.get" and self._early():
            return _GONE if self.rng.random() < plan.operations_gone else None
        return None

    def _early(self) -> bool:
        return self.elapsed_s() < self.plan.rates_until

    def delete_effect(self, node: Node) -> Fault | None:
        """Return the fault of a delete that has arrived: it depends on the state of the node."""
        plan = self.plan
        if node.node_id in plan.stuck:
            return _DROPPED
        if plan.while_creating is not None and node.state == "CREATING":
            return plan.while_creating
        self.deletes += 1
        return plan.delete_effects[self.deletes - 1] if self.deletes <= len(plan.delete_effects) else None

    def request_delete_effect(self, row: QueuedResource) -> Fault | None:
        if row.queue_id in self.plan.stuck:
            return _DROPPED
        self.request_deletes += 1
        effects = self.plan.request_delete_effects
        return effects[self.request_deletes - 1] if self.request_deletes <= len(effects) else None

    def note_failed_call(self, process: Process | None, outcome: CallOutcome) -> None:
        """Note an injected failure: its layer may be late by that much."""
        role = "vm" if process is None else process.role
        asked_s = getattr(outcome.error, "retry_after_s", None) or 0.0  # 429 with Retry-After
        self.failed_calls.append((self.world.timeline.now, role, outcome.there_s + outcome.back_s + asked_s))


_UNREACHABLE = cloud_fault("unreachable", "nodes.list")
_DROPPED = cloud_fault("delete_dropped", "nodes.delete", hidden=False)
_GONE = cloud_fault("operation_gone", "operations.get")
