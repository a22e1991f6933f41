"""Mean ± σ over runs that differ in some parameters only: which runs are a group, its figures, and what it says about them."""

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import UserError
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.promise.lease.run_spec import RunSpec
from orchestrator.report.comparison import groups
from orchestrator.report.comparison.compare import mean_and_std
from orchestrator.report.comparison.figures import Measure, RunFigures, figures
from orchestrator.report.comparison.groups import grouped, measure, remarks
from orchestrator.report.files.metrics import Metric
from orchestrator.report.rows.whole_run import WholeRun

AT = 1_000_000.0


def ran(
    name: str,
    params: Mapping[str, Any],
    *losses: float,
    sweep: str = "lr-sweep",
    label: str = "",
    state: AttemptState = AttemptState.SUCCEEDED,
    usd: float | None = 0.25,
    job_s: float | None = 60.0,
    cloud: str = "google",
) -> RunFigures:
    """A run of a sweep that reported these losses."""
    spec = RunSpec.of({"params": dict(params), "sweep": {"name": sweep, "variant": label}})
    run = RunRecord(f"{name}abcdefgh", name, "j.yaml", cloud, AT, "/nowhere", spec)
    made = figures(run, Attempt("x", run.id, state=state), None, WholeRun(job_s, 0, usd))
    return replace(made, metrics={"loss": _metric(*losses)} if losses else {})


def _metric(*values: float) -> Metric:
    last = values[-1] if math.isfinite(values[-1]) else None
    low, high = min(values), max(values)
    return Metric(last, len(values), low, 1, low, high, len(values))


SIX = [
    ran("s-1", {"lr": 0.01, "seed": 1}, 0.75),
    ran("s-2", {"lr": 0.01, "seed": 2}, 1.25),
    ran("s-3", {"lr": 0.1, "seed": 1}, 0.25, job_s=30.0),
    ran("s-4", {"lr": 0.1, "seed": 2}, 0.5, job_s=34.0),
]


def cells(columns: list[RunFigures], *over: str) -> dict[str, tuple[str, ...]]:
    found = groups.table(grouped(columns, over))
    return {row[0]: row[1:] for row in (found.head, *found.rows)}


def csv_rows(columns: list[RunFigures], *over: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(groups.csv_text(grouped(columns, over)))))


def test_the_mean_and_the_sample_standard_deviation_are_exact() -> None:
    first, second = grouped(SIX, ["seed"])
    assert (first.params, second.params) == ({"lr": 0.01}, {"lr": 0.1})
    assert first.metrics["loss"].last == Measure(1.0, math.sqrt(0.125), 2)
    assert second.metrics["loss"].last == Measure(0.375, math.sqrt(0.03125), 2)
    assert second.figures["job_s"] == Measure(32.0, math.sqrt(8), 2)
    assert [group.cost_usd for group in (first, second)] == [0.5, 0.5], "the sum"


def test_a_group_is_a_column_with_its_parameters_its_runs_and_its_figures() -> None:
    assert cells(SIX, "seed") == {
        "lr": ("0.01", "0.1"), "runs": ("2", "2"), "loss": ("1.00 ± 0.35", "0.38 ± 0.18"),
        "whole job (s)": ("60.0 ± 0", "32.0 ± 2.8"), "cost": ("$0.50", "$0.50"), "on": ("no slice", "no slice"),
    }  # fmt: skip


def test_many_groups_are_rows_with_their_parameters_first() -> None:
    columns = [ran(f"s-{lr}{seed}", {"lr": lr, "seed": seed}, lr + seed) for lr in range(1, 6) for seed in (1, 3)]
    found = groups.table(grouped(columns, ["seed"]))
    assert found.head == ("lr", "runs", "loss", "whole job (s)", "cost", "on")
    assert [row[:3] for row in found.rows] == [(str(lr), "2", f"{lr + 2}.0 ± 1.4") for lr in range(1, 6)]


def test_the_best_is_a_group() -> None:
    assert "best loss: 0.38 ± 0.18, lr=0.1" in remarks(grouped(SIX, ["seed"]))


def test_the_best_values_of_the_runs_are_averaged_beside_the_last_ones() -> None:
    columns = [ran("s-1", {"seed": 1}, 1, 3), ran("s-2", {"seed": 2}, 2, 5)]
    assert cells(columns, "seed")["loss"] == ("4.0 ± 1.4 (best 1.50 ± 0.71)",)
    (row,) = csv_rows(columns, "seed")
    assert (row["loss_mean"], row["loss_best_mean"], row["loss_best_count"]) == ("4.0", "1.5", "2")


def test_one_run_has_no_sigma() -> None:
    columns = SIX[:1]
    assert cells(columns, "seed")["loss"] == ("0.75",) and cells(columns, "seed")["runs"] == ("1",)
    (row,) = csv_rows(columns, "seed")
    assert (row["loss_mean"], row["loss_std"], row["loss_count"], row["runs"]) == ("0.75", "", "1", "1")


def test_runs_that_did_not_succeed_are_not_averaged_but_paid_for_and_named() -> None:
    columns = [*SIX[:2], ran("s-9", {"lr": 0.01, "seed": 3}, 100.0, state=AttemptState.FAILED, usd=1.0)]
    shown = cells(columns, "seed")
    assert (shown["runs"], shown["loss"], shown["cost"]) == (("2 of 3",), ("1.00 ± 0.35",), ("$1.50",))
    (row,) = csv_rows(columns, "seed")
    assert (row["runs"], row["left_out"], row["cost_usd"]) == ("2", "1", "1.5")
    assert "s-9: its state is failed" in remarks(grouped(columns, ["seed"]))


def test_a_group_in_which_no_run_succeeded_has_no_figures() -> None:
    columns = [*SIX[:2], ran("s-9", {"lr": 1, "seed": 3}, 100.0, state=AttemptState.CANCELED)]
    shown = cells(columns, "seed")
    assert (shown["runs"], shown["loss"], shown["whole job (s)"]) == (
        ("2", "0 of 1"),
        ("1.00 ± 0.35", "-"),
        ("60.0 ± 0", "-"),
    )
    assert not any(line.startswith("best") for line in remarks(grouped(columns, ["seed"])))


def test_a_metric_that_a_run_lacks_is_averaged_over_the_others_and_that_is_said() -> None:
    columns = [*SIX[:2], ran("s-8", {"lr": 0.01, "seed": 3}), ran("s-9", {"lr": 0.01, "seed": 4}, 1.0, math.nan)]
    (group,) = grouped(columns, ["seed"])
    assert group.metrics["loss"].last == Measure(1.0, math.sqrt(0.125), 2)
    assert "lr-sweep: not measured in all of its runs: loss (2 of 4 runs)" in remarks([group])
    (row,) = csv_rows(columns, "seed")
    assert (row["loss_count"], row["runs"]) == ("2", "4")


def test_groups_are_over_several_parameters_and_over_all_of_them() -> None:
    columns = [
        ran(f"s-{lr}{seed}{fold}", {"lr": lr, "seed": seed, "fold": fold}, lr)
        for lr in (1, 2)
        for seed in (1, 2)
        for fold in (1, 2, 3)
    ]
    assert cells(columns, "seed", "fold")["runs"] == ("6", "6")
    assert cells(columns, "fold")["seed"] == ("1", "2", "1", "2")
    assert cells(columns, "lr", "seed", "fold")["job"] == ("lr-sweep",)
    assert cells(columns, "lr", "seed", "fold")["runs"] == ("12",)


def test_values_of_different_types_are_different_parameters_but_one_number_is_one() -> None:
    values = [1, 1.0, True, "1", "true", 0, False]
    columns = [ran(f"s-{number}", {"x": value, "seed": number}) for number, value in enumerate(values)]
    assert [[run.name for run in group.members] for group in grouped(columns, ["seed"])] == [
        ["s-0", "s-1"],
        *([f"s-{number}"] for number in range(2, 7)),
    ]


def test_a_run_without_a_parameter_is_in_no_group_of_those_that_have_it() -> None:
    columns = [ran("s-1", {"lr": 1, "seed": 1}), ran("s-2", {"seed": 2}), ran("s-3", {"lr": 1})]
    assert cells(columns, "seed")["lr"] == ("1", "-") and cells(columns, "seed")["runs"] == ("2", "1")


def test_jobs_and_named_variants_and_clouds_are_never_mixed() -> None:
    label = "{} seed={}".format
    columns = [
        *(ran(f"a-small-{n}", {"seed": n}, sweep="a", label=label("small", n)) for n in (1, 2)),
        *(ran(f"a-large-{n}", {"seed": n}, sweep="a", label=f"large#{n}") for n in (3, 4)),
        *(ran(f"b-{n}", {"seed": n}, sweep="b", label=f"seed={n}") for n in (1, 2)),
        ran("b-3", {"seed": 3}, sweep="b", label="seed=3", cloud="emulated"),
    ]
    shown = grouped(columns, ["seed"])
    assert [(group.title, len(group.members)) for group in shown] == [
        ("a small google", 2), ("a large google", 2), ("b google", 2), ("b emulated", 1),
    ]  # fmt: skip
    table = cells(columns, "seed")
    assert (table["job"], table["variant"]) == (("a", "a", "b", "b"), ("small", "large", "-", "-"))
    assert table["cost"][2:] == ("$0.50", "$0.25 emulated")


def test_a_cost_that_is_unknown_for_one_run_is_unknown() -> None:
    assert cells([*SIX[:2], ran("s-9", {"lr": 0.01, "seed": 3}, usd=None)], "seed")["cost"] == ("unknown",)


def test_a_group_of_runs_that_did_other_work_is_not_comparable() -> None:
    columns = [replace(SIX[0], batch_size=64), replace(SIX[1], batch_size=128), *SIX[2:]]
    shown = groups.as_json(grouped(columns, ["seed"]), ["seed"])
    assert shown["comparable"] is False and shown["differences"] == ["batch size: 64 (lr=0.01), 128 (lr=0.01)"]
    assert remarks(grouped(columns, ["seed"]))[0].startswith("NOT COMPARABLE, other batch size")


def test_the_seconds_of_different_slices_in_one_group_are_said_to_be_that() -> None:
    columns = [replace(SIX[0], accelerator_type="v5litepod-8"), replace(SIX[1], accelerator_type="v6e-8")]
    assert cells(columns, "seed")["on"] == ("v5litepod-8 / v6e-8",)
    assert "lr-sweep: its times are of different slices: v5litepod-8, v6e-8" in remarks(grouped(columns, ["seed"]))


@pytest.mark.parametrize(("columns", "name", "advice"), [
    pytest.param(SIX, "sed", "did you mean `seed`?", id="a near name"),
    pytest.param(SIX, "fold", "they have lr, seed", id="another name"),
    pytest.param(SIX, "", "they have lr, seed", id="no name"),
    pytest.param([ran("s-1", {})], "seed", "they have none", id="runs without parameters"),
])  # fmt: skip
def test_a_parameter_that_no_run_has_is_refused(columns: list[RunFigures], name: str, advice: str) -> None:
    with pytest.raises(UserError) as refused:
        grouped(columns, [name])
    assert refused.value.message == f"--over `{name}`: none of these runs has such a parameter; {advice}"


def test_json_has_the_groups_with_every_figure_as_measured() -> None:
    shown = json.loads(json.dumps(groups.as_json(grouped(SIX, ["seed"]), ["seed"])))
    assert (shown["over"], shown["comparable"], len(shown["groups"])) == (["seed"], True, 2)
    group = shown["groups"][1]
    assert (group["title"], group["job"], group["variant"]) == ("lr=0.1", "lr-sweep", None)
    assert (group["params"], group["runs"], group["left_out"]) == ({"lr": 0.1}, 2, 0)
    assert group["run_ids"] == ["s-3abcdefgh", "s-4abcdefgh"]
    assert group["metrics"]["loss"]["last"] == {"mean": 0.375, "std": math.sqrt(0.03125), "count": 2}
    assert group["job_s"]["mean"] == 32.0 and group["total_s"] == {"mean": None, "std": None, "count": 0}


def test_csv_has_a_line_for_each_group() -> None:
    row = csv_rows(SIX, "seed")[1]
    assert (row["param_lr"], row["runs"], row["loss_mean"], row["job_s_mean"]) == ("0.1", "2", "0.375", "32.0")
    assert float(row["loss_std"]) == math.sqrt(0.03125) and "total_s_mean" not in row


def test_markdown_is_a_table_and_what_it_means() -> None:
    lines = groups.markdown(grouped(SIX, ["seed"]))
    assert lines[:3] == ["| lr | 0.01 | 0.1 |", "| --- | ---: | ---: |", "| runs | 2 | 2 |"]
    assert any("sample standard deviation" in line for line in lines if line.startswith("- "))


def test_a_figure_of_the_built_in_training_is_not_shown_twice_and_its_accuracy_is_in_percent() -> None:
    columns = [
        replace(run, test_accuracy=accuracy, metrics={"test_accuracy": _metric(accuracy)})
        for run, accuracy in zip(SIX[:2], (0.97, 0.99), strict=True)
    ]
    shown = cells(columns, "seed")
    assert shown["test accuracy (%)"] == ("98.0 ± 1.4",) and "test_accuracy" not in shown
    (row,) = csv_rows(columns, "seed")
    assert float(row["test_accuracy_mean"]) == pytest.approx(0.98)


@pytest.mark.parametrize(("values", "text"), [
    pytest.param([], "-", id="none"),
    pytest.param([0.123456], "0.1235", id="one"),
    pytest.param([0.1, 0.1, 0.1], "0.1 ± 0", id="alike"),
    pytest.param([0.8177, 0.8211], "0.8194 ± 0.0024", id="small"),
    pytest.param([1200, 1500], "1,350 ± 212", id="large"),
    pytest.param([1e-9, 3e-9], "2e-09 ± 1.4e-09", id="tiny"),
    pytest.param([1e300, 3e300], "2e+300 ± 1.4e+300", id="huge"),
    pytest.param([1.7e308, -1.7e308], "0", id="without a σ that is a float"),
    pytest.param([None, 2.0, None, 4.0], "3.0 ± 1.4", id="with holes"),
])  # fmt: skip
def test_a_mean_has_as_many_decimals_as_the_two_digits_of_its_sigma(values: list[float | None], text: str) -> None:
    assert mean_and_std(measure(values)) == text
