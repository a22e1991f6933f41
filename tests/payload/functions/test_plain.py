"""`backend: none`: an entry in a plain process, with nothing installed but Python."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.waiting import HANG_S

PLAIN = """
import sys
def main(backend, run):
    run.say(f"rank {run.rank} of {run.world}")
    (run.artifacts / "mine.txt").write_text(run.options["word"])
    return {"loss": 0.5, "modules": sorted({"torch", "numpy"} & set(sys.modules)), "backend": backend}
"""


def start(
    directory: Path, config: dict[str, Any], python: str = sys.executable, **environ: str
) -> subprocess.Popen[str]:
    (directory / "train.json").write_text(json.dumps(config))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TPUJOB_", "PJRT_", "PYTHON"))}
    places = {"PYTHONPATH": f"{ROOT}:{directory}", "TPUJOB_ARTIFACTS": str(directory / "artifacts")}
    return subprocess.Popen(
        [python, "-S", "-m", "payload", "--config", "train.json"],  # -S: without any packages
        cwd=directory,
        env={**clean, **places, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def play(directory: Path, config: dict[str, Any], **more: Any) -> tuple[int, str, str]:
    process = start(directory, config, **more)
    out, err = process.communicate(timeout=HANG_S)
    return process.returncode, out, err


def config(**more: Any) -> dict[str, Any]:
    return {"backend": "none", "entry": "mine:main", "options": {"word": "hello"}, **more}


def check(directory: Path, python: str = sys.executable) -> None:
    (directory / "mine.py").write_text(PLAIN)
    assert play(directory, config(), python=python) == (0, "rank 0 of 1\n", "")
    artifacts = directory / "artifacts"
    metrics = json.loads((artifacts / "metrics.json").read_text())
    assert metrics["seconds"].keys() == {"total_s"} and metrics["world"]["emulated"] is False
    assert (metrics["loss"], metrics["modules"], metrics["backend"]) == (0.5, [], None)
    listed = {each["path"] for each in json.loads((artifacts / "manifest.json").read_text())["files"]}
    assert listed == {"metrics.json", "mine.txt", "provenance.json"}


def test_an_entry_runs_without_torch_and_numpy(tmp_path: Path) -> None:
    check(tmp_path)


def test_so_it_does_on_python_3_10(tmp_path: Path, python310: str) -> None:
    check(tmp_path, python310)


def test_another_worker_leaves_no_metrics_and_an_emulated_one_says_so(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLAIN)
    where = {"TPUJOB_WORKER": "1", "TPUJOB_WORKERS": "2", "TPUJOB_EMULATED_CORES": "2", "PJRT_DEVICE": "CPU"}
    code, out, _ = play(tmp_path, config(), **where)
    assert (code, out) == (0, "emulated: one process on this machine's CPU, without a TPU\n")
    assert (
        not (tmp_path / "artifacts" / "metrics.json").exists() and (tmp_path / "artifacts" / "manifest.json").exists()
    )


def test_an_exception_is_printed_from_the_entry_on_and_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def main(backend, run):\n    return {}['lost']\n")
    code, out, err = play(tmp_path, config())
    assert (code, out) == (1, "")
    assert err.startswith(f'Traceback (most recent call last):\n  File "{tmp_path}/mine.py", line 2, in main\n')
    assert not (tmp_path / "artifacts" / "manifest.json").exists()


ONE_NUMBER = """
class One:
    ndim = 0
    def item(self):
        return 0.25
def main(backend, run):
    return {"loss": One(), "pair": (1, 2)}
"""


def test_a_number_of_numpy_or_jax_that_the_entry_returns_is_a_plain_one(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ONE_NUMBER)
    assert play(tmp_path, config()) == (0, "", "")
    metrics = json.loads((tmp_path / "artifacts" / "metrics.json").read_text())
    assert (metrics["loss"], metrics["pair"]) == (0.25, [1, 2])


def test_what_metrics_json_cannot_hold_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def main(b, run):\n    return {'loss': {1, 2}}\n")
    code, _, err = play(tmp_path, config())
    assert code == 2 and err == (
        "error: entry: mine:main: the dictionary['loss'] is a builtins.set, which JSON cannot carry; "
        "write it to a file in $TPUJOB_ARTIFACTS\n"
    )


def test_a_signal_ends_it_as_it_ends_any_program(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import time\ndef main(b, run):\n    run.say('begun')\n    time.sleep(600)\n")
    process = start(tmp_path, config())
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=HANG_S)
    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize(("given", "words"), [
    (config(entry=None), 'backend: "none" is for an entry: the built-in training needs PyTorch'),
    (config(entry="mine:other"), "entry: mine:other: mine has no function other"),
    (config(entry="lost:main"), "entry: lost:main: there is no module lost here"),
])  # fmt: skip
def test_what_cannot_run_is_one_line(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    (tmp_path / "mine.py").write_text("def main(b, run): return 3\n")
    code, out, err = play(tmp_path, given)
    assert code == 2 and words in err and err.count("\n") == 1, out + err
