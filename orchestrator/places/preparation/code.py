"""What a job ships and needs of this machine, checked and told before anything is made.

What it ships is the payload with its configuration, `code:` and `data_dir:`, as sources of `hosts.shipping`; what is left out
is told. Directories, files, packages and Pythons that are not there are mistakes of the job.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
import posixpath
import re
import sys
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from orchestrator.errors import JobSpecError, UserError
from orchestrator.hosts.shipping import tree
from orchestrator.hosts.shipping.ignore import is_environment
from orchestrator.hosts.shipping.shipment import Shipment, make_shipment, paced
from orchestrator.hosts.shipping.tree import Source, Survey, check_content, count, left_out_text, size_of
from orchestrator.job.source.commands import Needed, needed_by
from orchestrator.places.preparation import requirements
from orchestrator.places.preparation.phases import trains_with_torch
from orchestrator.text import names
from orchestrator.text.names import for_display
from orchestrator.text.terminal import printable
from orchestrator.text.units import format_size
from orchestrator.traits import is_emulated, traits_on

if TYPE_CHECKING:
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.job.source.yaml_source import Path as Field
    from orchestrator.job.train_keys import TrainSection
    from orchestrator.places.desk import Desk


def survey(
    spec: JobSpec, job_path: Path, *, own_directories: Collection[Path] = (), emulated: bool = False
) -> Survey | None:
    """Return what the job ships: the payload with its configuration, `code:` and `data_dir:`; None when that is nothing.

    `own_directories` are tpujob's (runs, state) and not shipped. `emulated`: the job runs on the emulated cloud. Raises
    JobSpecError for a directory that is missing, and UserError for what is refused, such as a file that looks like a secret.
    """
    sources: dict[str, Source] = {}
    if spec.code is not None:
        sources["."] = Source(directory_of(spec, job_path, spec.code, ("code",)), gitignore=True)
    if spec.train is not None:
        fallback = "sample" if emulated else spec.train.fallback
        if traits_on(spec.on).made_with_job and fallback != "sample":
            fallback = None  # what goes with the create call is small: the sample is shipped where it was asked for
        sources |= _payload_files(spec.train, sample=fallback is not None)
        config = spec.train.model_dump(mode="json")
        if spec.train.data_dir is not None:
            # Data is seldom in git: a .gitignore says nothing about it.
            sources["data"] = Source(directory_of(spec, job_path, spec.train.data_dir, ("train", "data_dir")))
            config["data_dir"] = "data"
        sources["train.json"] = Source(json.dumps(config, indent=1, sort_keys=True).encode())
    return tree.survey(sources, own_directories=own_directories) if sources else None


def _payload_files(train: TrainSection, *, sample: bool) -> dict[str, Source]:
    """Return the payload's modules, and with `sample` its sample of MNIST (1.3 MB), where the training may fall back on it."""
    found = importlib.util.find_spec("payload")  # not imported: the client needs no torch
    if found is None or not found.submodule_search_locations:
        raise UserError("the payload package is not installed beside tpujob", hint="install tpujob again")
    root = Path(found.submodule_search_locations[0])
    files = list(root.rglob("*.py"))
    if (train.entry, train.dataset, train.data_dir) == (None, "mnist", None) and sample:
        files += [path for path in (root / "data" / "mnist_sample").iterdir() if path.is_file()]
    return {f"payload/{path.relative_to(root).as_posix()}": Source(path) for path in files}


def directory_of(spec: JobSpec, job_path: Path, relative: str, field: tuple[str, ...]) -> Path:
    """Return the directory that this key of the job names. Raises JobSpecError if it is none, with the line of the key."""
    path = job_path.parent / relative
    if not os.path.isdir(path):  # noqa: PTH112 - which raises for no path
        base = "the job file" if spec.file else f"{job_path.parent}"
        problem = spec.mistake(field, f"{path} is not a directory; paths are relative to {base}")
        hint = f"`tpujob plan {job_path}` checks a file without creating anything" if spec.file else None
        raise JobSpecError([problem], hint=hint)
    return path


NO_PROGRAM = (
    "is no program: a list is the words of one program, and this its first word; write text, which bash runs as a script, or "
    "one word an item, such as [python, train.py] (in `setup:`, each item is a command)"
)
# What no program is called, not even one that an image has or a setup makes, as `/opt/my tools/run` may be.
_SEVERAL_WORDS = re.compile(
    r"[^/]*\s[^/]*|((\S*/)?(python[\d.]*|(ba|da|z)?sh)|\w+=\S*|for|while|if|cd|export|source|exec|\.)\s.*", re.S
)
_MOVES_PIP = re.compile(r"PIP_|UV_|PYTHONUSERBASE")  # variables: with them, an install may make files anywhere
MAX_NAMES = 1000  # of files, among which one is looked for that is nearly the same


def check_local_training(backend: str = "xla", subject: str = "emulated workers train") -> None:
    """Raise UserError if this Python environment lacks what training on emulated workers, or `on: local`, imports."""
    if backend == "none":
        return
    wanted = ("torch", "numpy", *{"xla": ["torch_xla"], "tpu": ["torch_tpu"]}.get(backend, []))
    missing = [module for module in wanted if importlib.util.find_spec(module) is None]
    if missing:
        raise UserError(
            f"{subject} with the torch of this Python environment, which has no {' and no '.join(missing)}",
            hint="pip install -e '.[local]' in the checkout; docs/install.md has the other ways",
        )


def check_bucket(spec: JobSpec, cloud: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a job with a bucket or `data:` needs. Raises JobSpecError: the emulated cloud has none."""
    field: Field = ("bucket",) if spec.bucket is not None else ("data", *list(spec.data)[:1])
    if (spec.bucket is None and not spec.data) or not is_emulated(cloud):
        return {}
    host = environ.get("STORAGE_EMULATOR_HOST")
    if not host:
        own = 'eval "$(tpujob emulator env)"; export STORAGE_EMULATOR_HOST=$TPUJOB_EMULATOR_URL'
        text = f"no Cloud Storage belongs to this shell; `{own}` takes that of the emulator"
        raise JobSpecError([spec.mistake(field, text)])
    return {"STORAGE_EMULATOR_HOST": host}


def check_python(spec: JobSpec, cloud: str) -> None:
    """Raise JobSpecError for a training that is to run on another Python than the one whose torch the emulator lends."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if is_emulated(cloud) and trains_with_torch(spec) and spec.python not in (None, own):
        text = f"emulated workers train with the torch of tpujob's own Python, {own}; leave this out here"
        raise JobSpecError([spec.mistake(("python",), text)])


def check_directories(spec: JobSpec, job_path: Path) -> None:
    """Raise JobSpecError for a directory that the job ships and that is missing, with the line that names it.

    The same for `requirements:`.
    """
    for field, value in ((("code",), spec.code), (("train", "data_dir"), spec.train.data_dir if spec.train else None)):
        if value is not None:
            directory_of(spec, job_path, value, field)
    requirements.read(spec, job_path)


def check_files(spec: JobSpec, found: Survey | None, where: str = "") -> None:
    """Raise JobSpecError for files that the commands need and no worker gets. `found` is shipped, `where` its name in words."""
    setup, word = spec.setup or (), spec.first_word
    may_be_made = bool(setup) or (word.startswith("/") and not traits_on(spec.on).vms)
    is_none = _SEVERAL_WORDS.fullmatch(word) or (not may_be_made and re.search(r"\s", word))
    mistakes, commands = [], [*setup, *([spec.command] if spec.command is not None else [])]
    if is_none and _why_not_there(Needed(word), spec, found, where):
        mistakes = [spec.mistake(("command",), f"`{for_display(word)}` {NO_PROGRAM}")]
        commands.pop()
    for number, needed in needed_by(commands[: 1 if any(map(_MOVES_PIP.match, spec.env)) else None]):
        why = _why_not_there(needed, spec, found, where)
        field: Field = ("command",) if number == len(setup) else ("setup", number) if len(setup) > 1 else ("setup",)
        mistakes += [spec.mistake(field, f"`{for_display(needed.path)}` {why}")] if why else []
    if mistakes:
        raise JobSpecError(mistakes)


def _why_not_there(needed: Needed, spec: JobSpec, found: Survey | None, where: str) -> str | None:
    path, entries = posixpath.normpath(needed.path), found.entries if found is not None else {}
    entry = entries.get(path)
    if needed.in_path and (not traits_on(spec.on).vms or spec.requirements is not None or "PATH" in spec.env):
        return None  # there it may be found, such as a script of an installed package
    if needed.in_path and needed.is_program:
        start = "bash" if path.endswith(".sh") else "python"
        return None if entry is None else f"is not in the PATH; write `{start} {path}`"
    if entry is not None:
        is_closed = needed.is_program and isinstance(entry.content, Path) and not entry.executable
        return f"is not executable; `chmod +x {path}` makes it so" if is_closed else None
    above = [entries[str(each)].content for each in PurePosixPath(path).parents if str(each) in entries]
    is_behind_link = any(isinstance(each, str) for each in above)  # then no more is known
    # By pip, of what is shipped.
    is_built = path.startswith("build/lib") and (spec.setup or spec.requirements is not None)
    if is_behind_link or is_built or path == "." or any(each.startswith(f"{path}/") for each in entries):
        return None
    if spec.code is None or found is None:
        return "is not on the workers: the job ships no code; write `code: .`, or the directory that has it"
    if any(is_environment(Path(found.roots[0], each)) for each in PurePosixPath(path).parents[:-1]):
        name = re.sub(r"^python[\d.]*$", "python3", posixpath.basename(path))
        file = "`requirements:`" if spec.file else "a requirements.txt"
        return f"is of a virtual environment, which is not shipped; write `{name}`, and name its packages in {file}"
    for one in found.left_out:
        if f"{path}/".startswith(f"{one.path.rstrip('/')}/"):
            advice = f"copy it to `{path}`" if one.is_link else f"a line `!{path}` in .tpujobignore ships it"
            return f"is not shipped: it is left out ({one.rule}); {advice}"
    meant = [each for each in entries if posixpath.basename(each) == posixpath.basename(path)]
    meant = meant or difflib.get_close_matches(path, list(entries)[:MAX_NAMES], n=1)
    place, advice = f"`code: {for_display(spec.code)}`", "make it there, or in `setup:`"
    if not spec.file:
        place, advice = where or f"the directory that is shipped ({printable(found.roots[0])})", "make it there"
    advice = f"did you mean `{printable(meant[0])}`?" if meant else advice
    return f"is not in {place}, where the commands of the job start; {advice}"


NAMED, NAMED_IN_JSON = 4, 50  # of what is left out, the biggest


def survey_of(desk: Desk, spec: JobSpec, path: Path) -> Survey | None:
    """Return what a run of the job ships, and what is left out; None when there is nothing to ship.

    Raises UserError for what is refused. Files whose content may be a secret are looked at, and no others.
    """
    emulated = traits_on(spec.on).by_target and is_emulated(desk.target.kind)
    runs = desk.runs_directory  # in which others, such as TensorBoard, may write, too; what has no mark is older
    own = (desk.directory, *runs.glob("compare-*.html"), *(page.parent for page in runs.glob(f"*/{names.PAGE}")))
    found = survey(spec, path, own_directories=own, emulated=emulated)
    check_files(spec, found, f"the code of {spec.name} as it was kept" if path.is_relative_to(desk.directory) else "")
    if found is not None:
        check_content(found)
    return found


def told_shipment(desk: Desk, spec: JobSpec, path: Path, stack: ExitStack) -> Shipment | None:
    """Return what the job ships, once the biggest of what is left out is reported; None for nothing. Raises UserError."""
    found = survey_of(desk, spec, path)
    if found is not None and (text := left_out_text(found.left_out)):
        desk.reporter.notice("ship", text)
    return shipment_of(desk, found, stack)


def shipment_of(desk: Desk, found: Survey | None, stack: ExitStack) -> Shipment | None:
    """Return what was found to be shipped, with its contents as they are now; `stack` lets go of it. Raises UserError."""
    if found is None:
        return None
    progress = paced(lambda text: desk.reporter.progress("ship", f"reading the code: {text}"))
    shipment = make_shipment(found, desk.directory / "store", progress)
    stack.callback(shipment.release)
    return shipment


def ship_line(found: Survey) -> str:
    """Return what is shipped and left out as a sentence."""
    line = f"ships {count(found.files)}, {format_size(found.size_bytes)}"
    if not found.left_out:
        return line
    named = [
        f"{printable(one.path)}{'' if one.is_link else f' {size_of(one)}'} ({one.rule})"
        for one in found.left_out[:NAMED]
    ]
    more = f", and {len(found.left_out) - NAMED} more" if len(found.left_out) > NAMED else ""
    return f"{line}; left out: {', '.join(named)}{more}"


def ship_shape(found: Survey | None) -> dict[str, Any] | None:
    """Return the same as JSON values; None when there is nothing to ship."""
    if found is None:
        return None
    return {
        "files": found.files,
        "size_bytes": found.size_bytes,
        "left_out": [asdict(one) for one in found.left_out[:NAMED_IN_JSON]],
        "left_out_count": len(found.left_out),
        "left_out_bytes": sum(one.size_bytes for one in found.left_out),
    }
