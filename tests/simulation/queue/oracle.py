"""What must hold in each world, whatever goes wrong. It knows what is really so, and the record as it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.queue.record import Queue, QueuedJob, Stage, Turn
from orchestrator.queue.steps import why_not_now
from tests.simulation.queue.hands import FAILED

if TYPE_CHECKING:
    from tests.simulation.queue.cloud import Main, Slice
    from tests.simulation.queue.world import World

QUIET_S = 6500.0  # runners have woken by then, and have had time for all that was due


class Broken(Exception):
    """A rule is broken: its name, and what happened."""

    def __init__(self, rule: str, text: str, at: float) -> None:
        super().__init__(f"{rule}: {text} ({at:.1f} s)")
        self.rule = rule


class Oracle:
    """Raises `Broken` where the event happens that breaks a rule."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.mains: dict[str, list[tuple[Slice, Main]]] = {}  # by job, each that has started
        self.seen_ended: set[str] = set()  # a runner wrote down that it saw the job end, or that it cannot be known
        self.began: dict[str, tuple[str, int]] = {}  # job and attempt of each token that began a turn
        self.losses: dict[str, set[int]] = {}  # attempts whose slices were taken away, by job
        self.passed_over = 0  # how often a slice was passed on while a job of higher priority waited for a slot
        self.busy_at = -1.0  # when all slots were in use last
        self.preempted_at: dict[str, float] = {}

    def broken(self, rule: str, text: str) -> Broken:
        return Broken(rule, text, self.world.now)

    # -- the record ----------------------------------------------------------------------------------------------------

    def written(self, before: Queue, after: Queue, by: str) -> None:
        """The record was replaced."""
        old = {each.id: each for each in before.jobs}
        if len(after.jobs) < len(old):
            raise self.broken("a job is lost", f"{by} wrote {[each.id for each in after.jobs]}")
        for job in after.jobs:
            was = old.get(job.id)
            if was is job or was is None or was == job:
                continue
            self._changed(before, after, was, job, by)
        if len(after.with_turn) >= self.world.plan.bounds.slots:
            self.busy_at = self.world.now
        self.every_slice_is_known()

    def _changed(self, before: Queue, after: Queue, was: QueuedJob, job: QueuedJob, by: str) -> None:
        world = self.world
        if world.trace is not None:
            turn = job.turn
            told = "no turn" if turn is None else f"{turn.token} {turn.stage} until {turn.until:.0f} {turn.lost}"
            world.log(
                f"record by {by}: {job.id} {job.state}: {told} {[each['id'] for each in turn.leases] if turn else ''}"
            )
        if was.end is not None and (job.end is None or job.end.state != was.end.state):
            raise self.broken("an end stays", f"{job.id} had ended ({was.end}), now {job.end}")
        if job.end is not None and was.end is None:
            self._ended(job)
        new, last = job.turn, was.turn
        if last is not None and new is not None and last.token == new.token and last.stage is not new.stage:
            self._staged(job, last, new)
        over = last is not None and new is None and last.leases and last.began_at < world.now - 60.0
        if over and len(job.spent) == len(was.spent):
            raise self.broken("what a turn cost is written down", f"{job.id}: {last}")
        if new is None or (last is not None and last.token == new.token):
            return
        if last is None:
            self._began(before, after, was, job, by)
        elif last.until > world.now + 31.0 and not self._may_take(new.runner, last.runner):
            raise self.broken(
                "a turn is its runner's until its claim is over", f"{by} took {job.id} from {last.runner}"
            )
        if new.then is not None and (last is None or last.then is None):
            for made, main in self.mains.get(job.id, ()):
                if main.alive and made.state == "READY":
                    raise self.broken("a job that runs is not given up", f"{job.id} runs on {made.name}: {new.then}")
        if (new.stage is Stage.COLLECTING and new.succeeded) or new.then is not None:
            self.seen_ended.add(job.id)
        if new.lost:
            self.losses.setdefault(job.id, set()).add(new.attempt)
            if len(self.losses[job.id]) > job.restarts + 1:
                raise self.broken("a job restarts as often as it may", f"{job.id} was lost in {self.losses[job.id]}")

    def _may_take(self, runner: str, last: str) -> bool:
        return last == runner or last in self.world.dead.get(runner.split("/", maxsplit=1)[0], ())

    def _staged(self, job: QueuedJob, last: Turn, new: Turn) -> None:
        if last.stage is Stage.UNDOING:
            raise self.broken("a turn that is undone is not used again", f"{job.id}: {new.stage}")

    def _began(self, before: Queue, after: Queue, was: QueuedJob, job: QueuedJob, by: str) -> None:
        """A job was claimed, or a slice was passed on to it."""
        world, bounds = self.world, self.world.plan.bounds
        if was.removed or was.held or was.end is not None:
            raise self.broken("only a job that waits begins", f"{job.id} began")
        if job.id in self.seen_ended:
            raise self.broken("a job that was seen to have ended never begins again", job.id)
        if len(after.with_turn) > bounds.slots:
            raise self.broken("no more slices than slots", f"{len(after.with_turn)} of {bounds.slots}")
        if bounds.max_cost is not None:
            spent = sum(usd for each in after.jobs for at, usd in each.spent if at > world.now - bounds.per_s + 31.0)
            claimed = sum(each.most_usd for each in after.jobs if each.turn is not None)
            if spent + claimed > bounds.max_cost + 1e-6:
                raise self.broken("no more dollars than `max_cost`", f"{spent} and {claimed}")
        for name, until in world.cloud.deadlines.items():
            if name.startswith(f"{job.id}-") and (until > world.now or name in world.cloud.slices):
                raise self.broken("a job begins again once its slices are gone", f"{job.id}, while {name} may be there")
        freed = [each for each in before.with_turn if after.job(each.id).turn is None]
        ahead = self._ahead(before, job, by)
        if freed:
            self.passed_over += bool(ahead)
        elif ahead:
            raise self.broken("priority, then age", f"{job.id} begins before {ahead}")
        for hands in world.runners.values():
            if hands.runner == by:
                hands.asked.add(job.id)

    def _ahead(self, before: Queue, job: QueuedJob, by: str) -> list[str]:
        """Return the jobs that could begin before this one, when the pass looked at the record and now."""
        world, bounds = self.world, self.world.plan.bounds
        hands = next((each for each in world.runners.values() if each.runner == by), None)
        if hands is None or hands.listed is None or bounds.max_cost is not None or self.busy_at > hands.listed.now:
            return []  # it may have asked for the other one first, when there was no room
        seen, found = hands.listed, []
        mine = before.job(job.id)
        listed = seen.queue.job(job.id)
        if listed is None or (listed.priority, listed.order) != (mine.priority, mine.order):
            return []
        for other in before.waiting:
            listed = seen.queue.job(other.id)
            if (
                (-other.priority, other.order) >= (-mine.priority, mine.order)
                or listed is None
                or listed.turn is not None
            ):
                continue
            free = (
                not other.removed and not why_not_now(before, other, world.now, bounds) and other.not_before <= seen.now
            )
            then = not listed.removed and listed.end is None and not why_not_now(seen.queue, listed, seen.now, bounds)
            same = (listed.priority, listed.order) == (other.priority, other.order)
            if free and then and same and other.id not in hands.asked and not hands.cannot(other):
                found.append(other.id)
        return found

    def _ended(self, job: QueuedJob) -> None:
        """The end that is written is the true one."""
        code = self.world.plan.work[job.id].code
        really = any(main.ended_at is not None for _, main in self.mains.get(job.id, ()))
        ran = job.end.state in ("succeeded", "failed") and job.end.text != FAILED
        false = ran and (not really or (job.end.state == "succeeded") != (code == 0))
        if false or (job.end.state in ("canceled", "removed") and not job.removed):
            raise self.broken("an end is true", f"{job.id}: {job.end}")

    def every_slice_is_known(self) -> None:
        """Each slice that exists is in the record, of one turn; and no turn has two."""
        slices = self.world.cloud.slices
        if not slices:
            return
        known: dict[str, str] = {}
        for job in self.world.store.queue.with_turn:
            living = [each["id"] for each in job.turn.leases if each["id"] in slices]
            if len(living) > 1:
                raise self.broken("a turn has one slice", f"{job.id}: {living}")
            for name in living:
                if name in known:
                    raise self.broken("a slice is of one turn", f"{name}: {job.id} and {known[name]}")
                known[name] = job.id
        for name in slices:
            if name not in known:
                raise self.broken("every slice is known", f"{name} is in no turn of the record")

    # -- the cloud -----------------------------------------------------------------------------------------------------

    def created(self, made: Slice) -> None:
        self.every_slice_is_known()

    def starting(self, made: Slice, main: Main) -> None:
        """A worker starts the job."""
        world, job = self.world, self.world.store.queue.job(main.job)
        for other, ran in self.mains.get(main.job, ()):
            if ran is main:
                continue
            if other.name in world.cloud.slices:
                raise self.broken(
                    "a job starts once its earlier slices are gone", f"{main.job}, and {other.name} is there"
                )
            if ran.ended_at is not None and other.name not in self.preempted_at:
                raise self.broken("a job that has ended never starts again", f"{main.job} had ended on {other.name}")
        if job.end is not None or job.id in self.seen_ended:
            raise self.broken("a job that was seen to have ended never starts again", main.job)
        if (
            job.turn is None
            or job.turn.attempt != main.attempt
            or made.name not in [each["id"] for each in job.turn.leases]
        ):
            raise self.broken("a job starts in its turn", f"{main.job} attempt {main.attempt}: {job.turn}")
        if not main.published:
            self.mains.setdefault(main.job, []).append((made, main))

    def preempted(self, made: Slice) -> None:
        self.preempted_at[made.name] = self.world.now

    def deletes(self, runner: str, name: str) -> None:
        """A runner deletes: what is of another runner's turn only if that is being undone anyway."""
        for job in self.world.store.queue.with_turn:
            turn = job.turn
            if (
                name in [each["id"] for each in turn.leases]
                and turn.runner != runner
                and turn.stage is not Stage.UNDOING
            ):
                raise self.broken("only the runner of a turn deletes its slices", f"{runner} deletes {name} of {turn}")

    # -- the end -------------------------------------------------------------------------------------------------------

    def now_and_then(self) -> None:
        """When nothing goes wrong any more, a job does not run in part."""
        world = self.world
        for made in world.cloud.slices.values() if world.now > world.plan.faults_until + QUIET_S else ():
            for main in made.mains:
                if main.alive and not main.ran_all and made.detached_at < world.now - QUIET_S:
                    raise self.broken("a job runs whole or not at all", f"{main.job} on {made.name}")

    def at_the_end(self) -> None:
        world = self.world
        left = [each for each in world.store.queue.jobs if each.turn is not None or not (each.end or each.held)]
        if left:
            raise self.broken("no job is stuck", f"{[(each.id, each.state, each.why, each.turn) for each in left]}")
        if world.cloud.slices:
            raise self.broken("every slice is gone", f"{list(world.cloud.slices)}")
        if len(world.store.queue.jobs) != len(world.plan.work):
            raise self.broken("a job is lost", f"{[each.id for each in world.store.queue.jobs]}")
