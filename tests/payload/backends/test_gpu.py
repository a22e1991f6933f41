"""The backends for GPUs and TorchTPU, tested without either: stand-ins make the same demands, the CPU does the work."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import traceback
from collections import namedtuple
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from payload.config import Config
from payload.failures import BadConfig, PeerLost, WorldError
from payload.launch.placement import look
from tests.payload.command import ROOT, Command, Run, needs_torch, play, start
from tests.payload.test_run import dies, losses, power_cut
from tests.payload.test_train import job_in

if TYPE_CHECKING:
    from payload.backends.native import Cuda


pytestmark = [pytest.mark.torch, needs_torch]

NO_ROOM = (
    "CUDA out of memory. Tried to allocate 76.00 GiB. GPU 0 has a total capacity of 79.19 GiB of which 3.10 GiB is free. "
    "Including non-PyTorch memory, this process has 76.08 GiB memory in use. Of the allocated memory 70.00 GiB is allocated "
    "by PyTorch, and 5.00 GiB is reserved by PyTorch but unallocated."
)
TWO_ON_ONE = """NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:94, invalid usage
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
Last error:
Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000"""


@pytest.fixture
def card(torch: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One GPU of a kind that has tf32, as far as opening it goes."""
    answers = {
        "device_count": 1, "set_device": None, "synchronize": None, "get_device_name": "NVIDIA H100 80GB HBM3",
        "get_device_capability": (9, 0), "max_memory_allocated": 123_456,
    }  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    with torch.backends.cudnn.flags(enabled=True):  # what is changed within is changed back
        yield torch.cuda


def opened(directory: Path, **config: Any) -> Cuda:
    from payload.backends.native import Cuda

    return Cuda(job_in(directory, Config(**config)))


def test_every_process_takes_the_same_kernels_so_that_a_resumed_training_goes_on_bit_for_bit(
    torch: Any, tmp_path: Path, card: Any
) -> None:
    """The fastest of several, tried anew in each process, is another one now and then, and rounds in another way."""
    opened(tmp_path)
    assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark


def test_the_artifacts_say_what_the_card_is_how_much_of_it_was_used_and_what_it_calls_fp32(
    tmp_path: Path, card: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = opened(tmp_path)
    assert (backend.name, backend.hardware, backend.peak_bytes()) == ("cuda", "NVIDIA H100 80GB HBM3", 123_456)
    assert backend.precision == "fp32, convolutions in tf32", "PyTorch's default"
    assert opened(tmp_path, precision="bf16").precision == "bf16 autocast"
    monkeypatch.setattr(card, "get_device_capability", lambda *_: (7, 5))
    assert opened(tmp_path).precision == "fp32"


def test_a_card_that_cannot_be_opened_is_one_line(tmp_path: Path, card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: Any) -> None:
        raise RuntimeError(
            "CUDA error: all CUDA-capable devices are busy or unavailable\nCUDA kernel errors might be …"
        )

    monkeypatch.setattr(card, "synchronize", busy)
    with pytest.raises(BadConfig) as caught:
        opened(tmp_path)
    assert str(caught.value) == (
        "backend cuda: GPU 0 cannot be used: CUDA error: all CUDA-capable devices are busy or unavailable"
    )


def test_seeding_each_step_keeps_no_stack_trace(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.manual_seed keeps one for each kind of device that was never started: most of what a small step costs."""
    from payload.backends.native import Cpu

    torch.manual_seed(7)
    expected, backend = torch.rand(3), Cpu(job_in(tmp_path))
    monkeypatch.setattr(traceback, "format_stack", lambda *_: pytest.fail("a stack trace"))
    backend.seed(7)
    assert torch.equal(torch.rand(3), expected)


def test_a_batch_keeps_its_form_on_its_way_to_the_device(torch: Any) -> None:
    from payload.backends import moved

    pair = namedtuple("pair", "x y")
    batch = [{"x": torch.ones(1), "name": ["a", "b"]}, pair(torch.ones(2), 3), (torch.ones(1),)]
    there = moved(batch, lambda tensor: tensor * 2)
    assert there[0] == {"x": torch.tensor([2.0]), "name": ["a", "b"]}
    assert (there[1].x.tolist(), there[1].y, there[2]) == ([2.0, 2.0], 3, (torch.tensor([2.0]),))


@pytest.mark.ci
def test_too_little_memory_is_one_line_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(
        f"import torch\ndef main(backend, run):\n    raise torch.OutOfMemoryError({NO_ROOM!r})"
    )
    run = play(tmp_path / "run", {"entry": "large:main"}, "--backend", "cpu", code=tmp_path)
    assert run.code == 2, run.stdout + run.stderr
    assert (
        "error: CUDA out of memory. Tried to allocate 76.00 GiB. GPU 0 has a total capacity of 79.19 GiB of which "
        "3.10 GiB is free. A smaller batch needs less\n" in run.stdout
    )
    assert "Traceback" not in run.stdout + run.stderr


def test_an_error_of_ones_own_device_is_not_blamed_on_another_process(torch: Any) -> None:
    from payload.backends.group import naming_peer_loss

    for own in (torch.OutOfMemoryError(NO_ROOM), torch.AcceleratorError("CUDA error: illegal memory access")):
        with pytest.raises(type(own)), naming_peer_loss():
            raise own
    with (
        pytest.raises(PeerLost, match="lost another process of this training: connection closed by peer"),
        naming_peer_loss(),
    ):
        raise RuntimeError("connection closed by peer\nException raised from …")


def test_two_processes_on_one_card_are_named_as_what_they_are(torch: Any) -> None:
    from payload.backends.group import naming_peer_loss

    for sure in (True, False):
        with pytest.raises(WorldError) as caught, naming_peer_loss(sure=sure):
            raise torch.distributed.DistBackendError(TWO_ON_ONE)
        assert str(caught.value) == (
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000: each process needs a GPU of its own"
        )
    with pytest.raises(PeerLost, match=r"training: socketStartConnect: connection refused$"), naming_peer_loss():
        raise torch.distributed.DistBackendError(
            "NCCL error in: x.cpp:1\nLast error:\nsocketStartConnect: connection refused"
        )


# -- where there is a GPU ----------------------------------------------------------------------------------------------

SMALL = {"epochs": 2, "batch_size": 32, "lr": 0.02, "cores": 1}
GPUS = look().gpus


def on_the_gpu(directory: Path, data: Path, **config: Any) -> Run:
    return play(directory, {**SMALL, **config}, "--backend", "cuda", data=data)


if GPUS:

    @pytest.mark.parametrize("model", ["mnist_cnn", "alexnet", "mlp"])
    @pytest.mark.parametrize(("precision", "near"), [("fp32", 0.01), ("bf16", 0.05), ("fp16", 0.05)])
    def test_a_gpu_learns_what_the_cpu_learns(
        tmp_path: Path, data: Path, model: str, precision: str, near: float
    ) -> None:
        run = on_the_gpu(tmp_path / "gpu", data, model=model, precision=precision)
        assert run.code == 0, run.stdout + run.stderr
        metrics, provenance = run.read("metrics.json"), run.read("provenance.json")
        assert run.stdout.startswith("cuda ×1 · ") and metrics["world"]["device"] == "cuda"
        assert (
            provenance["hardware"] and metrics["peak_device_bytes"] > 0 and metrics["precision"].startswith(precision)
        )
        if model != "alexnet":  # its dropout draws other numbers there
            plain = play(tmp_path / "cpu", {**SMALL, "model": model}, "--backend", "cpu", data=data)
            assert metrics["train_loss"] == pytest.approx(plain.read("metrics.json")["train_loss"], rel=near)

    @pytest.mark.parametrize("model", ["mnist_cnn", "alexnet", "mlp"])
    @pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
    def test_killed_on_a_gpu_it_goes_on_bit_for_bit(tmp_path: Path, data: Path, model: str, precision: str) -> None:
        config = {"model": model, "precision": precision, "checkpoint_every": "4 steps", "eval": False}
        whole = on_the_gpu(tmp_path / "whole", data, **config)
        dies(tmp_path / "killed", {**SMALL, **config}, "cuda", data, 13)
        last = on_the_gpu(tmp_path / "killed", data, **config)
        assert (whole.code, last.code) == (0, 0) and "resuming after step 12 of 16" in last.stdout, last.stdout
        assert losses(last) == losses(whole)

    def test_more_memory_than_there_is_is_one_line(tmp_path: Path) -> None:
        (tmp_path / "huge.py").write_text(
            "import torch\ndef main(backend, run):\n    torch.empty(1 << 44, dtype=torch.uint8, device=backend.device)"
        )
        config = {"entry": "huge:main", "cores": 1}
        run = play(tmp_path / "run", config, "--backend", "cuda", code=tmp_path)
        assert run.code == 2 and "error: CUDA out of memory. " in run.stdout and "Traceback" not in run.stdout


ONE_EPOCH = {"epochs": 1, "batch_size": 32, "lr": 0.02}


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
    **environ: Any,
) -> Command:
    """The stand-in is installed there; its calls are in `notes`. `then` befalls the processes."""
    package = directory / "fake" / "torch_tpu"
    package.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("torch_tpu_stand_in.py"), package / "__init__.py")
    stand_in: dict[str, Any] = {
        "PYTHONPATH": f"{directory / 'fake'}{os.pathsep}{ROOT}",
        "NOTES": str(directory / "notes"),
        **{"STAND_IN_TPU": tpu, "STAND_IN_CHIPS": str(chips), "STAND_IN_COORDS": coords},
    }
    first = partial(plugged_in, tpu, chips, then)
    return start(directory, {**ONE_EPOCH, **config}, "--backend", "tpu", data=data, first=first, **stand_in, **environ)


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
    plain = play(tmp_path / "cpu", {**ONE_EPOCH, "cores": 2}, "--backend", "cpu", data=data)
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
    meeting: dict[str, Any] = {**SLICE, "TPUJOB_COORDINATOR": f"127.0.0.1:{port}"}
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
    meeting: dict[str, Any] = {**SLICE, **given, "TPUJOB_WORKER": worker, "TPUJOB_COORDINATOR": f"127.0.0.1:{port}"}
    run = on_a_host_with(tmp_path, "v4", 1, {"batch_size": 48}, data, "0,1,0", **meeting).end()
    assert run.code == 6 and run.stderr.count("\n") == 1
    assert words in run.stderr


def test_below_python_3_11_it_is_one_line_before_anything_is_fetched(tmp_path: Path) -> None:
    run = play(tmp_path, ONE_EPOCH, "--backend", "tpu", first=on_python_3_10)
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
    run = play(tmp_path, ONE_EPOCH, "--backend", "tpu", data=data)
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
    run = play(tmp_path, ONE_EPOCH, "--backend", "tpu", data=data, first=first, PYTHONPATH=path)
    assert run.code == 2 and "Traceback" not in run.stderr
    assert "torch_tpu cannot be imported (libtpu.so: cannot open shared object file)" in run.stderr
    assert json.loads((tmp_path / "train.json").read_text())["epochs"] == ONE_EPOCH["epochs"]


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
