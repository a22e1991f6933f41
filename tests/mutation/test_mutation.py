"""Mutants themselves: what is changed and what never, what becomes of a known one, and that the list of survivors is true."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from tests import ROOT
from tests.mutation import mutants, trial
from tests.mutation.__main__ import rooms
from tests.mutation.accepted import accepted
from tests.mutation.fitting import IN_OTHER_PROCESSES
from tests.mutation.mutants import Mutant, changed, mutants_in, mutants_of, mutated, path_of
from tests.mutation.trial import in_child, loading, put_in, tell

TINY = '''
"""Not 3."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import os
LIMIT = 3

def allowed(count: int, *, most: "int > 0" = LIMIT) -> bool:
    """Not 3, either."""
    if count < 0 or not most:
        raise ValueError(f"{count + 1} is too little")
    return count < most
'''
CHANGES = {
    "": ["3 → 4"],
    "allowed": [
        "count < 0 or not most → count < 0 and (not most)",
        "count < 0 → count <= 0",
        "count < 0 → count >= 0",
        "0 → 1",
        "not most → most",
        "raise ValueError(f'{count + 1} is too little') → pass",
        "return count < most → return None",
        "count < most → count <= most",
        "count < most → count >= most",
    ],
}


@pytest.mark.parametrize(("source", "changes"), [
    ("x = min(a, 2.5)", ["min(a, 2.5) → max(a, 2.5)", "2.5 → 5.0"]),
    ("x = a in ('b', 0)", ["a in ('b', 0) → a not in ('b', 0)", "('b', 0) → ('XXb', 0)", "0 → 1"]),
    ("x = name.startswith('b')", ["'b' → 'XXb'"]), ("x = {'a': 'b'}['a']", []), ("x: 'a > 1' = True", ["True → False"]),
    ("x = now >= deadline", ["now >= deadline → now < deadline"]),  # an instant is no program
    ("close(1)", ["close(1) → pass", "1 → 2"]), ("await Report('a', passing=True)", []), ("yield ('log', 1)", ["1 → 2"]),
    ("try:\n    x\nexcept A:\n    y = b", ["except: y = b → except: raise"]), ("@cache(3)\ndef f(): return\n", []),
    ("with suppress(A): x", []), ("with contextlib.suppress(A): x", ["contextlib.suppress(A) → contextlib.suppress()"]),
    ("x = a if b else c", ["b → not b"]), ("x = [a for a in b if a]", ["a → not a"]), ("x = a * b", ["a * b → a / b"]),
])  # fmt: skip
def test_what_is_changed_and_how(source: str, changes: list[str]) -> None:
    assert [each.change for each in mutants_in(source, "m")] == changes


@pytest.mark.parametrize("source", [TINY, path_of("orchestrator.promise.effects.locks").read_text()])
def test_the_text_with_a_change_is_the_same_program_as_the_code_with_it(source: str) -> None:
    for mutant in mutants_in(source, "m"):
        code = compile(changed(source, mutant.number), "m", "exec", dont_inherit=True)
        assert code_of(code) == code_of(mutated(source, "m", mutant.number)), mutant


def code_of(code: CodeType) -> list[object]:
    """What it does, whatever the lines."""
    return [
        code.co_code,
        code.co_names,
        *(code_of(each) if isinstance(each, CodeType) else each for each in code.co_consts),
    ]


def test_texts_annotations_and_what_never_runs_stay() -> None:
    made = list(mutants_in(TINY, "m"))
    assert {owner: [each.change for each in made if each.owner == owner] for owner in CHANGES} == CHANGES
    assert len(made) == sum(map(len, CHANGES.values())) and made[0].names == ("LIMIT",)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = tmp_path / "tiny_for_mutants.py"
    path.write_text(TINY)
    for module in (mutants, trial):
        monkeypatch.setattr(module, "path_of", lambda module: path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return importlib.import_module(path.stem)


def outcome(tiny: ModuleType, mutant: Mutant) -> str:
    """Try a mutant with the only test of the tiny module, which knows no boundary."""

    def work(told: int, directory: Path) -> None:
        functions: dict[Any, list[FunctionType]] = {trial._place(tiny.allowed.__code__): [tiny.allowed]}
        tried = tiny
        if not (mutant.owner and put_in(mutant, functions)):
            del sys.modules[tiny.__name__]
            with loading(tiny.__name__, mutant.number):
                tried = importlib.import_module(tiny.__name__)
        tell(told, "survived" if tried.allowed(1) and not tried.allowed(5) and tried.LIMIT == 3 else "killed")

    return in_child(work)


def test_a_change_that_the_test_sees_is_killed_and_another_one_survives(tiny: ModuleType) -> None:
    outcomes = {mutant.change: outcome(tiny, mutant) for mutant in mutants_in(TINY, tiny.__name__)}
    assert {outcomes[each] for each in ("3 → 4", "return count < most → return None")} == {"killed"}
    assert {outcomes[each] for each in ("count < most → count <= most", "count < 0 → count <= 0")} == {"survived"}
    assert outcomes["count < 0 → count >= 0"] == "died", "an error in the middle of a test"
    assert tiny.allowed(2) and not tiny.allowed(3), "nothing of it happened here"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("change", "outcome"), [("os.write(ready, b'!') → pass", "killed"), ("30.0 → 60.0", "survived")]
)
def test_in_a_copy_a_process_that_the_test_starts_has_the_change(change: str, outcome: str) -> None:
    test = "tests/unit/promise/test_guardian.py::test_it_ends_by_itself_when_its_process_ended_and_owes_nothing"
    (mutant,) = (each for each in mutants_of("orchestrator.promise.guardian_process") if each.change == change)

    def work(told: int, directory: Path) -> None:
        trial.adopt_orphans()
        tell(told, trial.in_copy(mutant, [test]))

    assert in_child(work) == (f"killed {test}" if outcome == "killed" else outcome)


def test_every_test_that_is_named_for_other_processes_is_there() -> None:
    for test in {test for tests in IN_OTHER_PROCESSES.values() for test in tests}:
        file, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / file).read_text(), test


def test_a_mutant_that_never_ends_is_ended_and_none_leaves_a_process() -> None:
    def leaves(told: int, directory: Path) -> None:
        left = subprocess.Popen(["sleep", "600"], start_new_session=True)
        tell(told, str(left.pid))

    def hangs(told: int, directory: Path) -> None:
        left = subprocess.Popen(["sleep", "600"], start_new_session=True)
        (directory / "left").write_text(str(left.pid))
        left.wait()

    def work(told: int, directory: Path) -> None:
        trial.adopt_orphans()
        pid, never = int(in_child(leaves)), in_child(hangs, limit_s=0.5)
        tell(told, f"{never} {Path(f'/proc/{pid}').exists()} {trial._children(os.getpid())}")

    assert in_child(work) == "timeout False []"


def test_every_survivor_that_is_listed_is_a_mutant_still_and_has_a_reason() -> None:
    modules = [module for room in rooms().values() for module in room]
    made = {mutant.key for module in modules for mutant in mutants_of(module)}
    assert not [key for key in accepted() if key not in made]
    assert all(len(reason) > 10 for reason in accepted().values())
