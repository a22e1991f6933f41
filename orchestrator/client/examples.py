"""The example jobs that come with tpujob: `orchestrator/examples` in a wheel, `jobs/` in a checkout."""

import os
from dataclasses import dataclass
from pathlib import Path

import yaml

import orchestrator
from orchestrator import whole_file
from orchestrator.errors import ConfigError, UserError

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
