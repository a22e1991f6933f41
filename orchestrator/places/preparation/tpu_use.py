"""Say before anything is billed why a job would not use the TPU: by its requirements, and by the script that its command names.

A script that asks for CUDA and falls back to the CPU runs on a TPU VM, on its CPU. What names TPUs, or a library that chooses
the device, is believed.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import JobSpecError
from orchestrator.places import traits_on
from orchestrator.places.preparation import requirements

if TYPE_CHECKING:
    from orchestrator.core.jobfile.keys import JobSpec

MOST_CHARS = 1 << 20  # of a script
_JAX = {"jax", "jaxlib", "flax", "optax", "equinox", "dm-haiku"}
_TORCH = {"torch", "torchvision", "torchaudio", "lightning", "pytorch-lightning", "accelerate", "timm"}
_FOR_TPU = re.compile(r"\bjax\[[^\]]*tpu|\blibtpu|\btorch[-_](xla|tpu)\b|\btensorflow[-_]tpu\b", re.I)
_SCRIPT = re.compile(r"(?<![\w./-])[\w./-]+\.py\b")
_CUDA = re.compile(r"\btorch\.cuda\b|\.cuda\(|[\"']cuda(:\d+)?[\"']")
_OTHERS = re.compile(r"(?<![a-z])(xla|tpu)|\b(jax|keras|tensorflow|accelerate|lightning)\b", re.I)


def warnings(spec: JobSpec, path: Path) -> list[str]:
    """Return a line for each reason. `path`: of the job file. A mistake in the requirements is told elsewhere."""
    if not traits_on(spec.on).tpus or spec.train is not None:
        return []
    asked = text = ""
    with suppress(JobSpecError):
        asked = requirements.read(spec, path).requirements
    lines, packages = [], {name.lower().replace("_", "-") for name in re.findall(r"^[\w.-]+", asked, re.M)}
    if _FOR_TPU.search("\n".join([asked, *(spec.setup or ()), spec.command or ""])):
        packages = set()
    if jax := sorted(packages & _JAX):
        lines.append(f"requirements: {jax[0]} without `jax[tpu]`: JAX trains on the CPU of the TPU VM; add `jax[tpu]`")
    elif torch := sorted(packages & _TORCH):
        what = f"requirements: {torch[0]} without torch_xla or torch_tpu: PyTorch trains on the CPU of the TPU VM"
        pinned = re.search(r"^torch==(\d+\.\d+\.\d+)", asked, re.M)
        pair = f"`torch_xla[tpu]=={pinned[1]}`" if pinned else "`torch==2.9.0` and `torch_xla[tpu]==2.9.0`"
        lines.append(f"{what}; add {pair}, or torch_tpu (Python 3.11, v4 or later)")
    named = (path.parent / (spec.code or "") / name for name in _SCRIPT.findall(spec.command or "") if spec.code)
    with suppress(OSError, StopIteration):
        script = next(filter(Path.is_file, named))
        with script.open(encoding="utf-8", errors="replace") as file:
            text = file.read(MOST_CHARS)
    if (found := _CUDA.search(text)) and not _OTHERS.search(text):
        name = script.relative_to(path.parent / (spec.code or ""))
        where = f"{name}:{text.count(chr(10), 0, found.start()) + 1} names CUDA ({found[0]}) and no TPU"
        lines.append(f"{where}: a TPU has no CUDA; write `torch_xla.device()`, or with torch_tpu the device `tpu`")
    return lines
