"""What is read of the job of a run: what its file said, and of the record of another tpujob what can be understood."""

from dataclasses import fields
from pathlib import Path

import pytest

from orchestrator.core.jobfile import keys
from orchestrator.core.lease.access import AccessWish
from orchestrator.core.lease.run_spec import FunctionCall, LimitsRecord, RunSpec, SweepPart, TpuRecord, TrainRecord
from orchestrator.places.preparation import records as runs

JOB = """
tpu: {accelerator: v6e-8, zone: us-east5-b}
access: {network: n, subnetwork: s, tags: [t]}
artifacts: ['*.txt']
metrics: {loss: 'loss ([0-9.]+)'}
ports: [6006]
tpu_metrics: false
params: {lr: 0.1, name: x}
limits: {max_duration: 90m, max_results: 2GB, max_log: 3MB, linger: 5m}
env: {KEY: "${env:MINE}"}
code: .
"""
TRAIN = "train: {entry: 'a:b', options: {function: f}, backend: none, model: mlp, batch_size: 64, cores: 4}"


def test_what_the_file_said_is_read_again() -> None:
    spec = _recorded(JOB + TRAIN)
    assert spec == RunSpec(
        train=TrainRecord("a:b", FunctionCall("f"), "none", "mlp", "mnist", 64, "fp32", 4),
        tpu=TpuRecord("v6e-8", ("us-east5-b",)),
        access=AccessWish("auto", None, "auto", "n", "s", ("t",), secure_boot=False),
        limits=LimitsRecord(5400.0, 2_000_000_000, 3_000_000, 300.0), artifacts=("*.txt",),
        metrics={"loss": "loss ([0-9.]+)"}, ports=(6006,), tpu_metrics=False, params={"lr": 0.1, "name": "x"},
        secret_sources=("MINE",), sweep=SweepPart("1", "s", 2, "lr=0.1", "k"), values=spec.values,
    )  # fmt: skip
    assert _recorded("on: gke\ngke: {image: i}\nbucket: gs://my-bucket/r\ncommand: ls").bucket == "gs://my-bucket/r"
    assert _recorded("command: ls").command == "ls" and _recorded("command: ls").train is None
    several = _recorded("command: ls\ntpu: {any_of: [{accelerator: v5e-8}, {accelerator: v6e-8}]}")
    assert several.tpu.place == (None, None)


def _recorded(text: str) -> RunSpec:
    of_sweep = {"id": "1", "name": "s", "number": 2, "variant": "lr=0.1", "params": {"lr": 0.1}, "key": "k"}
    record, _ = runs.new_run(keys.load(text, path="j.yaml"), Path("j.yaml"), "google", Path("r"), 1.0, sweep=of_sweep)
    return record.spec


@pytest.mark.parametrize("other", [None, "text", 7, -1.5, True, [], [1, "x"], {}, {"a": [None]}], ids=repr)
def test_whatever_another_tpujob_recorded_is_read_and_kept(other: object) -> None:
    assert RunSpec.of(other).values == (other if isinstance(other, dict) else {})
    names = [field.name for field in fields(RunSpec)]
    for values in (dict.fromkeys(names, other), {name: dict.fromkeys(names, other) for name in names}):
        spec = RunSpec.of(values | {"colour": other})
        assert spec.having(sweep={"id": "1"}).values == values | {"colour": other, "sweep": {"id": "1"}}
        assert (spec.tpu.place, spec.cluster.phases) == ((None, None), ("main",)) and isinstance(spec.ports, tuple)


def test_a_whole_number_is_a_number_of_seconds_and_true_is_no_number() -> None:
    assert RunSpec.of({"limits": {"max_duration": 60, "max_results": True}}).limits == LimitsRecord(60.0, None)
