"""What training on GPUs needs that can be tested without one: the driver's calls are stood in for, the CPU does the work.

The tests at the end exist only where there is a GPU. They have never run on one.
"""

from __future__ import annotations

import traceback
from collections import namedtuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from payload.config import Config
from payload.failures import BadConfig, PeerLost, WorldError
from payload.launch.placement import look
from tests.payload.command import Run, needs_torch, play
from tests.payload.test_resume import dies, losses
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
