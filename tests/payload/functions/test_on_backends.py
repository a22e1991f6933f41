"""A function over the contract of `entry:`: every process calls it, and process 0 leaves the value."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.payload.command import HAS_XLA, needs_torch, play, succeeds

pytestmark = [pytest.mark.torch, needs_torch]

SOURCE = """\
def f(x, backend=None, run=None):
    import torch
    print("here", backend.rank, flush=True)
    total = backend.sum(torch.tensor([float(x + backend.rank)]))
    if x < 0:
        raise ValueError("negative")
    return {"sum": total.item(), "world": backend.world, "tensor": total[0], "epochs": run.config.epochs}
"""


def call(x: int) -> dict[str, Any]:
    where = {"name": "f", "module": None, "source": SOURCE, "file": "nb.py", "line": 3, "given": ["backend", "run"]}
    return {**where, "args": [x], "kwargs": {}, "defaults": [None, None], "kwdefaults": None}


def config(x: int, cores: int) -> dict[str, Any]:
    return {"entry": "payload.functions.call:main", "options": {"call": json.dumps(call(x))}, "cores": cores}


@pytest.mark.parametrize(("backend", "cores"), [("cpu", 2), *([("xla", 2)] if HAS_XLA else [])])
def test_the_processes_of_a_backend_meet_in_the_function(tmp_path: Path, backend: str, cores: int) -> None:
    done = succeeds(tmp_path, config(10, cores), "--backend", backend)
    assert done.read("function-result.json") == {
        "schema": 1,
        "value": {"sum": 21.0, "world": 2, "tensor": 21.0, "epochs": 5},
    }
    metrics = done.read("metrics.json")
    assert (metrics["sum"], metrics["world"]["processes"]) == (21.0, 2), "tpujob's own keys win"


def test_an_exception_in_all_processes_is_left_once(tmp_path: Path) -> None:
    done = play(tmp_path, config(-1, 2), "--backend", "cpu")
    assert done.code == 1 and "ValueError: negative" in done.stdout
    found = done.read("function-error.json")
    assert (found["type"], found["message"], found["file"], found["line"]) == ("ValueError", "negative", "nb.py", 8)
    assert {path.name for path in done.artifacts.iterdir()} >= {"function-error.json"}
    assert not (done.artifacts / "function-result.json").exists()
    again = play(tmp_path, config(1, 1), "--backend", "cpu")
    assert again.code == 0 and not (again.artifacts / "function-error.json").exists(), "that of the run before is gone"
