"""A death at every step of the canonical lives. Every seventh here; all of them with `make sim`."""

from __future__ import annotations

import os

import pytest

from tests.simulation.crash_sweep import SCENARIOS, Scenario, deaths

EVERY = int(os.environ.get("TPUJOB_SIM_EVERY", "7"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_death_at_any_step_breaks_no_promise(scenario: Scenario) -> None:
    died = 0
    for number, (step, kind) in enumerate(deaths(scenario)):
        if number % EVERY:
            continue
        died += 1
        result = scenario.world(step, kind).run()
        assert not result.violations, f"{scenario.name}: {kind} dies at step {step}: {result.violations[0]}"
    assert died >= 20, "this life has too few steps to be worth a scenario"
