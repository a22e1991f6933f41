"""The calls of a map as a sweep: names, labels, columns; and what comes back in which order."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import tpujob
from orchestrator.client.events import RunResult, SweepResult, VariantResult
from orchestrator.client.functions.grid import calls_of
from orchestrator.client.functions.mapping import columns_of, sweep_of_calls, values_of
from orchestrator.core.jobfile.sweep import Sweep
from orchestrator.errors import ArtifactError, CapacityError, PayloadFailed, RemoteFunctionError, TpujobError, UserError
from tests.unit.client.functions.cells import cell


def fit(lr: float, width: int = 1, *, layers: tuple[int, ...] = (), note: str = "") -> None: ...


def sweep_of(grid: Any, parallel: int = 1, name: str = "") -> Sweep:
    f = tpujob.function(name=name)(cell("def fit(lr, width=1, *, layers=(), note=''): pass")["fit"])
    calls = calls_of(grid)
    columns = [columns_of(inspect.signature(fit), call) for call in calls]
    return sweep_of_calls([f.job(*args, **kwargs) for args, kwargs in calls], columns, parallel)


def test_every_call_is_a_variant_whose_single_arguments_are_columns() -> None:
    sweep = sweep_of([(1e-4,), {"lr": 0.5, "layers": [1, 2], "note": "x"}, (True, 2)], parallel=2)
    assert (sweep.name, sweep.parallel) == ("fit", 2)
    assert [(each.number, each.name, each.label) for each in sweep.variants] == [
        (1, "fit-1", "lr=1e-4"),
        (2, "fit-2", "lr=0.5 note=x"),
        (3, "fit-3", "lr=true width=2"),
    ]
    assert dict(sweep.variants[1].params) == {"lr": 0.5, "note": "x"} == dict(sweep.variants[1].spec.params)
    call = json.loads(sweep.variants[1].spec.train.options["call"])  # type: ignore[union-attr, index]
    assert (call["args"], call["kwargs"]) == ([0.5], {"layers": [1, 2], "note": "x"})


def test_a_label_that_is_long_or_not_the_only_one_is_a_number() -> None:
    sweep = sweep_of([{"lr": 1}, {"lr": 1}, {"lr": 1, "note": "x" * 80}, {"lr": 1, "note": "a\nb"}, {"lr": 2}])
    assert [each.label for each in sweep.variants] == ["lr=1", "#2", "#3", "#4", "lr=2"]


def test_the_same_arguments_in_order_or_by_name_are_the_same_call() -> None:
    first, second = sweep_of([(1, 2), {"width": 2, "lr": 1}]).variants
    assert first.spec.train == second.spec.train


def test_a_long_name_leaves_room_for_the_numbers() -> None:
    sweep = sweep_of([(1,)] * 12, name="x" * 40)
    assert {len(each.name) for each in sweep.variants} == {39, 40} and sweep.variants[11].name.endswith("x-12")


@pytest.mark.parametrize(("grid", "parallel", "words"), [
    ([(1,)], 0, "parallel=0: a number of slices from 1 to 64"), ([(1,)], 65, "parallel=65"),
    ([(n,) for n in range(201)], 1, "the grid has 201 calls, and 200 are the most"),
    ([({1},)], 1, "argument `lr` of `fit`"),
])  # fmt: skip
def test_a_grid_that_cannot_run_is_refused(grid: Any, parallel: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        sweep_of(grid, parallel)
    with pytest.raises(TypeError, match="missing a required argument: 'lr'"):
        sweep_of([{}])


# -- what comes back ---------------------------------------------------------------------------------------------------


def ended(directory: Path, number: int, state: str, why: TpujobError | None = None, **left: Any) -> VariantResult:
    artifacts = directory / str(number) / "worker0" / "artifacts"
    artifacts.mkdir(parents=True)
    for name, content in left.items():
        (artifacts / f"function-{name}.json").write_text(json.dumps({"schema": 1, **content}))
    result = RunResult(f"run{number}", "fit", state, 0, directory / str(number), 0.0, 1.0, error=why)
    return VariantResult(number, f"lr={number}", f"fit-{number}", {}, state, result.run, 0, result=result)


def values(*variants: VariantResult, **more: bool) -> list[Any]:
    result = SweepResult("abc", "fit", variants, 1)
    return values_of(result, lambda text: text, return_exceptions=more.get("return_exceptions", True))


def test_values_and_errors_are_in_the_places_of_their_calls(tmp_path: Path) -> None:
    failure = PayloadFailed("the job failed on worker0 with code 1", rc=1)
    found = values(
        ended(tmp_path, 1, "succeeded", result={"value": [1]}),
        ended(tmp_path, 2, "failed", failure, error={"type": "ValueError", "message": "no"}),
        ended(tmp_path, 3, "failed", failure),
        ended(tmp_path, 4, "error", CapacityError("none")),
        ended(tmp_path, 5, "succeeded"),
        VariantResult(6, "lr=6", "fit-6", {}, "error", exit_code=64),
    )
    assert found[0] == [1]
    kinds = [RemoteFunctionError, PayloadFailed, CapacityError, ArtifactError, TpujobError]
    assert [type(each) for each in found[1:]] == kinds
    assert (found[1].message, found[1].result.run) == ("ValueError: no (worker0)", "run2")
    assert (found[5].message, found[5].exit_code) == ("lr=6 was not run", 64)


def test_without_return_exceptions_the_first_error_is_raised_and_names_the_others(tmp_path: Path) -> None:
    good = ended(tmp_path, 1, "succeeded", result={"value": 1})
    bad = [ended(tmp_path, number, "error", CapacityError(f"none {number}")) for number in range(2, 10)]
    assert values(good, return_exceptions=False) == [1]
    with pytest.raises(CapacityError, match="none 2") as raised:
        values(good, *bad, return_exceptions=False)
    (note,) = raised.value.__notes__
    assert note.startswith(
        "8 of 9 calls failed: lr=2, lr=3, lr=4, lr=5, lr=6 and 3 more; what the others returned is kept"
    )


def test_a_mapping_of_lists_is_every_combination_the_last_name_changing_fastest() -> None:
    found = calls_of({"lr": (1, 2), "width": range(2)})
    assert found == [((), {"lr": lr, "width": width}) for lr in (1, 2) for width in (0, 1)]


def test_a_list_has_one_call_in_each_item() -> None:
    assert calls_of([{"lr": 1}, (2, 3), {}]) == [((), {"lr": 1}), ((2, 3), {}), ((), {})]
    assert calls_of((i,) for i in range(2)) == [((0,), {}), ((1,), {})]


@pytest.mark.parametrize(("grid", "words"), [
    ([], "the grid is empty"), ({}, "the grid is empty"), ({"lr": []}, "the grid is empty"),
    ({"lr": 1}, r"grid\['lr'\] is not a list of values"),
    ({"lr": "abc"}, r"grid\['lr'\] is not a list of values"),
    ([{"lr": 1}, 2], r"grid\[1\] is neither a dict of arguments nor a tuple"), ([[1]], r"grid\[0\] is neither"),
])  # fmt: skip
def test_anything_else_is_refused_with_an_example(grid: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as raised:
        calls_of(grid)
    assert "write {'lr': [1e-4, 3e-4]}" in (raised.value.hint or "")
