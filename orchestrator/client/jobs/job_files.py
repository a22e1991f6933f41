"""The job of a command: that of a file or of a command line, changed for this run, with the variables that it names."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from orchestrator.core.text import names
from orchestrator.core.text.terminal import printable
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.client.events import Reporter
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.core.jobfile.overrides import Override
    from orchestrator.core.jobfile.sweep import Sweep

PROGRAMS = {".py": "python ", ".sh": "bash ", ".ipynb": "jupyter execute "}  # what may be named in place of a job file
# A word of a text for bash, as far as a name needs it.
_WORD = re.compile(r"""[;&|\n()<>]+|"[^"]*"|'[^']*'|[^\s;&|()<>]+""")


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Which job, and what is different in this run. Every value is as it was typed; None changes nothing."""

    file: Path | None = None
    command: Sequence[str] | None = None  # in place of the file's; without a file it is the job
    accelerator: str | None = None
    zone: str | None = None
    spot: bool | None = None  # False: on-demand
    name: str | None = None
    max_duration: str | None = None
    keep_on_failure: str | None = None
    env: Sequence[str] | None = None  # NAME=VALUE, or NAME
    settings: Sequence[str] | None = None  # KEY=VALUE
    more: tuple[Override, ...] = ()  # what a command changes beside its options

    def overrides(self) -> Iterator[Override]:
        """Yield what changes the job: settings first, so that an option of its own counts more. Raises UserError."""
        from orchestrator.core.jobfile.overrides import Override

        yield from map(Override.parse, self.settings or ())
        yield from map(Override.variable, self.env or ())
        for option, path, value in (
            ("--accelerator", ("tpu", "accelerator"), self.accelerator),
            ("--zone", ("tpu", "zone"), self.zone),
            ("--name", ("name",), self.name),
            ("--ttl", ("limits", "max_duration"), self.max_duration),
            ("--keep-on-failure", ("keep_on_failure",), self.keep_on_failure),
        ):
            if value is not None:
                yield Override.key(option, path, value)
        if self.spot is not None:
            provisioning = "spot" if self.spot else "on-demand"
            yield Override(f"--{provisioning}", ("tpu", "provisioning"), provisioning)
        if self.command and self.file is not None:
            yield Override.key("--", ("command",), _command(self.command))
        yield from self.more


def read(request: JobRequest) -> tuple[JobSpec | Sweep, Path]:
    """Return the job or the sweep, checked, and the path to whose directory its paths are relative.

    Raises JobSpecError with the lines of all mistakes, UserError for a file or an option that cannot be read.
    """
    from orchestrator.client.jobs.new_job_file import needs_of
    from orchestrator.core.jobfile import sweep

    overrides = list(request.overrides())
    if request.file is not None:
        return sweep.load(read_file(request.file), path=str(request.file), overrides=overrides), request.file
    if not request.command:
        hint = "`tpujob run -- python train.py` runs a script of this directory; `tpujob init` writes a job file for it"
        raise UserError("there is nothing to run: name a job file, or a command after `--`", hint=hint)
    directory = working_directory()
    job = {"name": name_of(request.command), "command": _command(request.command), "code": "."}
    if (needs := needs_of(directory)) is not None:
        job["requirements"] = needs
    spec = sweep.from_values(job, overrides)
    return spec, directory / f"Job({spec.name})"


def parted(found: JobSpec | Sweep) -> tuple[JobSpec | None, Sweep | None]:
    """Return the job or the sweep, each in its place, for callers that do not import the job file's reader themselves."""
    from orchestrator.core.jobfile.keys import JobSpec

    return (found, None) if isinstance(found, JobSpec) else (None, found)


def _command(words: Sequence[str]) -> str | list[str]:
    """Return the `command:`: the words of one program, or (a single one) a text for bash, as with ssh."""
    return words[0] if len(words) == 1 else list(words)


def name_of(command: Sequence[str]) -> str:
    """Return a name for the job of a command: that of the last script or module that it runs, else of a program."""
    words, name, found = _words(command), "", ""
    for before, word in pairwise(["", *words]):
        found = "" if re.fullmatch(r"([;&\n]|\|\|)+", word) else found or _named_by(before, word)
        name = found or name
    program = (word for word in words if "/" in word and "=" not in word)
    return names.to_job_name(PurePath(name or next(program, words[0] if words else "")).name)


def _words(command: Sequence[str]) -> list[str]:
    """Return the words of a command, with those of the text in it that a shell runs (`bash -c TEXT`) and without code."""
    if len(command) == 1:
        command = tuple(each.strip("\"'") for each in _WORD.findall(command[0].replace("\\\n", " ")))
    for number, (word, after) in enumerate(pairwise(command)):
        if re.fullmatch("-[a-z]*c", word):
            is_shell = any(PurePath(each).name in ("bash", "sh", "zsh", "dash") for each in command[:number])
            return [*command[:number], *(_words((after,)) if is_shell else ())]
    return list(command)


def _named_by(before: str, word: str) -> str:
    """Return the script or the module that this word is, the latter after `-m`; "" for any other word."""
    if before == "-m":
        return "" if re.match(r"pip$|torch\.distributed\.|accelerate\.", word) else word
    return PurePath(word).stem if PurePath(word).suffix in PROGRAMS else ""


def working_directory() -> Path:
    """Return the working directory, which is shipped as the code. Raises UserError for one that can hardly be meant."""
    try:
        directory = Path.cwd()
    except OSError as error:
        raise UserError("the working directory does not exist any more", hint="change into another one") from error
    if directory in (Path.home(), Path(directory.anchor)):
        hint = "change into the directory of the script, or write a job file with `code:` (`tpujob init`)"
        raise UserError(f"the working directory would be shipped as the code, and it is {directory}", hint=hint)
    return directory


def read_file(path: Path) -> bytes:
    """Return the file's bytes, at most one more than a job file may have. Raises UserError."""
    from orchestrator.core.jobfile import keys

    if path.suffix in PROGRAMS:
        hint = f"`tpujob run -- {PROGRAMS[path.suffix]}{shlex.quote(str(path))}` runs it"
        raise UserError(f"{path} is a program, not a job file", hint=hint)
    try:
        with path.open("rb") as file:
            return file.read(keys.MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file{_meant(path)}") from error
    except IsADirectoryError as error:
        raise UserError(f"{path} is a directory; name a job file") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def _meant(path: Path) -> str:
    """Return the job file beside `path` whose name is nearly that one, as a question; else an empty text."""
    with suppress(OSError):
        beside = {each.stem: each for each in path.parent.iterdir() if each.suffix in (".yaml", ".yml")}
        for stem in get_close_matches(path.stem, beside, n=1):
            return f"; did you mean `{printable(str(beside[stem]))}`?"
    return ""


def environment(spec: JobSpec, reporter: Reporter) -> dict[str, str]:
    """Return the job's variables, resolved. Hides their secrets in all later events, and reports the job's warnings."""
    from orchestrator.core.jobfile import keys
    from orchestrator.core.jobfile.rules.env import secret_values

    env = keys.resolve_env(spec, os.environ)
    reporter.secrets.add(*secret_values(spec.env, os.environ))
    for line in spec.warnings():
        reporter.notice("warning", line)
    return env
