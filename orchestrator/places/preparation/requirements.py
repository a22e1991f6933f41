"""What `requirements:` and `python:` of a job ask for: the files that they name, read and checked, as an Environment."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.jobfile.requirement_lines import Reader, Refused, Requirements
from orchestrator.core.text.environments import Environment
from orchestrator.core.text.text_file import text_of
from orchestrator.errors import JobSpecError
from orchestrator.places import traits_on

if TYPE_CHECKING:
    from orchestrator.core.jobfile.keys import JobSpec

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
        found, what = _read(reader, spec.requirements, directory)
    except Refused as error:
        raise JobSpecError([spec.mistake(KEY, str(error))]) from None
    return Environment(
        what=what,
        requirements="".join(f"{line}\n" for line in found.lines),
        constraints="".join(f"{line}\n" for line in found.constraints),
        needs_pip=found.needs_pip,
        python=spec.python,
        code_sha256=code_sha256 if found.uses_code else None,
    )


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
