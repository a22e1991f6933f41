"""What a line of metrics says; a job may write anything."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.text.metric_lines import LINE_BYTES, MetricLine, less_is_better, parse_line


def test_a_line_has_a_step_and_values() -> None:
    assert parse_line('{"step": 1200, "loss": 0.41, "n": 3}') == MetricLine(1200, {"loss": 0.41, "n": 3.0})
    assert parse_line('{"loss": 1}') == MetricLine(None, {"loss": 1.0})
    assert parse_line('{"step": 10.0, "loss": 1}') == MetricLine(10, {"loss": 1.0})


def test_what_is_no_number_is_left_out() -> None:
    text = '{"step": 1, "loss": 2, "note": "x", "on": true, "nested": {"a": 1}, "list": [1], "none": null}'
    assert parse_line(text) == MetricLine(1, {"loss": 2.0})


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400])
def test_a_value_that_is_not_finite_is_there_without_a_number(value: str) -> None:
    assert parse_line(f'{{"loss": {value}}}') == MetricLine(None, {"loss": None})


@pytest.mark.parametrize("step", ["-1", "1.5", '"7"', "true", "null", "1e300", "NaN"])
def test_a_step_that_is_none_is_no_step(step: str) -> None:
    assert parse_line(f'{{"step": {step}, "loss": 1}}') == MetricLine(None, {"loss": 1.0})


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"no json",
        b"[]",
        b"7",
        b"{}",
        b'{"step": 3}',
        b'{"step": 3, "lo',
        b"[" * 10_000,
        b"\xff\xfe",
        b'{"a": 1, "pad": "' + b"x" * LINE_BYTES + b'"}',
        b'{"\\u001b[31m": 1}',
        b'{"": 1}',
        b'{"' + b"n" * 65 + b'": 1}',
    ],
)
def test_a_line_without_metrics_says_nothing(line: bytes) -> None:
    assert parse_line(line) is None


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_no_line_raises(line: str | bytes) -> None:
    found = parse_line(line)
    assert found is None or all(value is None or math.isfinite(value) for value in found.values.values())


@pytest.mark.parametrize("name", ["loss", "val/Loss", "test_error", "perplexity", "rmse", "eval/mse", "step_s", "wer"])
def test_less_of_it_is_better(name: str) -> None:
    assert less_is_better(name)


@pytest.mark.parametrize("name", ["acc", "accuracy", "images_per_s", "tokens/sec", "f1", "bleu", "auc"])
def test_more_of_it_is_better(name: str) -> None:
    assert not less_is_better(name)
