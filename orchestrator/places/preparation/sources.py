"""What a job ships: the payload with its configuration, `code:` and `data_dir:`, as sources of `remote.shipping`."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import JobSpecError, UserError
from orchestrator.places import traits_on

if TYPE_CHECKING:
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.core.jobfile.train_keys import TrainSection
    from orchestrator.remote.shipping.tree import Source, Survey


def survey(
    spec: JobSpec, job_path: Path, *, own_directories: Collection[Path] = (), emulated: bool = False
) -> Survey | None:
    """Return what the job ships: the payload with its configuration, `code:` and `data_dir:`; None when that is nothing.

    `own_directories` are tpujob's (runs, state) and not shipped. `emulated`: the job runs on the emulated cloud. Raises
    JobSpecError for a directory that is missing, and UserError for what is refused, such as a file that looks like a secret.
    """
    from orchestrator.remote.shipping import tree

    sources: dict[str, Source] = {}
    if spec.code is not None:
        sources["."] = tree.Source(directory_of(spec, job_path, spec.code, ("code",)), gitignore=True)
    if spec.train is not None:
        fallback = "sample" if emulated else spec.train.fallback
        if traits_on(spec.on).made_with_job and fallback != "sample":
            fallback = (
                None  # what goes with the create call is small: the sample is only shipped where it was asked for
            )
        sources |= _payload_files(spec.train, sample=fallback is not None)
        config = spec.train.model_dump(mode="json")
        if spec.train.data_dir is not None:
            # Data is seldom in git: a .gitignore says nothing about it.
            sources["data"] = tree.Source(directory_of(spec, job_path, spec.train.data_dir, ("train", "data_dir")))
            config["data_dir"] = "data"
        sources["train.json"] = tree.Source(json.dumps(config, indent=1, sort_keys=True).encode())
    return tree.survey(sources, own_directories=own_directories) if sources else None


def _payload_files(train: TrainSection, *, sample: bool) -> dict[str, Source]:
    """Return the payload's modules, and with `sample` its sample of MNIST (1.3 MB), where the training may fall back on it."""
    from orchestrator.remote.shipping.tree import Source

    root = _payload_directory()
    files = list(root.rglob("*.py"))
    if (train.entry, train.dataset, train.data_dir) == (None, "mnist", None) and sample:
        files += [path for path in (root / "data" / "mnist_sample").iterdir() if path.is_file()]
    return {f"payload/{path.relative_to(root).as_posix()}": Source(path) for path in files}


def _payload_directory() -> Path:
    found = importlib.util.find_spec("payload")  # not imported: the client needs no torch
    if found is None or not found.submodule_search_locations:
        raise UserError("the payload package is not installed beside tpujob", hint="install tpujob again")
    return Path(found.submodule_search_locations[0])


def directory_of(spec: JobSpec, job_path: Path, relative: str, field: tuple[str, ...]) -> Path:
    """Return the directory that this key of the job names. Raises JobSpecError if it is none, with the line of the key."""
    path = job_path.parent / relative
    if not os.path.isdir(path):  # noqa: PTH112 - which raises for no path
        base = "the job file" if spec.file else f"{job_path.parent}"
        problem = spec.mistake(field, f"{path} is not a directory; paths are relative to {base}")
        hint = f"`tpujob plan {job_path}` checks a file without creating anything" if spec.file else None
        raise JobSpecError([problem], hint=hint)
    return path
