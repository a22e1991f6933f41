"""Scenarios without a theme: random worlds, and a death at every step of canonical lives."""

from tests.simulation.model.world import GUARDIAN_ONLY, Layers
from tests.simulation.mutants.registry import Plays, scenario
from tests.simulation.scenarios import crash_sweep
from tests.simulation.scenarios.crash_sweep import SCENARIOS, Scenario
from tests.simulation.scenarios.random_worlds import world_of

REPLY_LOST_OR_LATE = ("a run", "the create's reply is lost", "a late create", "deletes while CREATING are dropped")


@scenario
def worlds() -> Plays:
    for seed in range(400):
        yield f"world {seed}", lambda seed=seed: world_of(seed).run()  # type: ignore[misc]


@scenario
def deaths() -> Plays:
    return _deaths(tuple(s for s in SCENARIOS if s.name in REPLY_LOST_OR_LATE), every=4)


@scenario
def deaths_guardian_only() -> Plays:
    return _deaths((SCENARIOS[0],), GUARDIAN_ONLY, every=3)


def _deaths(scenarios: tuple[Scenario, ...], layers: Layers | None = None, every: int = 1) -> Plays:
    for each in scenarios:
        for number, (step, kind) in enumerate(crash_sweep.deaths(each)):
            if number % every == 0:
                name = f"{each.name}, {kind} dies at step {step}"
                yield name, lambda s=each, n=step, k=kind: s.world(n, k, layers=layers).run()  # type: ignore[misc]
