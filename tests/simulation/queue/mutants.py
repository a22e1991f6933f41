"""Bugs of the queue: each changes one line of its steps or programs. In some world, each of them breaks a rule.

`old` has to be in the source of the function, once: a mutant whose line has changed says so.
"""

from __future__ import annotations
import __future__

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import dedent
from typing import Any
from unittest.mock import patch

from orchestrator.queue import passes, steps
from orchestrator.queue.passes import Gates
from orchestrator.queue.record import Queue
from tests.simulation.queue.lives import on_two_workers, passed_on, with_two_slots
from tests.simulation.queue.world import Plan


@dataclass(frozen=True)
class Mutant:
    name: str
    owner: Any
    function: str
    old: str
    new: str
    naps_in: Callable[[], Plan] | None = None  # the life in which a nap shows it; None: random worlds do

    @contextmanager
    def change(self) -> Iterator[None]:
        """Replace the function by the one with the bug."""
        function = getattr(self.owner, self.function)
        function = function.fget if isinstance(function, property) else function
        source = dedent(inspect.getsource(function))
        if source.count(self.old) != 1:
            raise LookupError(f"{self.name}: {self.function} has {self.old!r} {source.count(self.old)} times")
        code = compile(
            source.replace(self.old, self.new),
            self.name,
            "exec",
            __future__.annotations.compiler_flag,
            dont_inherit=True,
        )
        made: dict[str, Any] = {}
        exec(code, function.__globals__, made)
        with patch.object(self.owner, self.function, made[self.function]):
            yield


GONE = "if job is None or turn is None or turn.token != token:\n            return None\n        used"

MUTANTS = [
    # the steps
    Mutant("a turn is taken before its claim is over", steps, "take", "(turn.until > now and not dead)", "False"),
    Mutant("a turn is taken whoever has it", steps, "take", "turn.token != seen.token or", ""),
    Mutant("a turn is taken as it was seen", steps, "take", "turn.stage is not seen.stage or", ""),
    Mutant("who takes a turn forgets its slices", steps, "take", ", leases=turn.leases", ""),
    Mutant("a job is claimed twice", steps, "claim", "job.turn is not None and job.turn.token != turn.token", "False"),
    Mutant("a claim ignores the bounds", steps, "claim", "why_not_now(queue, job, now, bounds)", "job.held"),
    Mutant("slots are not counted", steps, "no_room", "living >= bounds.slots", "False"),
    Mutant("dollars that were spent are not counted", steps, "_over", "if usd else job.spent", "if False else job.spent"),
    Mutant("priorities are ignored", Queue, "waiting", "-each.priority, ", ""),
    Mutant("a slice is created by who lost the turn", steps, "intend", "turn.token != token or", ""),
    Mutant("the slice to come is not written down", steps, "intend", "(*others, dict(lease))", "others"),
    Mutant("the job starts in a turn that is another's", steps, "_mine", "or job.turn.token != token", ""),
    Mutant("an end is not kept", steps, "ended", "job.end or replace(end, at=now)", "job.end"),
    Mutant("a slice is passed on by who lost it", steps, "pass_on", "or one.turn.token != token ", "", passed_on),
    Mutant("a slice is passed on to a job with a turn", steps, "pass_on", "other.turn is not None or", "", with_two_slots),
    Mutant("a slice that is passed on is forgotten", steps, "pass_on", "leases=one.turn.leases", "leases=()"),
    Mutant("losses are not counted", steps, "gone", "job.losses + lost,", "job.losses,"),
    Mutant("an end that is not known is forgotten", steps, "gone", "turn.then is not None", "False"),
    Mutant("a turn is over though it is another's", steps, "gone", "or turn.token != token", ""),
    Mutant("a job that was removed waits again", steps, "gone", "after.end is None and job.removed", "False"),
    # the programs
    Mutant("a turn is over without proof", passes, "_settle", "if did.gone:", "if True:"),
    Mutant("every runner counts as dead", passes, "one_pass", "hands.is_dead(turn.runner)", "True"),
    Mutant("nobody takes over", passes, "one_pass", "(turn.until <= seen.now or dead)", "turn.until <= 0"),
    Mutant("who attends does not take the turn", passes, "attend", "await _taken(hands, job, turn, turn, dead=dead)", "job"),
    Mutant("who attends does not wait for what may start", passes, "attend", "await hands.settle()", "pass"),
    Mutant("no answer means no slice", passes, "attend", 'found.state == "unknown" or (', "("),
    Mutant("a job whose slice is gone waits again", passes, "attend", 'found.state == "gone" or (', "False and ("),
    Mutant("what runs in part is left", passes, "attend", 'or found.state == "running":', "or found.state in RUNS:"),
    Mutant("a job that was not collected waits again", passes, "attend", 'End("interrupted", 0.0, 71, NOT_COLLECTED)', "None"),
    Mutant("a job just started is said to be gone", passes, "attend", "seen.now - turn.seen_at < hands.claim_s", "False"),
    Mutant("an old answer counts as a new one", passes, "attend", "seen.now - turn.seen_at", "inf - turn.seen_at"),
    Mutant("nothing is written before a create", Gates, "before_create", "await self._passed(", "_ = ("),
    Mutant("nothing is written before a start", Gates, "before_start", "await self._passed(", "_ = ("),
    Mutant("an end is not written before the slice goes", Gates, "ended", "await self._passed(", "_ = ("),
    Mutant("who lost a turn deletes its slice", Gates, "not_started", "is not None", "is not ...", on_two_workers),
    Mutant("who lost the turn goes on", Gates, "_passed", "is None", "is ..."),
]  # fmt: skip
