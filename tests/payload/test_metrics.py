"""metrics.jsonl: what a training reports of itself by step."""

import json
from pathlib import Path

import pytest

from payload.metrics import MetricsFile
from tests.payload.command import HAS_XLA, needs_torch, succeeds


def lines(path: Path) -> list[dict[str, float | None]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "m", after=None)
    file.write(1, {"loss": 0.5, "rate": None})
    file.write(None, {"accuracy": 0.75})
    file.write(2, {"nothing": None})
    assert lines(tmp_path / "m") == [{"step": 1, "loss": 0.5}, {"accuracy": 0.75}]


def test_a_value_that_json_lacks_is_null(tmp_path: Path) -> None:
    MetricsFile(tmp_path / "m", after=None).write(1, {"loss": float("nan"), "rate": float("inf")})
    assert lines(tmp_path / "m") == [{"step": 1, "loss": None, "rate": None}]


class OneNumber:
    """As NumPy, PyTorch and JAX have it."""

    ndim = 0

    def __float__(self) -> float:
        return 0.25

    def __int__(self) -> int:
        return 7


def test_a_number_of_numpy_torch_or_jax_is_written_as_a_plain_one(tmp_path: Path) -> None:
    MetricsFile(tmp_path / "m", after=None).write(OneNumber(), {"loss": OneNumber(), "count": 3})  # type: ignore[arg-type, dict-item]
    assert lines(tmp_path / "m") == [{"step": 7, "loss": 0.25, "count": 3}]


@pytest.mark.parametrize(("after", "kept"), [(2, [1, 2]), (0, []), (None, [1, 2, 3])])
def test_a_resumed_training_repeats_no_step(tmp_path: Path, after: int | None, kept: list[int]) -> None:
    path = tmp_path / "m"
    path.write_text("".join(f'{{"step": {step}, "loss": 1}}\n' for step in (1, 2, 3)) + '{"step": 4, "lo')
    MetricsFile(path, after=after)
    assert [line["step"] for line in lines(path)] == kept


@pytest.mark.ci
@pytest.mark.torch
@needs_torch
def test_a_training_reports_its_steps_its_rate_and_its_test(tmp_path: Path, data: Path) -> None:
    backend = "xla" if HAS_XLA else "cpu"
    done = succeeds(tmp_path, {"epochs": 2, "batch_size": 32, "lr": 0.02}, "--backend", backend, data=data)
    found = lines(done.artifacts / "metrics.jsonl")
    by_epoch = [json.loads(line)["losses"] for line in (done.artifacts / "losses.jsonl").read_text().splitlines()]
    losses = [loss for epoch in by_epoch for loss in epoch]
    steps = [(line["step"], line["loss"]) for line in found if "loss" in line]
    assert steps == list(enumerate(losses, 1))
    results = done.read("metrics.json")
    assert found[-1] == {
        "step": len(losses),
        "test_accuracy": results["test_accuracy"],
        "test_loss": results["test_loss"],
    }
    assert sum("images_per_s" in line for line in found) >= 1


ENTRY = """
def main(backend, run):
    for step in (1, 2):
        run.report(step, loss=1 / step)
    return {}
"""


@pytest.mark.torch
@needs_torch
def test_an_entry_reports_its_own_once_for_all_processes(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text(ENTRY)
    done = succeeds(tmp_path, {"entry": "mine:main", "cores": 2}, "--backend", "cpu", code=code)
    assert lines(done.artifacts / "metrics.jsonl") == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}]


def test_an_entry_without_pytorch_reports_too(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text(ENTRY.replace("return {}", "return {'loss': 0.5}"))
    done = succeeds(tmp_path, {"entry": "mine:main", "backend": "none"}, code=code)
    assert len(lines(done.artifacts / "metrics.jsonl")) == 2
