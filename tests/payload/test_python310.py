"""A training on Python 3.10, that of TPU VM images, from the command to its manifest."""

import json
import os
from pathlib import Path

import pytest

from tests.payload.command import ROOT
from tests.programs_fixture import find
from tests.waiting import ran


def train(python: str, directory: Path, data: Path, backend: str, **environ: str) -> dict[str, object]:
    """The metrics of a small one, by new programs all the way down."""
    config = {"model": "mlp", "epochs": 1, "examples": 128, "test_examples": 32, "data_dir": str(data)}
    (directory / "train.json").write_text(json.dumps(config))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TPUJOB_", "PJRT_", "PYTHON"))}
    places = {"PYTHONPATH": str(ROOT), "TPUJOB_ARTIFACTS": str(directory / "artifacts")}
    argv = [python, "-m", "payload", "--config", str(directory / "train.json"), "--backend", backend]
    env = {**clean, **places, **environ}
    done = ran(argv, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    provenance = json.loads((directory / "artifacts" / "provenance.json").read_text())
    assert provenance["versions"]["python"].startswith("3.10.")
    assert (directory / "artifacts" / "manifest.json").exists()
    found: dict[str, object] = json.loads((directory / "artifacts" / "metrics.json").read_text())
    return found


def test_a_training_runs_on_python_3_10(python310_with_torch: str, tmp_path: Path, data: Path) -> None:
    found = train(python310_with_torch, tmp_path, data, "cpu")
    assert found["test_examples"] == 32 and found["world"] == {
        **{"device": "cpu", "processes": 1, "workers": 1, "emulated": False, "notes": []}
    }


@pytest.mark.exhaustive
def test_a_training_with_torch_xla_runs_on_python_3_10(tmp_path: Path, data: Path) -> None:
    python = find("torch", "numpy", "torch_xla") or pytest.skip(
        "needs a Python 3.10 with torch_xla, named by PYTHON310"
    )
    train(python, tmp_path, data, "xla", PJRT_DEVICE="CPU", TPUJOB_EMULATED_CORES="2")
