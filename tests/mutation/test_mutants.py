"""The mutation gate: every bug of the past, put back in, is noticed by a test that says so by its name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mutation.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120


def notices(name: str, killer: str) -> str | None:
    """What the killer said when it failed; None when it passed."""
    argv = [sys.executable, "-m", "tests.mutation.host", name, killer]
    try:
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"{killer}: no end in {TIMEOUT_S} s"
    said = done.stdout + done.stderr
    assert done.returncode in (0, 1), f"{killer} did not run: {said[-2000:]}"
    if done.returncode == 0:
        return None
    lines = [line for line in said.splitlines() if line.startswith(("FAILED ", "TPUJOB_SIM_SEED"))]
    assert lines, f"{killer} failed without saying which test did: {said[-2000:]}"
    return lines[0].removeprefix("FAILED ").partition(" - ")[0]


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_bug_of_the_past_is_noticed(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    for killer in mutant.killers:
        said = notices(mutant.name, killer)
        if said is not None:
            record_property("killed", f"{mutant.name}: {mutant.story}\n    killed by {said}")
            return
    pytest.fail(f"{mutant.name} survives {', '.join(mutant.killers)}: {mutant.story}")


def test_there_are_enough_of_them_and_their_killers_are_tests_that_pass() -> None:
    """That the killers pass on the code as it is, the suite itself shows: they are part of it."""
    assert len(MUTANTS) >= 30
    for one in MUTANTS.values():
        for killer in one.killers:
            assert killer.startswith("worlds ") or (ROOT / killer.partition("::")[0]).is_file(), killer
