"""A death, and a signal, at every step of the canonical lives.

The default tests have one life and one on a cluster, those of CI a death of the command in every life and a cancel in some; the
rest is exhaustive.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation.scenarios.crash_sweep import CANCELED, SCENARIOS, Scenario, kinds_of, sweep

ON_CLUSTER = ("a run on a cluster", "cli")
CANCELED_IN_CI = (
    "no capacity in the first zone",
    "race of three",
    "preempted and restarted",
    "two jobs of a sweep on one slice",
)


def lives() -> Iterator[Any]:
    for scenario in SCENARIOS:
        for kind in kinds_of(scenario):
            once = scenario is SCENARIOS[0] or (scenario.name, kind) == ON_CLUSTER
            in_ci = kind == "cli" or (kind in CANCELED and scenario.name in CANCELED_IN_CI)
            marks = () if once else pytest.mark.ci if in_ci else pytest.mark.exhaustive
            yield pytest.param(scenario, kind, marks=marks, id=f"{scenario.name}: {kind}")


@pytest.mark.parametrize(("scenario", "kind"), list(lives()))
def test_a_death_at_any_step_violates_nothing(scenario: Scenario, kind: str) -> None:
    died, broken = sweep(scenario, kind)
    assert not [f"at step {step}: {result.violations[0]}" for step, _, result in broken]
    assert died >= 40, "this life has too few steps to be worth a scenario"
