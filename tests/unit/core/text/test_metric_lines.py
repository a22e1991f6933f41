"""What a line of metrics says; a job may write anything."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.text.metric_lines import MetricLine, less_is_better, line_of


def test_a_line_has_a_step_and_values() -> None:
    assert line_of(json.loads('{"step": 1200, "loss": 0.41, "n": 3}')) == MetricLine(1200, {"loss": 0.41, "n": 3.0})
    assert line_of(json.loads('{"loss": 1}')) == MetricLine(None, {"loss": 1.0})
    assert line_of(json.loads('{"step": 10.0, "loss": 1}')) == MetricLine(10, {"loss": 1.0})


def test_what_is_no_number_is_left_out() -> None:
    text = '{"step": 1, "loss": 2, "note": "x", "on": true, "nested": {"a": 1}, "list": [1], "none": null}'
    assert line_of(json.loads(text)) == MetricLine(1, {"loss": 2.0})


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400])
def test_a_value_that_is_not_finite_is_there_without_a_number(value: str) -> None:
    assert line_of(json.loads(f'{{"loss": {value}}}')) == MetricLine(None, {"loss": None})


@pytest.mark.parametrize("step", ["-1", "1.5", '"7"', "true", "null", "1e300", "NaN"])
def test_a_step_that_is_none_is_no_step(step: str) -> None:
    assert line_of(json.loads(f'{{"step": {step}, "loss": 1}}')) == MetricLine(None, {"loss": 1.0})


@pytest.mark.parametrize("found", [[], 7, "loss", None, {}, {"step": 3}, {"\x1b[31m": 1}, {"": 1}, {"n" * 65: 1}])
def test_a_line_without_metrics_says_nothing(found: Any) -> None:
    assert line_of(found) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(VALUES)
def test_no_line_raises(found: Any) -> None:
    line = line_of(found)
    assert line is None or all(value is None or math.isfinite(value) for value in line.values.values())


@pytest.mark.parametrize("name", ["loss", "val/Loss", "test_error", "perplexity", "rmse", "eval/mse", "step_s", "wer"])
def test_less_of_it_is_better(name: str) -> None:
    assert less_is_better(name)


@pytest.mark.parametrize("name", ["acc", "accuracy", "images_per_s", "tokens/sec", "f1", "bleu", "auc"])
def test_more_of_it_is_better(name: str) -> None:
    assert less_is_better(name) is False


@pytest.mark.parametrize("name", ["lr", "learning_rate", "grad_norm", "epoch", "tokens", "beta", "entropy", "x"])
def test_no_value_of_it_is_the_best(name: str) -> None:
    assert less_is_better(name) is None
