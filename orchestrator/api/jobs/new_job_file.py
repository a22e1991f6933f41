"""Where a first job begins: a commented job file for a script, or one of the examples that come with tpujob."""

import json
import os
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path, PurePath

import yaml

import orchestrator
from orchestrator.errors import ConfigError, UserError
from orchestrator.job.source import yaml_source
from orchestrator.system import whole_file
from orchestrator.text import parsing

RUNNERS = {".py": "python", ".sh": "bash"}
NO_SCRIPTS = re.compile(r"(setup|conftest|noxfile|fabfile|__init__|test_.*|.*_test)\.py")
READ_BYTES = 1024 * 1024
# What a file has that is to be run, not imported.
_MAIN = re.compile(
    rb"^if __name__ == [\"']__main__[\"']|^(import|from) (argparse|click|typer|fire|tyro|hydra|absl)\b", re.MULTILINE
)
IGNORE_FILES = (".gitignore", ".tpujobignore")

_TEMPLATE = """\
# Runs {script} on a Cloud TPU: `tpujob run {file}`; `tpujob plan {file}` checks it and shows the price.
# An option changes one run: --zone us-east5, --set limits.max_cost=5, -- {command_line} --help
# All keys: docs/job-file.md. An editor completes them after `tpujob schema > job.schema.json`, with this as the first line:
# "# yaml-language-server: $schema=job.schema.json"

command: {command}
code: .                         # shipped to every worker, without what .gitignore and .tpujobignore name
{needs}# installed on each worker, in an environment of its own
# python: "3.12"                # of that environment; a TPU VM has 3.10, which the newest packages do without

tpu:
  accelerator: v5e-8            # types, zones and prices: `tpujob offers`
  # zone: us-central1           # a zone, a region, a list of them, or any; left out: that of your settings, else any
  # spot: true                  # cheaper, and may be preempted at any time

limits:
  max_duration: 8h              # then the TPU is deleted, whatever happens
  # max_cost: 10                # dollars, by the price table

# artifacts: [out/*]            # collected whatever their size, as is $TPUJOB_ARTIFACTS; other new files up to 2 GB
# env:
#   WANDB_API_KEY: ${{env:WANDB_API_KEY}}   # your own variable, which stays out of files and logs
# keep_on_failure: 30m          # keep the TPU of a job that fails, to look and to run again
# on_preemption: restart        # get another TPU, with what the script saved to $TPUJOB_ARTIFACTS
"""


@dataclass(frozen=True, slots=True)
class NewJobFile:
    """A job file that was written. `ignores`: whether a file says what is not shipped."""

    path: Path
    ignores: bool


def write(script: Path | None = None) -> NewJobFile:
    """Write the job file of a script, or of the only one in the working directory, into the working directory.

    Raises UserError if no script or several could be meant, or if the file exists; ConfigError if it cannot be written.
    """
    relative = PurePath(_named(script) if script is not None else _found(Path.cwd()).name)
    if not str(relative).isprintable():  # it would be more than a value and a comment of the file
        raise UserError(f"{str(relative)!r}: a name with control characters", hint="rename it")
    path = Path(f"{relative.stem}.yaml")
    text = text_of(relative, path.name, needs=needs_of(Path()))
    try:
        with path.open("x", encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
            except OSError:
                path.unlink()  # the next try must not find half a file
                raise
    except FileExistsError as error:
        raise UserError(
            f"{path} exists; nothing was written", hint=f"`tpujob plan {shlex.quote(str(path))}` checks it"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}", hint="change into another directory"
        ) from error
    return NewJobFile(path, any(Path(name).is_file() for name in IGNORE_FILES))


def text_of(script: PurePath, file: str, *, needs: str | None) -> str:
    """Return the text of the job file. `needs`: the file with what the script needs."""
    words = [RUNNERS[script.suffix], script.as_posix()]
    return _TEMPLATE.format(
        script=script.as_posix(),
        file=shlex.quote(file),
        command_line=shlex.join(words),
        command=_as_yaml(shlex.join(words)),
        needs=f"requirements: {needs}".ljust(32) if needs else "# requirements: [numpy, tqdm]   ",
    )


def needs_of(directory: Path) -> str | None:
    """Return the name of the file in the directory that says which packages the script needs; None if there is none."""
    if (directory / "requirements.txt").is_file():
        return "requirements.txt"
    try:
        project = tomllib.loads(parsing.text_of((directory / "pyproject.toml").read_bytes())).get("project")
    except (OSError, ValueError):
        return None
    return "pyproject.toml" if isinstance(project, dict) and project.get("dependencies") else None


def _named(script: Path) -> Path:
    if script.suffix not in RUNNERS:
        hint = "`tpujob init train.py`; `tpujob init --example` lists the examples"
        raise UserError(f"{script} is neither a Python nor a shell script", hint=hint)
    if not os.path.isfile(script):  # noqa: PTH113 - which raises for no name
        raise UserError(f"{script}: there is no such file")
    try:
        return script.resolve().relative_to(Path.cwd().resolve())
    except ValueError as error:
        hint = "change into the directory of its project first: the job ships that"
        raise UserError(f"{script} is not below the working directory", hint=hint) from error


def _found(directory: Path) -> Path:
    """Return the only script of the directory."""
    every = [path for path in sorted(directory.glob("*.py")) if not NO_SCRIPTS.fullmatch(path.name)]
    if not every:
        hint = "`tpujob init src/train.py` names one; `tpujob init --example` lists the examples"
        raise UserError("there is no Python script in this directory", hint=hint)
    scripts = [path for path in every if _is_script(path)] or every
    if len(scripts) > 1:
        listed = ", ".join(path.name for path in scripts)
        raise UserError(f"several scripts could be meant: {listed}", hint=f"name one: `tpujob init {scripts[0].name}`")
    return scripts[0]


def _is_script(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _MAIN.search(file.read(READ_BYTES)) is not None
    except OSError:
        return False


def _as_yaml(text: str) -> str:
    plain, source = yaml_source.read_value(text, ("command",))
    return text if plain == text and not source.mistakes else json.dumps(text)


SCHEMA_LINE = "# yaml-language-server:"  # leads to a file of the checkout


@dataclass(frozen=True, slots=True)
class Example:
    """An example: its `files` relative to `source`, the job file first."""

    name: str
    description: str
    source: Path
    files: tuple[Path, ...]


def find_all() -> dict[str, Example]:
    """Return the examples by name. Raises ConfigError if they are missing from the installation."""
    for source in (orchestrator.ROOT / "orchestrator" / "examples", orchestrator.ROOT / "jobs"):
        if source.is_dir():
            return {path.stem: _example(path) for path in sorted(source.glob("*.yaml"))}
    raise ConfigError("the examples are missing from this installation", hint="install tpujob again")


def find(name: str) -> Example:
    """Return one example. Raises UserError if there is none of this name, ConfigError if there are none at all."""
    examples = find_all()
    if name not in examples:
        raise UserError(f"{name!r} is not an example", hint=f"the examples are {', '.join(examples)}")
    return examples[name]


def copy(example: Example, target: Path) -> list[Path]:
    """Copy an example into the directory `target`; return its files there, the job file first.

    A file that is there already, with the same content, is used as it is. Raises UserError for any other file that exists,
    before anything is written, and ConfigError if `target` cannot be written.
    """
    for number, file in enumerate(example.files):
        path = target / file
        is_there = os.path.exists(path)  # noqa: PTH110 - which raises for no name
        if is_there and (number == 0 or not path.is_file() or path.read_bytes() != _content(example, file)):
            hint = f"name another directory: tpujob init --example {example.name} DIR"
            raise UserError(f"{path} exists; nothing was copied", hint=hint)
    copied = [target / file for file in example.files]
    for file, path in zip(example.files, copied, strict=True):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                whole_file.write(path, _content(example, file))
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}", hint="name another directory") from error
    return copied


def _example(path: Path) -> Example:
    text = path.read_text(encoding="utf-8")
    comments = [line for line in text.splitlines() if line.startswith("# ") and not line.startswith(SCHEMA_LINE)]
    source, keys = path.parent, yaml.safe_load(text)
    files = [path.relative_to(source)]
    if code := keys.get("code"):
        inside = sorted((source / code).rglob("*"))
        files += [file.relative_to(source) for file in inside if file.is_file() and file.suffix != ".pyc"]
    if (source / "rehearsals" / path.name).is_file():
        files.append(Path("rehearsals", path.name))
    description = comments[0].removeprefix("# ") if comments else ""
    return Example(path.stem, description, source, tuple(files))


def _content(example: Example, file: Path) -> bytes:
    lines = (example.source / file).read_bytes().splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith(SCHEMA_LINE.encode()))
