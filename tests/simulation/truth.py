"""What is really so: which nodes exist, who has a claim on them and why, and whether an invariant was broken just now.

Claims are kept from what people and machines really did (a process lives, a job runs, a signal was sent, a lid was
closed), never from labels, and never from what the programs under test believe. The names I1 to I12 are those of the
design note; `promise` says how late a deletion may be.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from orchestrator.core.lease import Detached, Down, Extended, Gone, Held, Intent, Lease, LeaseEvent, LeaseState
from orchestrator.emulator.records import Node
from tests.simulation import promise

if TYPE_CHECKING:
    from tests.simulation.faults import Fate
    from tests.simulation.process import Process
    from tests.simulation.vm import SimFleet, Vm
    from tests.simulation.world import World

FOREVER = 1e18
_ORDER = {state: rank for rank, state in enumerate(LeaseState)}
PREFIX, MARK = "tpujob-", ("tpujob", "1")
_FAILING = ("operation_fails", "operation_forgets", "delete_dropped", "refuse_delete", "stuck")


@dataclass
class Case:
    """One run, or one slice that is held: its candidates' names, who answers for it, and when that ends."""

    label: str
    lease_ids: tuple[str, ...]
    life_s: float
    begun_at: float
    owner: Process | None = None
    for_hold: bool = False  # `up`: no sign of life goes to its VM, the labels speak for it
    sure_life_s: float | None = None  # while an extension is on its way, the shorter of both
    keep_s: float | None = None
    detach: bool = False  # is its command about to pass the claim to the job?
    hold_until: float | None = None
    hold_s: float | None = None
    asked_until: float = 0.0  # what a person typed may be in the labels, whether or not it could be written down
    detached_at: float | None = None
    job_ends_at: float | None = None
    connected_at: float | None = None
    extended_at: float | None = None
    downers: dict[str, Process] = field(default_factory=dict)  # lease → the `tpujob down` that was typed for it
    ends: list[tuple[float, str]] = field(default_factory=list)  # what ended the claim of its owner

    def end(self, at: float, why: str) -> None:
        self.ends.append((at, why))

    @property
    def final_at(self) -> float:
        """H: past it nothing may exist, whatever anybody says. (Clocks that run wrong by one percent are granted.)"""
        return self.begun_at + self.life_s * 1.01

    @property
    def mode(self) -> str:
        return "detached" if self.detached_at is not None else "hold" if self.hold_until is not None else "run"


@dataclass
class NodeTruth:
    uid: str
    node_id: str
    lease_id: str
    case: Case | None
    born_at: float
    vm: Vm
    foreign: bool = False  # somebody else's
    died_at: float | None = None
    taken_at: float | None = None  # preempted: from then on it is listed and not billed
    lost_at: float | None = None  # preempted, deleted by somebody else, or never really there
    given_up_at: float | None = None  # its owner sent a delete
    first_delete_at: float | None = None
    deleted_by: str = ""
    failed_deletes: int = 0
    slow_s: float = 0.0  # what the cloud took longer than usual for a delete


def is_ours(node: Node) -> bool:
    """Both marks, as the documentation promises them; not as the code looks for them."""
    key, value = MARK
    return node.node_id.startswith(PREFIX) and node.spec.get("labels", {}).get(key) == value


class Truth:
    def __init__(self, world: World) -> None:
        self.world, self.timeline = world, world.timeline
        self.cases: list[Case] = []
        self.nodes: dict[str, NodeTruth] = {}  # by uid, those that are gone too
        self.intents: dict[str, Lease] = {}  # by node name
        self.gone_at: dict[str, float] = {}  # by lease
        self.down_at: dict[str, float] = {}
        self.said_gone: dict[str, str] = {}  # lease → who exited with a code that says so
        self.beats: dict[str, float] = {}  # uid → the last
        self.billed_s = 0.0

    def case_of(self, lease_id: str) -> Case | None:
        return next((case for case in self.cases if lease_id in case.lease_ids), None)

    def alive(self) -> list[NodeTruth]:
        """Ours, those that nobody has seen gone."""
        return [node for node in self.nodes.values() if node.died_at is None and not node.foreign]

    def broken(self, invariant: str, text: str) -> None:
        self.world.broken(invariant, text)

    # -- nodes -------------------------------------------------------------------------------------------------------

    def born(self, node: Node) -> None:
        labels = node.spec.get("labels", {})
        lease_id = labels.get("tpujob-run", "")
        case, now = self.case_of(lease_id), self.timeline.now
        self.world.say(f"{node.node_id} exists ({node.state})")
        known = NodeTruth(node.uid, node.node_id, lease_id, case, now, self.world.sky.vms[node.uid])
        if node.name in self.world.foreign:
            self.nodes[node.uid] = replace(known, foreign=True)
            return
        if node.node_id not in self.intents:
            self.broken("I4", f"{node.node_id} exists, but no intent was committed before")
        if not is_ours(node) or not lease_id:
            self.broken("I4", f"{node.node_id} carries not both marks: a list alone could not find it")
        if lease_id in self.gone_at:
            self.broken(
                "I3", f"{node.node_id} comes to life {now - self.gone_at[lease_id]:.1f} s after it was called gone"
            )
        if lease_id in self.said_gone:
            self.broken("I7", f"{node.node_id} comes to life, though {self.said_gone[lease_id]} said it was gone")
        if case is not None:
            for other in self.alive():
                if other.case is case and other.lease_id not in self.down_at:
                    self.broken("I6", f"{node.node_id} and {other.node_id} of one run are billed at once")
        self.nodes[node.uid] = known
        self.labelled(node)
        self.world.watch_leaks()

    def labelled(self, node: Node) -> None:
        """I11: no label may promise more than the person did; whoever reads it by the server's clock would believe it."""
        case = self.nodes[node.uid].case
        said = node.spec.get("labels", {}).get("tpujob-deadline", "")
        if case is not None and said.isdigit() and int(said) > case.final_at + 15.0:
            self.broken("I11", f"{node.node_id} is labelled to live {int(said) - case.final_at:.0f} s too long")

    def died(self, uid: str, name: str) -> None:
        node = self.nodes[uid]
        node.died_at = self.timeline.now
        self.billed_s += (node.died_at if node.taken_at is None else node.taken_at) - node.born_at
        self.world.say(f"{node.node_id} is absent")
        self.judge(node)
        self.world.look_whether_over()

    def judge(self, node: NodeTruth) -> bool:
        """I1 and I11: was, or is, it billed for longer than promised with nobody's claim? True: it may still come to that."""
        case, now = node.case, self.timeline.now
        if case is None:
            return False
        ended_at, why = self.claim_end(case, node)
        begin = max(ended_at, node.born_at)
        until = now if node.died_at is None else node.died_at
        if until <= begin:
            return True
        verdict = promise.bound(self.world, case, node, begin)
        node.vm.world.verdicts[node.uid] = (until - begin, verdict)
        if until - begin > verdict.allowed_s:
            which = "I11" if why == "its deadline" else "I1"
            self.broken(
                which,
                f"{node.node_id} was billed for {until - begin:.1f} s without a claim (since {why}); promised: "
                f"{verdict.allowed_s:.1f} s by {verdict.layer}",
            )
            return False
        return verdict.allowed_s < FOREVER

    # -- claims ------------------------------------------------------------------------------------------------------

    def claim_end(self, case: Case, node: NodeTruth) -> tuple[float, str]:
        """When the last possible claim ended, and why; FOREVER while there is one."""
        ends = [(case.final_at, "its deadline")]
        downer = case.downers.get(node.lease_id)
        if downer is not None and (downer.alive or node.lease_id in self.down_at or not downer.killed):
            ends.append((downer.started_at, "somebody said down"))
        if node.lost_at is not None and case.hold_until is None:
            ends.append((node.lost_at, "it was taken away"))
        if case.detached_at is not None:
            if case.job_ends_at is not None:
                ends.append((case.job_ends_at + self.world.pace.linger_s * 1.01, "its job ended"))
        elif case.hold_until is not None:
            ends.append((max(case.hold_until, case.asked_until), "its hold ended"))
        else:
            ends += case.ends
            if case.owner is not None and not case.owner.alive:
                ends.append((case.owner.ended_at, f"{case.owner.name} ended"))
            if case.owner is not None and case.owner.frozen:
                ends.append((self.world.frozen_since, f"{case.owner.name} stands still"))
            if case.job_ends_at is not None and case.keep_s is None:
                handing_over_s = promise.HAND_OVER_S if case.detach else 0.0
                ends.append((promise.collected_by(self.world, case.job_ends_at) + handing_over_s, "its job ended"))
            if node.given_up_at is not None:
                ends.append((node.given_up_at, "its own delete"))
            if (down := self.down_at.get(node.lease_id)) is not None:
                ends.append((down, "it was given up"))
        return min(ends)

    def surely_claimed(self, case: Case, node: NodeTruth, caller: str) -> bool:
        """Is a deletion by this caller, now, friendly fire whatever the circumstances?"""
        now, life_s = self.timeline.now, case.sure_life_s or case.life_s
        if node.lost_at is not None or now >= case.begun_at + life_s * 1.01 - promise.last_minute_s(life_s):
            return False
        if case.mode != "run":
            ended_at, _ = self.claim_end(case, node)
            ended_at = min(ended_at, case.hold_until) if case.hold_until is not None else ended_at
            slack = (case.hold_s or case.life_s) * 0.02 + 3.0 + promise.clock_doubt_s(self.world)
            if case.mode == "detached" and caller == "collector" and case.job_ends_at is not None:
                return now < min(case.job_ends_at, ended_at) and not promise.job_was_lost(self.world, node)
            if caller.startswith("switch") and promise.was_blind(self.world):
                return False
            if case.mode == "detached" and caller.startswith("switch"):
                return now < ended_at - slack and not promise.job_was_lost(self.world, node)
            return now < ended_at - slack
        owner = case.owner
        if (
            owner is None
            or not owner.alive
            or owner.frozen
            or case.ends
            or node.lease_id in {*self.down_at, *case.downers}
        ):
            return False
        if node.given_up_at is not None:
            return False
        if caller.startswith("switch"):
            return promise.beats_got_through(self.world, case, node) and promise.renewals_got_through(self.world, case)
        return promise.renewals_got_through(self.world, case) if caller == "sweeper" else True

    # -- what happens ------------------------------------------------------------------------------------------------

    def delete_arrived(self, node: Node, caller: str, process: Process | None) -> None:
        known = self.nodes[node.uid]
        known.first_delete_at = known.first_delete_at or self.timeline.now
        known.deleted_by = known.deleted_by or caller
        self.world.say(f"delete of {node.node_id} by {process.name if process else caller} arrives")
        if known.foreign or not is_ours(node):
            self.broken("I5", f"{caller} deletes {node.node_id}, which is not ours")
            return
        case = known.case
        if case is not None and process is case.owner:
            known.given_up_at = known.given_up_at or self.timeline.now
        if case is not None and (process is None or process is not case.owner) and caller != "user":
            if process is not None and process in self.world.entitled:
                return
            if self.surely_claimed(case, known, caller):
                who = process.name if process else caller
                self.broken("I2", f"{who} deletes {node.node_id}, which {case.label} surely claims")

    def delete_accepted(self, node: Node, fate: Fate) -> None:
        known = self.nodes[node.uid]
        if fate.effect is not None and fate.effect.kind in _FAILING:
            known.failed_deletes += 1
            known.slow_s += fate.effect.seconds if "seconds" in fate.effect.parameters else 0.0

    def taken_away(self, node: Node) -> None:
        known = self.nodes[node.uid]
        known.lost_at = known.lost_at or self.timeline.now

    def signalled(self, process: Process) -> None:
        for case in self.cases:
            if case.owner is process:
                case.end(self.timeline.now, "a signal")

    def beat(self, vm: Vm) -> None:
        self.beats[vm.node.uid] = self.timeline.now

    def connected(self, fleet: SimFleet) -> None:
        known = self.nodes[fleet.vm.node.uid]
        if known.case is not None and known.case.owner is fleet.process:
            known.case.connected_at = self.timeline.now

    def job_started(self, vm: Vm, ends_at: float) -> None:
        case = self.nodes[vm.node.uid].case
        if case is not None:
            case.job_ends_at = ends_at

    def heard(self, event: LeaseEvent, before: Lease | None, after: Lease) -> None:
        """Every committed change of a lease, in any ledger."""
        now = self.timeline.now
        if self.world.trace is not None:
            self.world.say(f"ledger: {type(event).__name__} {after.name.node} → {after.state}")
        if before is not None and _ORDER[after.state] < _ORDER[before.state]:
            self.broken("I8", f"{after.name.node} went from {before.state} back to {after.state}")
        match event:
            case Intent():
                self.intents[after.name.node] = after
            case Down():
                case, actor = self.case_of(after.id), self.world.acting
                if case is None or actor is case.owner or actor is case.downers.get(after.id):
                    self.down_at.setdefault(after.id, now)  # nobody else has the right to give it up
            case Gone():
                self.gone_at.setdefault(after.id, now)
                for node in self.alive():
                    if node.lease_id == after.id:
                        self.broken("I3", f"{node.node_id} is called gone while it exists")
            case Held() | Extended() | Detached():
                self._moved(event, after, now)
        if type(event) is Gone:
            self.world.look_whether_over()

    def _moved(self, event: Held | Extended | Detached, lease: Lease, now: float) -> None:
        case = self.case_of(lease.id)
        if case is None:
            return
        if isinstance(event, Detached):
            case.detached_at = now
            if not promise.could_be_armed(self.world):
                self.broken("I1", f"{lease.name.node} is left to a switch that can never have been armed")
            return
        if isinstance(event, Extended):
            case.extended_at = now
            case.life_s, sure_s = max(lease.deadline - lease.created_at, case.sure_life_s or 0.0), case.sure_life_s
            in_time = sure_s is None or now < case.begun_at + sure_s - promise.last_minute_s(sure_s)
            case.sure_life_s = case.life_s if in_time else sure_s  # else its job is being stopped already
            if case.hold_until is None:
                return
        ahead_s = max(lease.ends_at - self.world.laptop.clock.now(), 0.0)
        case.hold_s, case.hold_until = ahead_s, now + ahead_s * 1.01
        self.world.watch_leaks()
