"""What `requirements:` and `python:` of a job ask for, and why the job would not use the TPU.

The files that the keys name are read and checked, as an Environment. That a job would not use the TPU is said before anything
is billed, by its requirements, and by the script that its command names. A script that asks for CUDA and falls back to the CPU
runs on a TPU VM, on its CPU. What names TPUs, or a library that chooses the device, is believed.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import JobSpecError
from orchestrator.job.source.requirement_lines import Reader, Refused, Requirements
from orchestrator.text.parsing import text_of
from orchestrator.text.scripts import Environment
from orchestrator.traits import traits_on

if TYPE_CHECKING:
    from orchestrator.job.job_spec import JobSpec


KEY = ("requirements",)
# Where conda builds packages: `pip freeze` names these places, which are on no machine any more.
_BUILT_BY_CONDA = ("/croot/", "/tmp/build/", "/home/conda/feedstock_root/", "/opt/conda/conda-bld/")  # noqa: S108
# Directories that a worker has as well, whatever is in them.
_EVERYWHERE = re.compile(r"/[^/]*/*|/(usr|etc|lib|dev)/.*|/var/tmp/*")


def read(spec: JobSpec, job_path: Path, *, code_sha256: str | None = None) -> Environment:
    """Return the environment that the job asks for; it is empty for a job without these keys.

    `code_sha256`: of what is shipped, for requirements that are installed from it. Raises JobSpecError for what cannot be read,
    or cannot be installed on a worker.
    """
    if spec.requirements is None:
        return Environment(python=spec.python)
    found, what = found_in(spec, job_path)
    return Environment(
        what=what,
        requirements="".join(f"{line}\n" for line in found.lines),
        constraints="".join(f"{line}\n" for line in found.constraints),
        needs_pip=found.needs_pip,
        python=spec.python,
        uses_code=found.uses_code,
        code_sha256=code_sha256 if found.uses_code else None,
    )


def found_in(spec: JobSpec, job_path: Path) -> tuple[Requirements, str]:
    """Return the lines of `requirements:`, which the job has, and what to call them. Raises JobSpecError as `read` does."""
    assert spec.requirements is not None
    directory = job_path.parent.absolute()
    code = (directory / spec.code).resolve() if spec.code is not None else None

    traits = traits_on(spec.on)

    def why_not(path: str) -> str:
        if traits.billed and path.startswith(_BUILT_BY_CONDA):
            return "where conda built it"
        # What a VM has is known, and what the image of a container has is not.
        is_here = traits.vms and not _EVERYWHERE.fullmatch(path) and os.path.exists(path)  # noqa: PTH110 - never raises
        return "which exists on this machine" if is_here else ""

    reader = Reader(lambda path: _text(Path(path)), lambda path: _in_code(Path(path), code), why_not)
    try:
        return _read(reader, spec.requirements, directory)
    except Refused as error:
        raise JobSpecError([spec.mistake(KEY, str(error))]) from None


def _read(reader: Reader, named: str | tuple[str, ...], directory: Path) -> tuple[Requirements, str]:
    if not isinstance(named, str):
        count = len(named)
        return reader.packages(named, directory), f"{count} requirement{'' if count == 1 else 's'}"
    path = directory / named
    return (reader.pyproject if path.suffix == ".toml" else reader.file)(path, named), path.name


def _text(path: Path) -> str:
    try:
        return text_of(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None


def _in_code(path: Path, code: Path | None) -> str:
    if not os.path.exists(path):  # noqa: PTH110 - which raises for no path, as Path.exists does
        raise ValueError(f"{path} does not exist")
    if code is None:
        raise ValueError(f"{path} is not on the workers; name a directory above it in `code:`")
    try:
        return path.resolve().relative_to(code).as_posix()
    except ValueError:
        raise ValueError(f"{path} is not on the workers, because it lies outside of `code:`, {code}") from None


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
        asked = read(spec, path).requirements
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
        what = f"{found[0]})" if found[0].endswith("(") else found[0]
        where = f"{name}:{text.count(chr(10), 0, found.start()) + 1} names CUDA ({what}) and no TPU"
        lines.append(f"{where}: a TPU has no CUDA; write `torch_xla.device()`, or with torch_tpu the device `tpu`")
    return lines
