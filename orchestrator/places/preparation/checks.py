"""What is wrong with a job before anything is made: directories, files, packages and Pythons that are not there."""

from __future__ import annotations

import difflib
import importlib.util
import posixpath
import re
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from orchestrator.core.jobfile.commands import Needed, needed_by
from orchestrator.core.text.names import shown
from orchestrator.core.text.terminal import printable
from orchestrator.errors import JobSpecError, UserError
from orchestrator.places import is_emulated, traits_on
from orchestrator.places.preparation import requirements
from orchestrator.places.preparation.phases import trains_with_torch
from orchestrator.places.preparation.sources import directory_of
from orchestrator.remote.shipping.ignore import is_environment

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

if TYPE_CHECKING:
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.core.jobfile.yaml_source import Path as Field
    from orchestrator.remote.shipping.tree import Survey


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


def check_files(spec: JobSpec, found: Survey | None) -> None:
    """Raise JobSpecError for files that the job's commands surely need and that no worker gets. `found`: what is shipped."""
    setup, word = spec.setup or (), spec.first_word
    may_be_made = bool(setup) or (word.startswith("/") and not traits_on(spec.on).vms)
    is_none = _SEVERAL_WORDS.fullmatch(word) or (not may_be_made and re.search(r"\s", word))
    mistakes, commands = [], [*setup, *([spec.command] if spec.command is not None else [])]
    if is_none and _why_not_there(Needed(word), spec, found):
        mistakes = [spec.mistake(("command",), f"`{shown(word)}` {NO_PROGRAM}")]
        commands.pop()
    for number, needed in needed_by(commands[: 1 if any(map(_MOVES_PIP.match, spec.env)) else None]):
        why = _why_not_there(needed, spec, found)
        field: Field = ("command",) if number == len(setup) else ("setup", number) if len(setup) > 1 else ("setup",)
        mistakes += [spec.mistake(field, f"`{shown(needed.path)}` {why}")] if why else []
    if mistakes:
        raise JobSpecError(mistakes)


def _why_not_there(needed: Needed, spec: JobSpec, found: Survey | None) -> str | None:
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
        where = "`requirements:`" if spec.file else "a requirements.txt"
        return f"is of a virtual environment, which is not shipped; write `{name}`, and name its packages in {where}"
    for one in found.left_out:
        if f"{path}/".startswith(f"{one.path.rstrip('/')}/"):
            advice = f"copy it to `{path}`" if one.is_link else f"a line `!{path}` in .tpujobignore ships it"
            return f"is not shipped: it is left out ({one.rule}); {advice}"
    meant = [each for each in entries if posixpath.basename(each) == posixpath.basename(path)]
    meant = meant or difflib.get_close_matches(path, list(entries)[:MAX_NAMES], n=1)
    place, advice = f"`code: {shown(spec.code)}`", "make it there, or in `setup:`"
    if not spec.file:
        place, advice = f"the directory that is shipped ({printable(found.roots[0])})", "make it there"
    advice = f"did you mean `{printable(meant[0])}`?" if meant else advice
    return f"is not in {place}, where the commands of the job start; {advice}"
