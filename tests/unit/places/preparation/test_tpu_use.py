"""What is said before anything is billed of a job that would not use the TPU, and of which jobs nothing is said."""

from pathlib import Path

import pytest

from orchestrator.core.jobfile import keys
from orchestrator.places.preparation.tpu_use import warnings

CUDA = 'import torch\ndevice = "cuda" if torch.cuda.is_available() else "cpu"\n'
RUN = "command: python train.py --lr 1\n"


@pytest.mark.parametrize(
    ("job", "script", "said"),
    [
        (RUN + "requirements: [jax>=0.4, numpy]\n", "", ["jax without `jax[tpu]`"]),
        (RUN + "requirements: [Flax]\n", "", ["flax without `jax[tpu]`"]),
        (RUN + "requirements: ['jax[cuda12]', torch]\n", "", ["jax without `jax[tpu]`"]),
        (RUN + "requirements: ['jax[k8s,tpu]==0.6', torch, flax]\n", "", []),
        (RUN + "requirements: [jax]\nsetup: pip install libtpu\n", "", []),
        (RUN + "requirements: [torch==2.9.0, numpy]\n", "", ["torch without torch_xla or torch_tpu"]),
        (RUN + "requirements: [torch==2.4.1]\n", "", ["add `torch_xla[tpu]==2.4.1`, or"]),
        (RUN + "requirements: [torch, 'torch-xla[tpu]==2.9.0']\n", "", []),
        (RUN + "requirements: [torch, torch_tpu]\n", CUDA, ["train.py:2 names CUDA ("]),
        (RUN + "on: local\nrequirements: [jax, torch]\n", CUDA, []),
        (RUN, CUDA, ["train.py:2 names CUDA ("]),
        ("command: torchrun --nproc_per_node 4 train.py\n", "model.cuda()\n", ["train.py:1 names CUDA (.cuda()"]),
        ("command: python other.py && python train.py\n", "x.to('cuda:0')\n", ["train.py:1 names CUDA ('cuda:0')"]),
        (RUN, CUDA + "output = model(x)\n", ["train.py:2 names CUDA ("]),
        *((RUN, f"{CUDA}{names_it}\n", []) for names_it in ("if on_tpu: go()", "import torch_xla", "x = 'TPU'")),
        (RUN, "from accelerate import Accelerator\n" + CUDA, []),
        ("command: python /opt/train.py\n", CUDA, []),
        ("train: {}\n", CUDA, []),
    ],
)
def test_a_job_that_would_not_use_the_tpu_is_named_before_the_create(
    tmp_path: Path, job: str, script: str, said: list[str]
) -> None:
    (tmp_path / "train.py").write_text(script)
    found = warnings(
        keys.load(f"{job}code: .\n" if "train:" not in job else job, path="job.yaml"), tmp_path / "job.yaml"
    )
    assert len(found) == len(said) and all(part in line for part, line in zip(said, found, strict=True)), found
