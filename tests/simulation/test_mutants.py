"""The mutation gate: every bug of the past is noticed. A mutant that survives is a hole in the proof."""

from collections.abc import Iterator

import pytest

from tests.simulation.mutants.registry import MUTANT_SCENARIOS, MUTANTS, Mutant

pytestmark = pytest.mark.ci
KILLS: dict[str, str] = {}


@pytest.fixture(scope="module", autouse=True)
def table(request: pytest.FixtureRequest) -> Iterator[None]:
    """Print which scenario kills which mutant: with `pytest -s`, and in `make sim`."""
    yield
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print()
        for name, where in KILLS.items():
            print(f"  {name:22} {where:75} {MUTANTS[name].bug}")


PLAYED_ELSEWHERE = {"worlds", "deaths"}  # by test_worlds and test_crash_sweep


@pytest.mark.parametrize(
    "name", sorted({scenario for mutant in MUTANTS.values() for scenario in mutant.scenarios} - PLAYED_ELSEWHERE)
)
def test_the_production_code_violates_nothing_in_any_mutant_scenario(name: str) -> None:
    for title, play in MUTANT_SCENARIOS[name]():
        result = play()
        assert not result.violations, f"{name}: {title}: {result.violations[0]}"


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_every_mutant_is_killed(mutant: Mutant) -> None:
    with mutant.change():
        for name in mutant.scenarios:
            for title, play in MUTANT_SCENARIOS[name]():
                violations = play().violations
                if violations:
                    KILLS[mutant.name] = f"{violations[0].invariant} in {name}: {title}"
                    return
    pytest.fail(f"{mutant.name} survives: {mutant.bug}")
