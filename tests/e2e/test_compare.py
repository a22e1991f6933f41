"""`tpujob compare` through the real CLI. The jobs write the payload's files themselves: that is quick."""

import csv
import importlib.util
import io
import json
import re

import pytest

from tests.cli_fixture import Tpujob

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


@pytest.fixture
def ready(tpujob: Tpujob) -> Tpujob:
    (tpujob.directory / "code").mkdir()
    (tpujob.directory / "code" / "write.py").write_text(WRITE)
    return tpujob


def test_compare_prints_text_markdown_and_csv_of_the_runs_in_the_order_they_are_named(ready: Tpujob) -> None:
    for name, dt_s in (("slow", "0.4"), ("quick", "0.1")):
        text = f"name: {name}\non: local\ncode: ./code\nenv: {{DT: '{dt_s}'}}\ncommand: python3 write.py\n"
        assert ready("run", ready.job(text)).returncode == 0
    text = ready("compare", "slow", "quick")
    assert text.returncode == 0 and text.stdout.splitlines()[0].split()[-2:] == ["slow", "quick"]
    assert re.search(r"^s / iteration \(mean ± σ\)\s+0\.600 ± 0\.231\s+0\.150 ± 0\.058$", text.stdout, re.MULTILINE)
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
    variants = "{multi-core: {}, single-core: {train: {cores: 1}}, cpu: {on: local, train: {backend: cpu, cores: 1}}}"
    done = tpujob("run", tpujob.job(f"name: c{TRAIN}variants: {variants}\n", "b.yaml"))
    assert done.returncode == 0, done.stderr
    table = json.loads(tpujob("compare", "c", "--json").stdout)
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
