"""The comparison: what it shows, what it refuses to call comparable, and what it says about its own figures."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.promise.lease.run_spec import RunSpec
from orchestrator.report.comparison import compare
from orchestrator.report.comparison.compare import remarks
from orchestrator.report.comparison.figures import RunFigures, figures
from orchestrator.report.files.metrics import read as metrics_of
from orchestrator.report.rows.whole_run import WholeRun
from tests.fakes.leases import lease_and_request

LEASE, _ = lease_and_request()
AT = 1_000_000.0
METRICS: dict[str, Any] = {
    "model": "mnist_cnn", "batch_size": 64, "precision": "fp32", "test_accuracy": 0.9876,
    "images_per_s": 1234.5, "train_loss": [0.5, 0.1], "epochs": [{}, {}], "peak_rss_bytes": 900_000_000,
    "dataset": {"name": "mnist", "synthetic": False, "train_examples": 60_000},
    "world": {"device": "xla:cpu", "processes": 2, "workers": 1, "emulated": False},
    "seconds": {"total_s": 40.25},
}  # fmt: skip
STEPS = [0.07, 0.08, 0.09, 0.08]


def run_of(
    directory: Path, *, mode: str = "drained", metrics: Any = METRICS, **changes: Any
) -> tuple[RunRecord, Attempt]:
    artifacts = directory / "worker0" / "artifacts"
    artifacts.mkdir(parents=True)
    header = {"schema": 1, "timing": mode, "device": "xla:cpu", "processes": 2, "batch_size": 64}
    lines: list[dict[str, Any]] = [header, {"epoch": 1, "step": 1, "t_s": 5.5, "dt_s": 2.0, "compile": True}]
    lines += [{"epoch": 1, "step": n, "t_s": 6.0, "dt_s": dt_s} for n, dt_s in enumerate(STEPS, 2)]
    lines += [{"span": "compile", "t_s": 5.5, "s": 2.0}]
    for number, s, warm in ((1, 0.24, 3), (2, 0.3, 4), (3, 0.34, 4)):
        lines.append({"epoch": number, "s": s, "compile_s": 0.0, "warm_steps": warm, "steps": 4})
    (artifacts / "timing.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (artifacts / "metrics.json").write_text(metrics if isinstance(metrics, str) else json.dumps(metrics))
    run = RunRecord(
        "7q2mabcdef", "mnist", "mnist.yaml", "google", AT, str(directory), RunSpec.of({"train": {"model": "mnist_cnn"}})
    )
    attempt = Attempt("7q2mabcdef-1", run.id, LEASE.id, AttemptState.SUCCEEDED, ended_at=AT + 1800)
    return replace(run, **changes), attempt


def column(directory: Path, *, usd: float | None = None, **changes: Any) -> RunFigures:
    run, attempt = run_of(directory, **changes)
    return figures(run, attempt, None, WholeRun(41.5, 0, usd))


def lines_of(columns: list[RunFigures]) -> list[str]:
    return [*compare.table(columns).lines(), "", *remarks(columns)]


def test_the_three_figures_of_the_tutorials_are_the_first_three_rows(tmp_path: Path) -> None:
    one = column(tmp_path / "a", cloud="emulated")
    head, *lines = lines_of([one])
    text = "\n".join(lines)
    assert "without the steps that compiled (warm-up); s / epoch is of the epochs that had none" in text
    assert "are not those of a real one" in text, "it is emulated"
    assert lines_of([one, column(tmp_path / "b", id="9xk1abcdef")])[0].split()[-4:] == [
        "mnist",
        "7q2m",
        "mnist",
        "9xk1",
    ]
    assert head.startswith("mnist_cnn · mnist · 60,000 images · batch 64 · 2 epochs · fp32  ")
    assert [line.split("  ")[0] for line in lines[:3]] == [
        "total (s)",
        "s / iteration (mean ± σ)",
        "s / epoch (mean ± σ)",
    ]
    assert [line.split("  ")[-1].strip() for line in lines[:3]] == ["0.880", "0.0800 ± 0.0082", "0.320 ± 0.028"]


def on_a_slice(directory: Path, accelerator_type: str, **changes: Any) -> RunFigures:
    run, attempt = run_of(directory, **changes)
    return figures(run, attempt, replace(LEASE, accelerator_type=accelerator_type), WholeRun(41.5, 0, None))


def test_throughput_per_chip_is_shown_where_the_slices_differ(tmp_path: Path) -> None:
    small, large = on_a_slice(tmp_path / "a", "v5litepod-8"), on_a_slice(tmp_path / "b", "v5litepod-16", name="large")
    assert (small.images_per_s_per_chip, large.images_per_s_per_chip) == (1234.5 / 8, 1234.5 / 16)
    (row,) = [line for line in lines_of([small, large]) if line.startswith("images / s / chip")]
    assert row.split()[-2:] == ["154", "77"]
    assert not any("chip" in line for line in lines_of([small, small]))
    assert "figure   images / s / chip: 154" in compare.one(small)


def test_a_training_on_some_cores_has_no_throughput_per_chip_of_the_whole_slice(tmp_path: Path) -> None:
    one = on_a_slice(tmp_path / "a", "v5litepod-8", spec=RunSpec.of({"train": {"cores": 1}}))
    assert one.images_per_s_per_chip == 1234.5
    assert (
        on_a_slice(tmp_path / "b", "v5litepod-8", spec=RunSpec.of({"train": {"cores": 3}})).images_per_s_per_chip
        is None
    )
    half = on_a_slice(tmp_path / "c", "v3-8", spec=RunSpec.of({"train": {"cores": 1}}))
    assert half.images_per_s_per_chip is None, "a v3 chip has two cores"


def test_device_memory_and_duty_cycle_are_the_samples_and_what_the_training_measured_itself(tmp_path: Path) -> None:
    metrics = METRICS | {"peak_device_bytes": 5 * 10**9}
    own = column(tmp_path / "a", metrics=metrics)
    assert (own.peak_device_bytes, own.device_bytes, own.duty_cycle_percent) == (5 * 10**9, None, None)
    run, attempt = run_of(tmp_path / "b", metrics=metrics)
    sample = {"every_s": 10, "hbm_used_bytes": [8e9], "hbm_total_bytes": [16e9], "duty_cycle_percent": [40.0]}
    (tmp_path / "b/worker0/artifacts/tpu-metrics.jsonl").write_text(json.dumps(sample) + "\n")
    sampled = figures(run, attempt, None, WholeRun(41.5, 0, None))
    lines = compare.one(sampled)
    assert "figure   device memory (GB): 8.0 of 16.0" in lines and "figure   duty cycle (%): 40.0" in lines
    assert "figure   device memory (GB): 5.0" in compare.one(own)


def test_a_run_of_a_sweep_is_called_by_its_variant_if_that_has_a_name(tmp_path: Path) -> None:
    for name, variant, title in (
        ("compare-single-core", "single-core", "single-core"),
        ("lr-sweep-1", "lr=1e-4", "lr-sweep-1"),
    ):
        assert column(tmp_path / name, name=name, spec=RunSpec.of({"sweep": {"variant": variant}})).title == title


@pytest.mark.parametrize(("change", "said"), [
    ({"model": "alexnet"}, "model: mnist_cnn (mnist), alexnet (other)"),
    ({"batch_size": 128}, "batch size: 64 (mnist), 128 (other)"),
    ({"dataset": {"name": "synthetic", "train_examples": 60_000}}, "data: mnist (mnist), synthetic (other)"),
    ({"dataset": {"name": "mnist", "train_examples": 6_000}}, "number of examples: 60,000 (mnist), 6,000 (other)"),
    ({"dataset": {"name": "mnist-sample", "train_examples": 6_000}}, "data: mnist (mnist), mnist-sample (other)"),
])  # fmt: skip
def test_runs_that_did_other_work_are_said_not_to_be_comparable(tmp_path: Path, change: Any, said: str) -> None:
    columns = [column(tmp_path / "a"), column(tmp_path / "b", name="other", metrics=METRICS | change)]
    assert f"NOT COMPARABLE, other {said}" in lines_of(columns)
    shown = compare.as_json(columns)
    assert shown["comparable"] is False and said in shown["differences"]
    assert any("other: trained on the MNIST sample" in line for line in shown["notes"]) == ("sample" in said)


def test_the_same_work_done_otherwise_is_comparable_and_the_difference_is_said(tmp_path: Path) -> None:
    columns = [column(tmp_path / "a"), column(tmp_path / "b", name="other", metrics=METRICS | {"precision": "bf16"})]
    assert compare.as_json(columns)["comparable"] is True
    assert "they differ in precision: fp32 (mnist), bf16 (other)" in lines_of(columns)


def test_a_stamped_run_shows_no_spread_and_says_how_to_get_one(tmp_path: Path) -> None:
    columns = [column(tmp_path / "a"), column(tmp_path / "b", name="other", mode="stamped")]
    (line,) = [line for line in lines_of(columns) if line.startswith("s / iteration")]
    assert line.split()[-4:] == ["0.0800", "±", "0.0082", "0.0800"]
    text = "\n".join(lines_of(columns))
    assert "mnist: its iterations' σ is measured" in text and "other: no σ of an iteration" in text


@pytest.mark.parametrize("metrics", [
    "", "[]", "{" * 100_000,
    json.dumps({"seconds": [], "world": "x", "dataset": 3, "epochs": "many", "train_loss": [None]}),
    json.dumps(METRICS | {"test_accuracy": 7, "images_per_s": -1, "batch_size": "64", "peak_rss_bytes": 1.5}),
    json.dumps(METRICS | {"test_accuracy": "\x1b[2J", "model": ["a"], "images_per_s": 10**400}),
])  # fmt: skip
def test_metrics_that_make_no_sense_cost_their_figure_and_nothing_else(tmp_path: Path, metrics: str) -> None:
    found = column(tmp_path / "a", metrics=metrics)
    assert found.test_accuracy is None and found.images_per_s is None
    assert found.total_s == pytest.approx(0.88)
    text = "\n".join(lines_of([found]) + compare.markdown([found])) + compare.csv_text([found])
    assert "\x1b" not in text and "s / epoch" in text and "accuracy (%)" not in text


def test_a_run_that_measured_nothing_has_an_empty_column_and_a_reason(tmp_path: Path) -> None:
    run = RunRecord("7q2mabcdef", "hello", "hello.yaml", "emulated", AT, str(tmp_path))
    failed = Attempt("x", run.id, state=AttemptState.FAILED, exit_code=7)
    found = figures(run, failed, None, WholeRun(12.5, 2, 0.25))
    assert [line.split()[0] for line in compare.table([found]).lines()[1:]] == [
        *("whole", "restarts", "exit", "cost", "on", "run")
    ]
    assert "hello: its state is failed" in lines_of([found]) and "timing.jsonl" not in "".join(lines_of([found]))
    assert compare.one(found)[:4] == [
        "figure   whole job (s): 12.5",
        "figure   restarts: 2",
        "figure   exit code: 7",
        "figure   cost: $0.25 emulated",
    ]


def test_a_training_that_left_no_times_says_so(tmp_path: Path) -> None:
    run = RunRecord(
        "7q2mabcdef", "mnist", "j.yaml", "google", AT, str(tmp_path), RunSpec.of({"train": {"backend": "xla"}})
    )
    found = figures(run, Attempt("x", run.id, state=AttemptState.FAILED), None, WholeRun())
    assert "mnist: it left no timing.jsonl" in lines_of([found])


def measuring(directory: Path, name: str, lr: float, *losses: float) -> RunFigures:
    """A run of a job of one's own, that reported these losses."""
    directory.mkdir()
    lines = (json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(losses, 1))
    (directory / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    run = RunRecord(f"{name}abcdefgh", name, "j.yaml", "google", AT, str(directory), RunSpec.of({"params": {"lr": lr}}))
    return figures(run, Attempt("x", run.id, state=AttemptState.SUCCEEDED, exit_code=0), None, WholeRun(60.0, 0, 0.5))


def test_any_job_that_reports_metrics_is_compared_by_them_and_by_its_parameters(tmp_path: Path) -> None:
    columns = [measuring(tmp_path / "a", "one", 1e-3, 3, 0.5, 1.25), measuring(tmp_path / "b", "two", 3e-4, 2, 0.25)]
    head, *lines = compare.table(columns).lines()
    assert head.split() == ["one", "two"]
    assert [line.split("  ")[0] for line in lines] == ["lr", "loss", "whole job (s)", "cost", "on", "run"]
    assert lines[0].split() == ["lr", "1e-3", "3e-4"]
    assert re.split(" {2,}", lines[1]) == ["loss", "1.25 (best 0.5)", "0.25"]
    assert "best loss: 0.25, two" in remarks(columns)
    assert "metric   loss: 1.25 at step 3 · best 0.5 at step 2 · 3 values" in compare.one(columns[0])
    assert "figure   lr: 1e-3" in compare.one(columns[0])


def test_of_values_that_look_alike_none_is_the_best_or_all_are(tmp_path: Path) -> None:
    columns = [measuring(tmp_path / name, name, 0.1, loss) for name, loss in (("a", 0.50001), ("b", 0.50002))]
    assert not any(line.startswith("best") for line in remarks(columns))
    assert "best loss: 0.5, a, b" in remarks([*columns, measuring(tmp_path / "c", "c", 0.1, 0.75)])


def test_a_run_without_a_figure_that_another_has_shows_a_dash_and_an_empty_cell(tmp_path: Path) -> None:
    columns = [column(tmp_path / "a"), measuring(tmp_path / "b", "two", 3e-4, 2)]
    cells = {line[0]: line[1:] for line in compare.table(columns).rows}
    assert cells["loss"] == ("-", "2") and cells["total (s)"][1] == "-" and cells["lr"] == ("-", "3e-4")
    trained, own = csv.DictReader(io.StringIO(compare.csv_text(columns)))
    assert (trained["loss_last"], own["loss_last"], own["loss_best"]) == ("", "2.0", "2.0")
    assert (trained["param_lr"], own["param_lr"], own["total_s"]) == ("", "0.0003", "")


def test_many_runs_are_rows(tmp_path: Path) -> None:
    columns = [measuring(tmp_path / str(n), f"run{n}", n, n) for n in range(1, 6)]
    found = compare.table(columns)
    assert found.head[1:] == ("lr", "loss", "whole job (s)", "cost", "on", "run")
    assert [row[:3] for row in found.rows] == [(f"run{n}", str(n), str(n)) for n in range(1, 6)]
    assert len(compare.markdown(columns)[1].split("|")) == len(found.head) + 2


def test_a_metric_with_a_row_of_the_built_in_training_is_not_shown_twice(tmp_path: Path) -> None:
    trained = column(tmp_path / "a")
    reported = tmp_path / "a" / "worker0" / "artifacts" / "metrics.jsonl"
    reported.write_text('{"step": 1, "loss": 1}\n{"step": 2, "images_per_s": 9, "test_accuracy": 0.5}\n')
    trained = replace(trained, metrics=metrics_of(tmp_path / "a"))
    labels = [line[0] for line in compare.table([trained]).rows]
    assert "loss" in labels and "images_per_s" not in labels and "test_accuracy" not in labels


def test_markdown_is_one_table_and_a_name_cannot_break_it(tmp_path: Path) -> None:
    columns = [column(tmp_path / "a"), column(tmp_path / "b", metrics=METRICS | {"model": "<b>a|b</b>"}, name="other")]
    head, rule, *body = compare.markdown([columns[1]])[: 2 + len(compare.table([columns[1]]).rows)]
    assert rule == "| --- | ---: |" and "&lt;b>a\\|b" in head
    assert all(line.startswith("| ") and line.replace("\\|", "").count("|") == 3 for line in body)


def test_csv_has_a_line_for_each_run_with_the_figures_as_measured_and_no_formulas(tmp_path: Path) -> None:
    metrics = METRICS | {"model": "=cmd()", "world": {"device": "@x"}}
    (row,) = csv.DictReader(io.StringIO(compare.csv_text([column(tmp_path / "a", metrics=metrics)])))
    assert (row["model"], row["device"], row["epoch_s_count"]) == ("'=cmd()", "'@x", "2")
    assert float(row["step_s_mean"]) == pytest.approx(0.08) and row["cost_usd"] == ""


@pytest.mark.parametrize(("value", "shown"), [
    (0.0074123, "0.00741"), (0.0741, "0.0741"), (7.414, "7.41"), (74.14, "74.1"), (1234.5, "1,234.5"),
    (0, "0.0"), (None, "-"),
])  # fmt: skip
def test_seconds_are_shown_with_three_figures_that_mean_something(value: float | None, shown: str) -> None:
    assert compare.seconds(value) == shown


def test_a_row_for_each_run_gives_up_where_it_ran_before_its_id_is_broken(tmp_path: Path) -> None:
    shown = compare.table([column(tmp_path / str(number)) for number in range(compare.COLUMNS + 1)])
    assert "on" in {shown.head[number] for number in shown.optional}
    assert "run" not in {shown.head[number] for number in shown.optional}
