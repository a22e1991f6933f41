"""What is really so: which nodes and requests exist, who has a claim on them and why, and whether an invariant was broken.

Claims are kept from what people and machines really did (a process lives, a job runs, a signal was sent, a lid was
closed), never from labels, and never from what the programs under test believe. The names I1 to I12 are those of the
design note; `promise` says how late a deletion may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core.lease.lease import (
    Detached,
    Down,
    Extended,
    Gone,
    Held,
    Intent,
    Lease,
    LeaseEvent,
    LeaseState,
    Ready,
)
from orchestrator.emulator.model.queue_records import QueuedResource
from orchestrator.emulator.model.records import Node
from tests.simulation.oracle import bounds
from tests.simulation.oracle.claims import FOREVER, Case, Thing, is_ours, labels_of

if TYPE_CHECKING:
    from tests.simulation.model.faults import Fate
    from tests.simulation.model.process import Process
    from tests.simulation.model.vm import SimFleet, Vm
    from tests.simulation.model.world import World

_ORDER = {state: rank for rank, state in enumerate(LeaseState)}
_FAILING = ("operation_fails", "operation_forgets", "delete_dropped", "refuse_delete", "stuck", "stalled")


class Truth:
    def __init__(self, world: World) -> None:
        self.world, self.timeline = world, world.timeline
        self.cases: list[Case] = []
        self.things: dict[str, Thing] = {}  # by uid, those that are gone too
        self.intents: dict[str, Lease] = {}  # by node name
        self.intended_at: dict[
            str, float
        ] = {}  # by node name: from then on it waits, however often it has to be asked for
        self.gone_at: dict[str, float] = {}  # by lease
        self.down_at: dict[str, float] = {}
        self.collected_at: dict[str, float] = {}  # by lease: when whoever followed a detached run gave its slice up
        self.said_gone: dict[str, str] = {}  # lease → who exited with a code that says so
        self.beats: dict[str, float] = {}  # uid → the last
        self.billed_s = 0.0

    def case_of(self, lease_id: str) -> Case | None:
        return next((case for case in self.cases if lease_id in case.drafted_at), None)

    def alive(self) -> list[Thing]:
        """Ours, those that nobody has seen gone: nodes and requests."""
        return [thing for thing in self.things.values() if thing.died_at is None and not thing.foreign]

    def nodes(self) -> list[Thing]:
        return [thing for thing in self.things.values() if thing.request is None]

    def broken(self, invariant: str, text: str) -> None:
        self.world.broken(invariant, text)

    # -- births and deaths -------------------------------------------------------------------------------------------

    def born(self, node: Node) -> None:
        lease_id = labels_of(node).get("tpujob-lease-id", "")
        known = Thing(node.uid, node.node_id, lease_id, self.case_of(lease_id), self.timeline.now)
        known.vm = self.world.sky.vms[node.uid]
        self.world.say(f"{node.node_id} exists ({node.state})")
        if node.name in self.world.foreign:
            known.foreign = True
            self.things[node.uid] = known
            return
        self._came_to_be(known, node)
        for other in self.alive():
            if other.request is not None and other.lease_id == lease_id:
                other.node, other.vm = known, known.vm
            if other.case is known.case is not None and other.lease_id != lease_id:
                self._two_at_once(known, other)
        self.things[node.uid] = known
        self.world.watch_leaks()

    def asked(self, row: QueuedResource) -> None:
        lease_id = labels_of(row).get("tpujob-lease-id", "")
        case, now = self.case_of(lease_id), self.timeline.now
        known = Thing(row.uid, row.queue_id, lease_id, case, now, request=row)
        self.world.say(f"{row.queue_id} is queued ({row.state})")
        if case is not None:
            case.requested_at[lease_id] = now
            if row.valid_until is None or row.valid_until > now + case.waits_s * 1.01 + 1.0:
                self.broken("I11", f"{known} may wait until {row.valid_until}, longer than anybody said")
            else:
                case.waiting_until[lease_id] = self.intended_at.get(known.node_id, now) + row.valid_until - now
        self._came_to_be(known, row)
        for other in self.alive():
            if other.case is case is not None and other.lease_id != lease_id:
                self._two_at_once(known, other)
        self.things[row.uid] = known
        self.world.watch_leaks()

    def _came_to_be(self, known: Thing, found: Node | QueuedResource) -> None:
        now, lease_id = self.timeline.now, known.lease_id
        if known.node_id not in self.intents:
            self.broken("I4", f"{known} exists, but no intent was committed before")
        if not is_ours(found) or not lease_id:
            self.broken("I4", f"{known} carries not both marks: a list alone could not find it")
        if lease_id in self.gone_at:
            self.broken("I3", f"{known} comes to life {now - self.gone_at[lease_id]:.1f} s after it was called gone")
        if lease_id in self.said_gone:
            self.broken("I7", f"{known} comes to life, though {self.said_gone[lease_id]} said it was gone")
        self.labelled(found, known)

    def _two_at_once(self, known: Thing, other: Thing) -> None:
        """I6: outside a race the next one is not asked for before the one before is gone. `judge` bounds the race."""
        assert known.case is not None
        race = known.case.races.get(known.lease_id)
        if race is None or other.lease_id not in race.lease_ids:
            self.broken("I6", f"{known} and {other} of one run are there at once")

    def labelled(self, found: Node | QueuedResource, known: Thing | None = None) -> None:
        """I11: no label may promise more than the person did; whoever reads it by the server's clock would believe it."""
        known = known or self.things[found.uid]
        case, said = known.case, labels_of(found).get("tpujob-deadline", "")
        if case is None or not said.isdigit():
            return
        over_s = int(said) - case.final_at(known.lease_id)
        if over_s > 15.0:
            self.broken("I11", f"{known} is labelled to live {over_s:.0f} s too long")

    def died(self, uid: str) -> None:
        thing = self.things[uid]
        thing.died_at = self.timeline.now
        if thing.request is None:
            self.billed_s += (thing.billed_until or 0.0) - thing.born_at
        self.world.say(f"{thing} is absent")
        self.judge(thing)
        self.world.look_whether_over()

    def judge(self, thing: Thing) -> bool:
        """I1 and I11: was, or is, it there for longer than promised with nobody's claim? True: it may still come to that."""
        case, now = thing.case, self.timeline.now
        if case is None:
            return False
        ended_at, why = self.claim_end(case, thing)
        begin = max(ended_at, thing.born_at)
        until = now if thing.died_at is None else thing.died_at
        if until <= begin:
            return True
        if why == "another one was first" and bounds.should_be_told(self.world, case, thing):
            self.broken("I6", f"{thing} lost its race, and no delete of it has left")
        verdict = bounds.bound(self.world, case, thing, begin)
        self.world.verdicts[thing.uid] = (until - begin, verdict)
        if until - begin > verdict.allowed_s:
            which = {"its deadline": "I11", "another one was first": "I6"}.get(why, "I1")
            was = "was billed" if thing.request is None else "was listed"
            self.broken(
                which,
                f"{thing} {was} for {until - begin:.1f} s without a claim (since {why}); promised: "
                f"{verdict.allowed_s:.1f} s by {verdict.layer}",
            )
            return False
        return verdict.allowed_s < FOREVER

    # -- claims ------------------------------------------------------------------------------------------------------

    def claim_end(self, case: Case, thing: Thing) -> tuple[float, str]:
        """When the last possible claim ended, and why; FOREVER while there is one."""
        lease_id, mode = thing.lease_id, case.mode_of(thing.lease_id)
        ends = [(bounds.end_of(self.world, case, thing), "its deadline")]
        if lease_id in case.brought_at:
            ends.append((case.brought_at[lease_id], "somebody came for its results"))
        downer = case.downers.get(lease_id)
        if downer is not None and (downer.alive or lease_id in self.down_at or not downer.killed):
            ends.append((downer.started_at, "somebody said down"))
        if thing.lost_at is not None and mode != "hold":
            ends.append((thing.lost_at, "it was taken away"))
        if mode == "detached":
            if thing.on.job_ends_at is not None:
                ends.append((thing.on.job_ends_at + bounds.periods(self.world).linger_s * 1.01, "its job ended"))
        elif mode == "hold":
            ends.append(((case.hold_until or 0.0) + case.asked_more_s, "its hold ended"))
        else:
            ends += case.ends
            if case.owner is not None and not case.owner.alive:
                ends.append((case.owner.ended_at, f"{case.owner.name} ended"))
            if case.owner is not None and case.owner.frozen:
                ends.append((self.world.frozen_since, f"{case.owner.name} stands still"))
            if thing.on.job_ends_at is not None and case.keep_s is None:
                handing_over_s = bounds.HAND_OVER_S if case.detach or case.left else 0.0
                ends.append((bounds.collected_by(self.world, thing.on.job_ends_at) + handing_over_s, "its job ended"))
            if thing.given_up_at is not None:
                ends.append((thing.given_up_at, "its own delete"))
            if (down := self.down_at.get(lease_id)) is not None:
                ends.append((down, "it was given up"))
            if (won := self.won_by_another(case, lease_id)) is not None:
                ends.append((won, "another one was first"))
            if (waited := bounds.waited_until(thing)) is not None:
                ends.append((waited, "its time to wait was over"))
        return min(ends)

    def won_by_another(self, case: Case, lease_id: str) -> float | None:
        """Since when it has lost its race: one of the others was READY, and stayed so until its command had to see it."""
        race = case.races.get(lease_id)
        if race is None or race.winner == lease_id:
            return None
        ready = sorted(
            (thing.ready_at, thing.lease_id)
            for thing in self.things.values()
            if thing.lease_id in race.lease_ids
            and thing.request is None
            and thing.ready_at is not None
            and (thing.lease_id == race.winner or (thing.lost_at is None and thing.died_at is None))
        )
        if not race.winner and ready and ready[0][1] == lease_id:
            return None  # it should win
        return next((at for at, other in ready if other != lease_id), None)

    def surely_claimed(self, case: Case, thing: Thing, caller: str) -> bool:
        """Is a deletion by this caller, now, friendly fire whatever the circumstances?"""
        now, mode = self.timeline.now, case.mode_of(thing.lease_id)
        if any(other.lost_at is not None for other in self.things.values() if other.lease_id == thing.lease_id):
            return False  # also of another one of its name, which a lost create made since
        if now >= bounds.sure_until(case, thing, self.used_s(case)):
            return False
        job_ended_at = thing.on.job_ends_at
        if (
            mode == "detached"
            and job_ended_at is not None
            and self.collected_at.get(thing.lease_id, 0.0) >= job_ended_at
        ):
            return False  # who brought its results home gave it up
        if mode != "run":
            ended_at, _ = self.claim_end(case, thing)
            ended_at = min(ended_at, case.hold_until) if case.hold_until is not None else ended_at
            slack = (case.hold_s or case.life_s) * 0.02 + 3.0 + bounds.clock_doubt_s(self.world)
            if mode == "detached" and caller == "collector" and thing.on.job_ends_at is not None:
                return now < min(thing.on.job_ends_at, ended_at) and not bounds.job_was_lost(self.world)
            if caller.startswith("switch") and bounds.was_blind(self.world):
                return False
            if mode == "detached" and caller.startswith("switch"):
                return now < ended_at - slack and not bounds.job_was_lost(self.world)
            return now < ended_at - slack
        owner = case.owner
        if (
            owner is None
            or not owner.alive
            or owner.frozen
            or case.ends
            or thing.lease_id in {*self.down_at, *case.downers}
            or self.won_by_another(case, thing.lease_id) is not None
        ):
            return False
        if thing.given_up_at is not None:
            return False
        if caller.startswith("switch"):
            return bounds.beats_got_through(self.world, thing) and bounds.renewals_got_through(self.world, thing)
        return bounds.renewals_got_through(self.world, thing) if caller == "sweeper" else True

    def used_s(self, case: Case) -> float:
        """What slices that were lost took of the job's time."""
        lost = [thing for thing in self.nodes() if thing.case is case and thing.died_at is not None]
        return sum((thing.died_at or 0.0) - thing.ready_at for thing in lost if thing.ready_at is not None)

    # -- what happens ------------------------------------------------------------------------------------------------

    def delete_arrived(self, found: Node | QueuedResource, caller: str, process: Process | None) -> None:
        """Of a request: with its node, if it has one."""
        known = self.things[found.uid]
        self.world.say(f"delete of {known} by {process.name if process else caller} arrives")
        for thing in (known, known.node):
            if thing is not None and thing.died_at is None:
                self._to_be_deleted(thing, found, caller, process)

    def _to_be_deleted(self, known: Thing, found: Node | QueuedResource, caller: str, process: Process | None) -> None:
        known.first_delete_at = known.first_delete_at or self.timeline.now
        known.deleted_by = known.deleted_by or caller
        if known.foreign or not is_ours(found):
            self.broken("I5", f"{caller} deletes {known}, which is not ours")
            return
        case = known.case
        if case is not None and process is case.owner:
            known.given_up_at = known.given_up_at or self.timeline.now
        if case is not None and (process is None or process is not case.owner) and caller != "user":
            if process is not None and process in self.world.entitled:
                return
            if self.surely_claimed(case, known, caller):
                who = process.name if process else caller
                self.broken("I2", f"{who} deletes {known}, which {case.label} surely claims")

    def delete_accepted(self, found: Node | QueuedResource, fate: Fate) -> None:
        if fate.effect is not None and fate.effect.kind in _FAILING:
            known = self.things[found.uid]
            for thing in self.things.values():
                if thing is known or thing is known.node or thing.node is known:
                    thing.failed_deletes += 1
                    thing.slow_s += fate.effect.seconds if "seconds" in fate.effect.parameters else 0.0
                    thing.slow_s += bounds.DELETE_AGAIN_S if fate.effect.kind == "stalled" else 0.0

    def taken_away(self, node: Node) -> None:
        known = self.things[node.uid]
        known.lost_at = known.lost_at or self.timeline.now
        if node.state == "PREEMPTED":
            known.taken_at = known.taken_at or self.timeline.now
        for thing in self.alive():
            if thing.node is known:
                thing.lost_at = thing.lost_at or self.timeline.now

    def signalled(self, process: Process) -> None:
        for case in self.cases:
            if case.owner is process:
                case.end(self.timeline.now, "a signal")

    def beat(self, vm: Vm) -> None:
        self.beats[vm.node.uid] = self.timeline.now

    def left_results(self, vm: Vm) -> None:
        case = self.things[vm.node.uid].case
        if case is not None:
            case.left = True

    def connected(self, fleet: SimFleet) -> None:
        known = self.things[fleet.vm.node.uid]
        if known.case is not None and known.case.owner is fleet.process:
            known.connected_at = self.timeline.now

    def job_started(self, vm: Vm, ends_at: float) -> None:
        self.things[vm.node.uid].job_ends_at = ends_at

    def heard(self, event: LeaseEvent, before: Lease | None, after: Lease) -> None:
        """Every committed change of a lease, in any ledger."""
        now = self.timeline.now
        if self.world.trace is not None:
            self.world.say(f"ledger: {type(event).__name__} {after.name.node} → {after.state}")
        if before is not None and _ORDER[after.state] < _ORDER[before.state]:
            self.broken("I8", f"{after.name.node} went from {before.state} back to {after.state}")
        match event:
            case Intent():
                if after.name.node in self.intents:
                    self.broken("I4", f"the name {after.name.node} is used a second time")
                self.intents[after.name.node], self.intended_at[after.name.node] = after, now
            case Ready():
                case = self.case_of(after.id)
                if case is not None:
                    case.seen_ready.add(after.id)
                if case is not None and after.id in case.races:
                    race = case.races[after.id]
                    race.winner, race.won_at = (race.winner, race.won_at) if race.winner else (after.id, now)
            case Down():
                case, actor = self.case_of(after.id), self.world.acting
                if case is not None and actor in self.world.entitled and actor is not case.downers.get(after.id):
                    case.brought_at.setdefault(after.id, now)
                if actor is not None and actor.role == "collector":
                    self.collected_at.setdefault(after.id, now)
                if case is None or actor is case.owner or actor is case.downers.get(after.id):
                    self.down_at.setdefault(after.id, now)  # nobody else has the right to give it up
            case Gone():
                self.gone_at.setdefault(after.id, now)
                for thing in self.alive():
                    if thing.lease_id == after.id:
                        self.broken("I3", f"{thing} is called gone while it exists")
            case Held() | Extended() | Detached():
                self._moved(event, after, now)
        if type(event) is Gone:
            self.world.look_whether_over()

    def _moved(self, event: Held | Extended | Detached, lease: Lease, now: float) -> None:
        case = self.case_of(lease.id)
        if case is None:
            return
        if isinstance(event, Detached):
            case.detached_at, case.kept = now, lease.id
            if not bounds.could_be_armed(self.world):
                self.broken("I1", f"{lease.name.node} is left to a switch that can never have been armed")
            return
        if isinstance(event, Extended):
            case.extended_at, case.asked_more_s = now, 0.0
            case.life_s, sure_s = max(lease.deadline - lease.created_at, case.sure_life_s or 0.0), case.sure_life_s
            in_time = sure_s is None or now < case.drafted_at[lease.id] + sure_s - bounds.last_minute_s(sure_s)
            case.sure_life_s = case.life_s if in_time else sure_s  # else its job is being stopped already
            if case.kept != lease.id or case.hold_until is None:
                return
        teller = self.world.acting or self.world.laptop  # with a lost ledger each keeps its own time
        ahead_s = max(lease.ends_at - teller.now(), 0.0)
        if isinstance(event, Held):
            case.detached_at = None  # its job has ended, and its results are waited for
        if isinstance(event, Held) and not case.for_hold and case.keep_s is None:
            most_s = bounds.periods(self.world).linger_s * 1.01 + 5.0
            if ahead_s > most_s:
                self.broken(
                    "I11", f"{lease.name.node} is held for {ahead_s:.0f} s, results may wait for {most_s:.0f} s"
                )
        case.hold_s, case.hold_until, case.kept = ahead_s, now + ahead_s * 1.01, lease.id
        self.world.watch_leaks()
