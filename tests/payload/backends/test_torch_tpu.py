"""The wiring of TorchTPU against a stand-in that makes the same demands: the real one needs a TPU.

So these tests show that what its package demands is done, as far as that can be read in it. They show nothing of a TPU.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.payload.command import ROOT, Command, Run, needs_torch, play, start
from tests.payload.test_resume import power_cut

pytestmark = [pytest.mark.torch, needs_torch]

SMALL = {"epochs": 1, "batch_size": 32, "lr": 0.02}


def plugged_in(tpu: str, chips: int, then: Callable[[], object] | None) -> None:
    """That host has these chips."""
    from payload.launch import placement

    placement.look = lambda *_: placement.HostPlace(tpu_chips=chips, tpu=tpu)  # type: ignore[assignment]
    if then is not None:
        then()


def on_a_host_with(
    directory: Path,
    tpu: str,
    chips: int,
    config: dict[str, Any],
    data: Path,
    coords: str = "0,0,0",
    then: Callable[[], object] | None = None,
    **environ: str,
) -> Command:
    """The stand-in is installed there; its calls are in `notes`. `then` befalls the processes."""
    package = directory / "fake" / "torch_tpu"
    package.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("torch_tpu_stand_in.py"), package / "__init__.py")
    stand_in = {
        "PYTHONPATH": f"{directory / 'fake'}{os.pathsep}{ROOT}",
        "NOTES": str(directory / "notes"),
        **{"STAND_IN_TPU": tpu, "STAND_IN_CHIPS": str(chips), "STAND_IN_COORDS": coords},
    }
    first = partial(plugged_in, tpu, chips, then)
    return start(directory, {**SMALL, **config}, "--backend", "tpu", data=data, first=first, **stand_in, **environ)


def on_python_3_10() -> None:
    sys.version_info, platform.python_version = (3, 10, 12), lambda: "3.10.12"  # type: ignore[assignment]


def warm_up(run: Run) -> list[int]:
    lines = [json.loads(line) for line in (run.artifacts / "timing.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if line.get("compile")]


@pytest.mark.ci
def test_the_same_loop_trains_through_torch_tpus_names(tmp_path: Path, data: Path) -> None:
    run = on_a_host_with(tmp_path / "tpu", "v4", 2, {}, data).end()
    assert run.code == 0, run.stdout + run.stderr
    assert run.stdout.startswith("tpu ×2 · mnist 256 images")
    assert " · fp32, matrix products in bf16 · " in run.stdout.splitlines()[0]
    plain = play(tmp_path / "cpu", {**SMALL, "cores": 2}, "--backend", "cpu", data=data)
    assert run.read("metrics.json")["train_loss"] == plain.read("metrics.json")["train_loss"]
    assert (warm_up(run), warm_up(plain)) == ([1], []), "the first step, in which kernels are selected, is marked"
    printed = (tmp_path / "tpu" / "notes").read_text().splitlines()
    assert printed[0] == "set_tpu_launch_env (2,)" and sum("set_tpu_launch_env" in line for line in printed) == 1
    assert {"tpu_dist (0, 2)", "tpu_dist (1, 2)"} <= set(printed)
    assert sum(line.startswith("manual_seed") for line in printed) == 2 * 8, "one for each step of each process"
    assert any(line.startswith("synchronize") for line in printed)


@pytest.mark.ci
def test_a_training_resumes_from_the_checkpoint_that_one_process_reads_for_all(tmp_path: Path, data: Path) -> None:
    config = {"model": "mlp", "checkpoint_every": "4 steps", "eval": False}
    killed = on_a_host_with(tmp_path, "v4", 2, config, data, then=partial(power_cut, 5)).end()
    assert killed.code == 1 and "was killed by SIGKILL" in killed.stderr, killed.stdout + killed.stderr
    again = on_a_host_with(tmp_path, "v4", 2, config, data, STAND_IN_PRECISION="highest").end()
    assert again.code == 0 and "resuming after step 4 of 8" in again.stdout, again.stdout + again.stderr
    assert again.read("metrics.json")["precision"] == "fp32", "in full precision when requested"


SLICE = {"TPUJOB_WORKERS": "3", "TPUJOB_HOSTS": "127.0.0.1,host1,host2", "TPUJOB_TOPOLOGY": "1x3"}


def test_hosts_meet_at_the_first_and_are_numbered_by_the_places_of_their_chips(
    tmp_path: Path, data: Path, port: int
) -> None:
    meeting = {**SLICE, "TPUJOB_COORDINATOR": f"127.0.0.1:{port}"}
    places = ("0,0,0", "0,2,0", "0,1,0")  # the last two are wired the other way round
    hosts = [
        on_a_host_with(
            tmp_path / f"host{n}", "v4", 1, {"batch_size": 48}, data, coords, TPUJOB_WORKER=str(n), **meeting
        )
        for n, coords in enumerate(places)
    ]
    runs = [host.end() for host in hosts]
    assert [run.code for run in runs] == [0, 0, 0], "".join(run.stdout + run.stderr for run in runs)
    printed = [(tmp_path / f"host{n}" / "notes").read_text() for n in range(3)]
    assert ["tpu_dist (0, 3)" in printed[0], "tpu_dist (2, 3)" in printed[1], "tpu_dist (1, 3)" in printed[2]] == [
        True
    ] * 3


@pytest.mark.parametrize(("worker", "given", "words"), [
    ("0", {}, "torch_tpu counts worker 0 as node 1, but all processes meet on worker 0"),
    ("1", {"NODE_RANK": ""}, "torch_tpu gave worker 1 no NODE_RANK"),
])  # fmt: skip
def test_a_worker_that_gets_no_node_or_not_that_of_the_meeting_point_is_one_line(
    tmp_path: Path, data: Path, port: int, worker: str, given: dict[str, str], words: str
) -> None:
    meeting = {**SLICE, **given, "TPUJOB_WORKER": worker, "TPUJOB_COORDINATOR": f"127.0.0.1:{port}"}
    run = on_a_host_with(tmp_path, "v4", 1, {"batch_size": 48}, data, "0,1,0", **meeting).end()
    assert run.code == 6 and run.stderr.count("\n") == 1
    assert words in run.stderr


def test_below_python_3_11_it_is_one_line_before_anything_is_fetched(tmp_path: Path) -> None:
    run = play(tmp_path, SMALL, "--backend", "tpu", first=on_python_3_10)
    assert run.code == 2 and run.stdout == ""
    assert run.stderr == (
        "error: backend: tpu needs Python 3.11 or newer, and this is 3.10.12: there is no torch_tpu for it; "
        "backend xla trains on the same TPU\n"
    )


@pytest.mark.parametrize(("tpu", "chips", "cores", "words"), [
    ("v5e", 4, 2, "cores: 2 is 2 processes, but on a v5e host backend tpu starts 1, 4 or 8; backend xla takes all"),
    ("v7", 4, 1, "cores: 1 is 1 process, but on a v7 host backend tpu starts 2, 4 or 8"),
    ("v2 or v3", 4, "all", "torch_tpu does not support this TPU (v2 or v3); backend xla does"),
])  # fmt: skip
def test_only_numbers_of_processes_that_torch_tpu_can_start_are_tried(
    tmp_path: Path, data: Path, tpu: str, chips: int, cores: str | int, words: str
) -> None:
    run = on_a_host_with(tmp_path / "tpu", tpu, chips, {"cores": cores}, data).end()
    assert run.code == 2 and words in run.stderr and run.stderr.count("\n") == 1
    assert not (tmp_path / "tpu" / "notes").exists(), "before any call of torch_tpu"


def test_without_the_package_it_is_one_line_with_the_remedy(tmp_path: Path, data: Path) -> None:
    run = play(tmp_path, SMALL, "--backend", "tpu", data=data)
    assert run.code == 2 and run.stderr.count("\n") == 1
    assert run.stderr.startswith(
        "error: torch_tpu is not installed: pip install 'torch_tpu==0.2.0', in an environment of"
    )


def test_a_package_that_finds_no_tpu_is_one_line(tmp_path: Path, data: Path) -> None:
    package = tmp_path / "fake" / "torch_tpu"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('libtpu.so: cannot open shared object file')")
    path = f"{tmp_path / 'fake'}{os.pathsep}{ROOT}"
    first = partial(plugged_in, "v4", 2, None)
    run = play(tmp_path, SMALL, "--backend", "tpu", data=data, first=first, PYTHONPATH=path)
    assert run.code == 2 and "Traceback" not in run.stderr
    assert "torch_tpu cannot be imported (libtpu.so: cannot open shared object file)" in run.stderr
    assert json.loads((tmp_path / "train.json").read_text())["epochs"] == SMALL["epochs"]


@pytest.mark.exhaustive
def test_the_launch_program_prints_the_variables_that_it_sets(tmp_path: Path) -> None:
    package = tmp_path / "torch_tpu"
    package.mkdir()
    shutil.copy(Path(__file__).with_name("torch_tpu_stand_in.py"), package / "__init__.py")
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    chips = {"STAND_IN_TPU": "v4", "STAND_IN_CHIPS": "4", "NOTES": str(tmp_path / "notes")}
    argv = [sys.executable, "-m", "payload.launch.tpu_launch", "2"]
    printed = subprocess.run(argv, env={"PYTHONPATH": path, **chips}, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == {
        "TORCH_TPU_SLICEBUILDER_ADDRESSES": "localhost:0,localhost:1",
        "TORCH_TPU_TOPOLOGY": "1,2,1",
    }
