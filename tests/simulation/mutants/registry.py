"""How a mutant and the scenarios that kill it are registered, and what the scenarios share.

A mutant is a small change of production code: a bug of the past, of another tool (its issue is named) or of tpujob. A
scenario is a small family of worlds about one promise, most with all layers but one disabled, because a layer that works
hides the bug of another. Every scenario passes with the production code (`test_mutants.py` checks that), so a violation is
the mutant's.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from orchestrator.promise.effects.base import Effect
from tests.simulation.model.faults import FaultPlan
from tests.simulation.model.world import RACE_ZONES, WATCHDOG_ONLY, ZONES, Layers, Result, Violation, World
from tests.simulation.oracle.invariants import Invariant
from tests.simulation.scenarios.commands import Candidates
from tests.simulation.scenarios.random_worlds import Workload

Plays = Iterator[tuple[str, Callable[[], Result]]]  # the title of a world, and the function that plays it
MUTANT_SCENARIOS: dict[str, Callable[[], Plays]] = {}
RUN = Workload("run", lasts_s=10.0, boot_s=1.0)
RACE = replace(RUN, candidates=Candidates(RACE_ZONES[:3], 3, 40.0, race=True))
QUEUED = replace(RUN, candidates=Candidates(ZONES[:1], 1, 40.0))


@dataclass(frozen=True)
class Mutant:
    name: str
    bug: str
    change: Callable[[], contextlib.AbstractContextManager[Any]]
    scenarios: tuple[str, ...]  # keys of `MUTANT_SCENARIOS`, tried in this order


MUTANTS: dict[str, Mutant] = {}


def mutant(*scenarios: str) -> Callable[[Callable[[], Any]], None]:
    """Register what patches production code: it returns the patch, or yields while it stands. Its docstring is the bug."""

    def register(change: Callable[[], Any]) -> None:
        made = contextlib.contextmanager(change) if inspect.isgeneratorfunction(change) else change
        MUTANTS[change.__name__] = Mutant(change.__name__, inspect.getdoc(change) or "", made, scenarios)

    return register


def replaces(owner: Any, attribute: str, *scenarios: str, also: Any = None) -> Callable[[Callable[..., Any]], None]:
    """Register a function that replaces one of production code. Its first argument is the real one, its docstring the bug.

    `also`: another module that has it under the same name.
    """

    def register(replacement: Callable[..., Any]) -> None:
        @mutant(*scenarios)
        @functools.wraps(replacement)
        def change() -> Any:
            real = getattr(owner, attribute)
            replaced = contextlib.ExitStack()
            for each in filter(None, (owner, also)):
                made = patch.object(each, attribute, lambda *args, **named: replacement(real, *args, **named))
                replaced.enter_context(made)
            return replaced

    return register


def scenario(plays: Callable[[], Plays]) -> Callable[[], Plays]:
    MUTANT_SCENARIOS[plays.__name__] = plays
    return plays


def one(workload: Workload, *, layers: Layers | None = None, seed: int = 1, **plan: Any) -> Callable[[], Result]:
    """Return the function that plays one world with this workload and these faults."""
    return lambda: World(seed, workload, FaultPlan(**plan), layers=layers).run()


def seeds(count: int, workload: Workload, layers: Layers | None = None, **plan: Any) -> Plays:
    for seed in range(count):
        yield f"seed {seed}", one(workload, layers=layers, seed=seed, **plan)


def succeeds(workload: Workload, **plan: Any) -> Callable[[], Result]:
    """Return the function that plays one world whose run must exit with 0."""

    def played() -> Result:
        world = World(1, workload, FaultPlan(**plan), layers=WATCHDOG_ONLY)
        result = world.run()
        owner = world.oracle.claims[0].owner
        if not result.violations and (owner is None or owner.result.exit_code != 0):
            text = "a run that may restart did not succeed"
            result.violations.append(Violation(Invariant.RUN_SUCCEEDS, world.faults.elapsed_s(), text))
        return result

    return played


def power_cut(at: float) -> dict[str, Any]:
    """Return the fault plan in which the client machine dies for good, `at` seconds after the start."""
    return {"crashes": [(None, at, "machine")]}


class NoEffect(Effect[Any]):
    """Replaces an effect: it returns `answer`, and nothing happens."""

    slow = False

    def __init__(self, *_: Any, answer: Any = None) -> None:
        self.answer = answer

    def perform(self, world: Any) -> Any:
        return self.answer


async def no_op(*_: Any, **__: Any) -> None:
    return None
