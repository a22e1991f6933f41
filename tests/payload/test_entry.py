"""A training of the job's own: the same function on every backend, with a checkpoint it can go on from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tests.payload.test_run import DEADLINE_S, HAS_XLA, ROOT  # noqa: E402

EXAMPLE = {
    "entry": "my_training:main",
    "options": {"width": 32, "batch_size": 128},
    "epochs": 2,
    "lr": 0.01,
}


def run(
    tmp_path: Path, config: dict[str, Any], *arguments: str, code: Path = ROOT / "jobs" / "custom", **environ: str
) -> subprocess.CompletedProcess[str]:
    """As on a worker: in the directory of the code, with the payload beside it."""
    path = tmp_path / "train.json"
    path.write_text(json.dumps(config))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TPUJOB_", "PJRT_"))}
    places = {"PYTHONPATH": str(ROOT), "TPUJOB_ARTIFACTS": str(tmp_path / "artifacts"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "payload", "--config", str(path), *arguments],
        cwd=code,
        env={**clean, "PJRT_DEVICE": "CPU", **places, **environ},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def metrics(tmp_path: Path) -> Any:
    return json.loads((tmp_path / "artifacts" / "metrics.json").read_text())


def test_the_shipped_example_learns_the_same_on_every_backend_and_number_of_processes(tmp_path: Path) -> None:
    losses = {}
    for backend, cores in (("cpu", 1), ("cpu", 2), *([("xla", 2)] if HAS_XLA else [])):
        done = run(tmp_path, {**EXAMPLE, "cores": cores}, "--backend", backend)
        assert done.returncode == 0, done.stdout + done.stderr
        name = {"cpu": "cpu", "xla": "xla:cpu"}[backend]
        assert done.stdout.startswith(f"{name} ×{cores} · my_training:main · fp32\nepoch 1/2  loss 0."), done.stdout
        found = metrics(tmp_path)
        assert found["world"]["processes"] == cores and found["schema"] == 1
        losses[backend, cores] = found["train_loss"]
    assert len({round(loss, 4) for loss in losses.values()}) == 1, losses
    assert losses["cpu", 1] < 0.45, "always guessing the more frequent answer is 0.6"


DROPOUT = """
import os
import torch
from payload.run import seed_of

def main(backend, run):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    network, first, losses = backend.wrap(model), 1, []
    if run.saved:
        model.load_state_dict(run.saved["model"])
        optimizer.load_state_dict(run.saved["optimizer"])
        first, losses = run.saved["step"] + 1, run.saved["losses"]
    x = torch.ones(8, 4).to(backend.device)
    for step in range(first, 13):
        backend.seed(seed_of(1, 1, step, backend.rank))
        loss = (network(x) - 3).square().mean()
        optimizer.zero_grad()
        backend.backward(loss)
        losses = [*losses, backend.step(optimizer, also=loss.detach()).item()]
        backend.sync()
        state = lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
        run.checkpoint(state, step=step)
        if step == 8 and "DIE" in os.environ:
            os._exit(9)
    return {"losses": losses}
"""


@pytest.mark.parametrize("backend", ["cpu", *(["xla"] if HAS_XLA else [])])
def test_dropout_is_the_same_after_a_resume(tmp_path: Path, backend: str) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text(DROPOUT)
    cores = {"cpu": 2, "xla": 1}[backend]
    config = {"entry": "mine:main", "cores": cores, "checkpoint_every": "3 steps"}
    assert run(tmp_path, config, "--backend", backend, code=code).returncode == 0
    expected = metrics(tmp_path)["losses"]
    assert len(expected) == 12
    # The run above ended well, so this one begins anew; it dies, and the third goes on.
    assert run(tmp_path, config, "--backend", backend, code=code, DIE="1").returncode == 9
    last = run(tmp_path, config, "--backend", backend, code=code)
    assert last.returncode == 0, last.stdout + last.stderr
    assert metrics(tmp_path)["resumed_after_step"] == 6
    assert metrics(tmp_path)["losses"] == expected


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("nowhere:main", "entry: nowhere:main: there is no module nowhere here; does `code:` name its directory?"),
        ("my_training:train", "entry: my_training:train: my_training has no function train"),
    ],
)
def test_an_entry_that_is_not_there_is_one_line(tmp_path: Path, entry: str, words: str) -> None:
    done = run(tmp_path, {**EXAMPLE, "entry": entry}, "--backend", "cpu")
    assert done.returncode == 2 and f"error: {words}" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_an_answer_that_is_no_dictionary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def main(backend, run):\n    return 3\n")
    done = run(tmp_path, {"entry": "mine:main"}, "--backend", "cpu", code=tmp_path)
    assert done.returncode == 2 and "mine:main answered int; it must answer a dictionary or None" in done.stdout
