"""Bench files: the jobs of their variants, and mistakes at their lines."""

from __future__ import annotations

import pytest

from orchestrator.core.jobfile import variants as bench_file
from orchestrator.core.jobfile.keys import JobSpec
from orchestrator.errors import JobSpecError
from tests import ROOT

BASE = """
name: mnist
tpu: {zone: us-central1-a}
train:
  epochs: 10
  emulated: {epochs: 3, cores: 2}
env: {A: one, B: two}
"""


def variants(text: str, base: str = BASE) -> dict[str, JobSpec]:
    outline = bench_file.outline(text, path="b.yaml", default_name="b")
    return bench_file.variants(outline, base, base_path="mnist.yaml")


def problems(text: str, base: str = BASE) -> list[str]:
    with pytest.raises(JobSpecError) as raised:
        variants(text, base)
    return raised.value.problems


def test_a_variant_is_the_base_with_the_keys_that_differ() -> None:
    found = variants("base: mnist.yaml\nvariants:\n  multi:\n  single:\n    train: {cores: 1}\n")
    assert list(found) == ["multi", "single"], "in the order of the file"
    multi, single = found["multi"].train, found["single"].train
    assert multi is not None and single is not None
    assert (multi.epochs, multi.cores, single.epochs, single.cores) == (10, "all", 10, 1)
    assert [spec.name for spec in found.values()] == ["b-multi", "b-single"]


def test_every_applies_to_all_variants_and_a_variant_overrides_it() -> None:
    text = "name: t\nbase: x\nevery: {train: {epochs: 2, seed: 7}}\nvariants: {a: {}, b: {train: {epochs: 4}}}\n"
    found = variants(text)
    assert [spec.train and (spec.train.epochs, spec.train.seed) for spec in found.values()] == [(2, 7), (4, 7)]
    assert found["a"].name == "t-a"


def test_null_removes_a_key_of_the_base() -> None:
    found = variants(
        "base: x\nvariants: {a: {train: {emulated: null}, env: {B: null}}, b: {train: null, command: ls}}\n"
    )
    train = found["a"].train
    assert train is not None and train.emulated.epochs is None and dict(found["a"].env) == {"A": "one"}
    assert found["b"].train is None and found["b"].command == "ls"


def test_a_list_is_replaced_as_a_whole() -> None:
    assert bench_file.merged({"a": [1, 2], "b": {"c": 1}}, {"a": [3], "b": {"d": 2}}) == {
        "a": [3],
        "b": {"c": 1, "d": 2},
    }


def test_a_local_variant_drops_the_tpu_of_the_base() -> None:
    spec = variants("base: x\nvariants: {here: {on: local}}\n")["here"]
    assert spec.on == "local" and spec.warnings() == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("variants: {a: {}}\n", ["b.yaml:1: base: names the job file"]),
        ("base: x\n", ["b.yaml:1: variants: expected a mapping of names"]),
        ("base: x\nvariants: {}\n", ["b.yaml:2: variants: expected a mapping of names"]),
        ("base: x\nvariants: [a, b]\n", ["b.yaml:2: variants: expected a mapping of names"]),
        ("base: x\nvariants:\n  A_b: {}\n", ["b.yaml:3: variants.A_b: its name "]),
        ("base: x\nvariants:\n  a: 3\n", ["b.yaml:3: variants.a: expected a mapping"]),
        ("base: x\nname: 'Not One'\nvariants: {a: {}}\n", ["b.yaml:2: name: `Not One` is not a name"]),
        ("base: x\nevery: 3\nvariants: {a: {}}\n", ["b.yaml:2: every: expected a mapping"]),
        ("base: x\nvariant: {a: {}}\nvariants: {a: {}}\n", ["b.yaml:2: variant: unknown key; known here: name, base"]),
        ("base: x\nvariants:\n  a: {}\n  a: {}\n", ["b.yaml:4: "]),
        ("base: [\n", ["b.yaml:"]),
        # mistakes of a variant as a job, at the line of the bench file that says it
        (
            "base: x\nvariants:\n  a: {}\n  b:\n    train:\n      epochs: 0\n",
            ["b.yaml:6: train.epochs: must be at least 1"],
        ),
        (
            "base: x\nevery:\n  trian: {}\nvariants: {a: {}, b: {}}\n",
            ["b.yaml:3: trian: unknown key; did you mean `train`?"],
        ),
        ("base: x\nvariants:\n  a: {}\n  b: {command: ls}\n", ["b.yaml:4: command: a job has either"]),
        ("base: x\nname: " + "n" * 35 + "\nvariants:\n  variant: {}\n", ["b.yaml:4: name: "]),
    ],
)
def test_a_mistake_is_reported_with_its_line(text: str, lines: list[str]) -> None:
    found = problems(text)
    assert len(found) == len(lines)
    assert [problem.startswith(start) for problem, start in zip(found, lines, strict=True)] == [True] * len(lines), (
        found
    )


def test_a_mistake_of_the_base_is_reported_in_the_base() -> None:
    assert problems("base: x\nvariants: {a: {}}\n", "train: {epochs: 0}\n")[0].startswith("mnist.yaml:1: train.epochs")


def test_the_shipped_bench_compares_the_same_work() -> None:
    path = ROOT / "jobs" / "mnist-compare.yaml"
    outline = bench_file.outline(path.read_text(), path=str(path), default_name="x")
    found = bench_file.variants(outline, (path.parent / outline.base).read_text(), base_path="mnist.yaml")
    assert {"multi-core", "single-core"} < set(found) and any(spec.on == "local" for spec in found.values())
    work = {
        spec.train
        and (spec.train.model, spec.train.dataset, spec.train.examples, spec.train.batch_size, spec.train.epochs)
        for spec in found.values()
    }
    assert len(work) == 1
    assert {spec.train and spec.train.timing for spec in found.values()} == {"drained"}
