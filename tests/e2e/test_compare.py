"""`tpujob compare` and `tpujob bench` through the real CLI. The jobs write the payload's files themselves: that is quick."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import re
import signal
from typing import Any

import pytest

from tests.cli_fixture import Tpujob, press

# A training in a second: what it measured is what the variant says.
WRITE = """
import json, os, pathlib, time
out = pathlib.Path(os.environ["TPUJOB_ARTIFACTS"])
dt_s = float(os.environ.get("DT", "0.1"))
head = {"schema": 1, "timing": "drained", "device": "pretended", "processes": 1, "batch_size": 32}
steps = [{"epoch": 1, "step": n, "t_s": n, "dt_s": dt_s * (1 + n % 2)} for n in range(1, 5)]
epochs = [{"epoch": n, "t_s": 9, "s": 6 * dt_s, "compile_s": 0, "warm_steps": 4, "steps": 4} for n in (1, 2)]
(out / "timing.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in [head, *steps, *epochs]))
(out / "metrics.json").write_text(json.dumps({"model": "pretended", "batch_size": 32, "test_accuracy": 0.5}))
"""
BASE = "tpu: {zone: us-central1-a}\ncode: ./code\ncommand: python3 write.py\n"
BENCH = """
base: base.yaml
variants:
  on-tpu:
  here: {on: local, env: {DT: "0.2"}}
  failing: {on: local, command: "exit 9"}
"""


@pytest.fixture
def ready(tpujob: Tpujob) -> Tpujob:
    (tpujob.directory / "code").mkdir()
    (tpujob.directory / "code" / "write.py").write_text(WRITE)
    tpujob.job(BASE, "base.yaml")
    tpujob.job(BENCH, "bench.yaml")
    return tpujob


def runs(tpujob: Tpujob) -> list[dict[str, Any]]:
    return json.loads(tpujob("list", "--json").stdout)


def test_a_bench_runs_its_variants_prints_their_table_and_does_nothing_twice(ready: Tpujob) -> None:
    done = ready("bench", "bench.yaml", "--json")
    assert done.returncode == 9, "one of them failed, which the others did not suffer for"
    table = json.loads(done.stdout)
    assert [column["title"] for column in table["runs"]] == ["on-tpu", "here"]
    assert [column["step_s"]["mean"] for column in table["runs"]] == pytest.approx([0.15, 0.3])
    assert [column["cloud"] for column in table["runs"]] == ["emulated", "local"]
    assert table["comparable"] is True and "bench    failing ended with code 9" in done.stderr
    assert {run["name"] for run in runs(ready)} == {"bench-on-tpu", "bench-here", "bench-failing"}

    ready.job(BENCH.replace("exit 9", "python3 write.py"), "bench.yaml")
    done = ready("bench", "bench.yaml")
    assert done.returncode == 0 and done.stderr.count("done before, run ") == 2
    assert "on-tpu" in done.stdout.splitlines()[0] and "failing" in done.stdout.splitlines()[0]
    assert (len(runs(ready)), ready.lived()) == (4, 1), "only what had failed was run again"

    (ready.directory / "code" / "write.py").write_text(WRITE + "\n# changed\n")
    assert ready("bench", "bench.yaml").stderr.count("done before") == 0, "other code is other work"
    assert len(runs(ready)) == 7 and ready.alive() == []


@pytest.mark.exhaustive
def test_ctrl_c_ends_the_bench_and_the_same_command_goes_on(ready: Tpujob) -> None:
    waits = "echo started; sleep 300"
    first, never = "first: {on: local}", "never: {on: local}"
    slow = f"base: base.yaml\nvariants:\n  {first}\n  slow: {{on: local, command: {waits}}}\n  {never}\n"
    process = ready.start("bench", ready.job(slow, "slow.yaml"))
    assert process.stderr is not None  # stdout is the table's
    assert any("started" in line for line in process.stderr)
    press(process, signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130 and "the same command continues here" in err
    assert [run["state"] for run in runs(ready)] == ["interrupted", "succeeded"]
    ready.job(slow.replace(waits, "python3 write.py"), "slow.yaml")
    done = ready("bench", "slow.yaml")
    assert done.returncode == 0 and "first (1 of 3): done before" in done.stderr
    assert [run["name"] for run in runs(ready)][:2] == ["slow-never", "slow-slow"]


def test_a_mistake_in_the_last_variant_is_told_before_the_first_one_runs(ready: Tpujob) -> None:
    text = "base: base.yaml\nvariants:\n  good: {on: local}\n  bad: {code: ./nowhere}\n"
    done = ready("bench", ready.job(text, "b.yaml"))
    assert done.returncode == 64 and "b.yaml:4: code: nowhere is not a directory" in done.stderr
    assert "no such file" in ready("bench", ready.job("base: gone.yaml\nvariants: {a: {}}\n", "c.yaml")).stderr
    assert runs(ready) == []


def test_compare_prints_text_markdown_and_csv_of_the_runs_in_the_order_they_are_named(ready: Tpujob) -> None:
    for name, dt_s in (("slow", "0.4"), ("quick", "0.1")):
        text = f"name: {name}\non: local\ncode: ./code\nenv: {{DT: '{dt_s}'}}\ncommand: python3 write.py\n"
        assert ready("run", ready.job(text)).returncode == 0
    text = ready("compare", "slow", "quick")
    assert text.returncode == 0 and text.stdout.splitlines()[0].split()[-2:] == ["slow", "quick"]
    assert re.search(r"^s / iteration \(mean ± σ\) +0\.600 ± 0\.231 +0\.150 ± 0\.058$", text.stdout, re.MULTILINE)
    assert (
        "| s / epoch (mean ± σ) | 2.40 ± 0.00 | 0.600 ± 0.000 |"
        in ready("compare", "slow", "quick", "--markdown").stdout
    )
    rows = list(csv.DictReader(io.StringIO(ready("compare", "quick", "slow", "--csv").stdout)))
    assert [row["title"] for row in rows] == ["quick", "slow"] and float(rows[0]["total_s"]) == pytest.approx(1.2)
    assert ready("compare", "slow", "nobody").returncode == 64
    assert ready("compare", "slow", "--csv", "--json").returncode == 64
    assert json.loads(ready("show", "slow", "--json").stdout)["figures"]["step_s"]["mean"] == pytest.approx(0.6)


TRAIN = """
tpu: {zone: us-central1-a}
train: {dataset: synthetic, batch_size: 64, epochs: 2, examples: 256, test_examples: 100, timing: drained}
"""


@pytest.mark.exhaustive  # three trainings; the figures themselves are compared above, and test_train has the one of each kind
@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch_xla") is None, reason="needs the `local` extra")
def test_the_built_in_training_is_compared_on_many_cores_on_one_and_on_this_machine(tpujob: Tpujob) -> None:
    tpujob.job(TRAIN, "base.yaml")
    variants = "{multi-core: {}, single-core: {train: {cores: 1}}, cpu: {on: local, train: {backend: cpu, cores: 1}}}"
    done = tpujob("bench", tpujob.job(f"base: base.yaml\nvariants: {variants}\n", "b.yaml"), "--json")
    assert done.returncode == 0, done.stderr
    table = json.loads(done.stdout)
    assert table["comparable"] is True and table["differences"] == []
    multi, single, cpu = table["runs"]
    assert [(column["device"], column["processes"]) for column in (multi, single, cpu)] == [
        ("xla:cpu", 2),
        ("xla:cpu", 1),
        ("cpu", 1),
    ]
    for column in (multi, single, cpu):
        assert column["step_s"]["std"] > 0 and column["problems"] == []
        assert column["first_step_s"] > 0 and column["images_per_s"] > 0 and 0 <= column["test_accuracy"] <= 1
        assert column["train_loss"] == pytest.approx(multi["train_loss"], rel=1e-3), "the same work"
    assert (
        multi["warm_up_steps"] >= 1
        and multi["compile_s"] > 0
        and multi["step_s"]["count"] == 8 - multi["warm_up_steps"]
    )
