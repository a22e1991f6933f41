"""The `entry` of a job: the same function on every backend, with a checkpoint to resume from, and its value."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.payload.command import HAS_XLA, ROOT, needs_torch, needs_xla, play, start, succeeds

pytestmark = [pytest.mark.torch, needs_torch]

CODE = ROOT / "jobs" / "custom"
EXAMPLE = {"entry": "my_training:main", "options": {"width": 32, "batch_size": 128}, "epochs": 2, "lr": 0.01}


def test_the_shipped_example_learns_the_same_on_every_backend_and_number_of_processes(tmp_path: Path) -> None:
    losses = {}
    for backend, cores in (("cpu", 1), ("cpu", 2), *([("xla", 2)] if HAS_XLA else [])):
        done = succeeds(tmp_path, {**EXAMPLE, "cores": cores, "num_workers": 0}, "--backend", backend, code=CODE)
        name = {"cpu": "cpu", "xla": "xla:cpu"}[backend]
        assert done.stdout.startswith(f"{name} ×{cores} · my_training:main · fp32\nepoch 1/2  loss 0."), done.stdout
        found = done.read("metrics.json")
        assert found["world"]["processes"] == cores and found["schema"] == 1
        losses[backend, cores] = found["train_loss"]
    assert len({round(loss, 4) for loss in losses.values()}) == 1, losses
    assert losses["cpu", 1] < 0.45, "always guessing the more frequent answer is 0.6"


LOADER = """
import os
import torch

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return index, os.getpid()

def main(backend, run):
    numbers, processes = zip(*run.data_loader(Numbers(), 4, shuffle=False))
    return {"numbers": torch.cat(numbers).tolist(), "here": os.getpid() in torch.cat(processes).tolist()}
"""


THREADS = """
import os
import torch
from payload.data.batches import workers_for

def main(backend, run):
    threads = torch.get_num_threads(), int(os.environ["OMP_NUM_THREADS"])
    return {"threads": threads, "loaders": workers_for(run.job, cores=len(os.sched_getaffinity(0)))}
"""


def twelve_cores() -> None:
    os.sched_getaffinity = lambda _: set(range(12))


def test_the_hosts_of_an_emulated_slice_share_the_cores_of_the_one_machine_that_they_are(
    tmp_path: Path, port: int
) -> None:
    (tmp_path / "mine.py").write_text(THREADS)
    where: dict[str, Any] = {"TPUJOB_WORKERS": "2", "TPUJOB_COORDINATOR": f"127.0.0.1:{port}"}
    config = {"entry": "mine:main", "cores": 2}
    hosts = [
        start(tmp_path / n, config, "--backend", "cpu", code=tmp_path, first=twelve_cores, TPUJOB_WORKER=n, **where)
        for n in "01"
    ]
    first, second = (host.end() for host in hosts)
    assert (first.code, second.code) == (0, 0), first.stdout + first.stderr + second.stdout + second.stderr
    found = first.read("metrics.json")
    assert found["world"]["processes"] == 4 and found["threads"] == [3, 3] and found["loaders"] == 2


@pytest.mark.parametrize("processes", [0, 2])
def test_examples_are_prepared_by_as_many_processes_as_are_asked_for(tmp_path: Path, processes: int) -> None:
    (tmp_path / "mine.py").write_text(LOADER)
    run = succeeds(tmp_path, {"entry": "mine:main", "num_workers": processes}, "--backend", "cpu", code=tmp_path)
    found = run.read("metrics.json")
    assert (found["numbers"], found["here"]) == (list(range(8)), processes == 0)


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


@pytest.mark.parametrize("backend", ["cpu", pytest.param("xla", marks=[needs_xla, pytest.mark.exhaustive])])
def test_dropout_is_the_same_after_a_resume(tmp_path: Path, backend: str) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text(DROPOUT)
    cores = {"cpu": 2, "xla": 1}[backend]
    config = {"entry": "mine:main", "cores": cores, "checkpoint_every": "3 steps"}
    whole = succeeds(tmp_path, config, "--backend", backend, code=code)
    expected = whole.read("metrics.json")["losses"]
    assert len(expected) == 12
    # The run above succeeded, so this one starts from the beginning; it is killed, and the third resumes.
    assert play(tmp_path, config, "--backend", backend, code=code, DIE="1").code == 9
    last = succeeds(tmp_path, config, "--backend", backend, code=code)
    assert last.read("metrics.json")["resumed_after_step"] == 6
    assert last.read("metrics.json")["losses"] == expected


def test_an_answer_that_is_no_dictionary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def main(backend, run):\n    return 3\n")
    done = play(tmp_path, {"entry": "mine:main"}, "--backend", "cpu", code=tmp_path)
    assert done.code == 2 and "mine:main returned int; it must return a dictionary or None" in done.stdout


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
