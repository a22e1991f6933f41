"""Options that change a job for one run: `--set KEY=VALUE`, `--env NAME[=VALUE]`, and those that stand for a key. Pure.

An override changes what was read of the file before it is checked, so that the same rules hold, and a mistake names the option
in place of a line.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.errors import UserError
from orchestrator.job.rules import env as env_rules
from orchestrator.job.rules.tpu import PROVISIONING_KEYS
from orchestrator.job.source import yaml_source
from orchestrator.job.source.yaml_source import Path, YamlSource
from orchestrator.job.tpu_keys import Alternative, with_any_of
from orchestrator.text import redaction
from orchestrator.text.names import for_display


@dataclass(frozen=True, slots=True)
class Override:
    """One key and its value for one run. `option`: how messages name it; it holds no secret."""

    option: str
    path: Path
    value: Any
    written: Mapping[Path, str] = field(default_factory=dict)  # as in YamlSource, below `path`

    @classmethod
    def parse(cls, text: str) -> Override:
        """Return the override of `--set KEY=VALUE`: a dotted key, and a value in YAML. Raises UserError."""
        key, sign, value = text.partition("=")
        path = tuple(key.split("."))
        if not sign or not all(path):
            hint = "such as --set limits.max_duration=2h"
            raise UserError(f"--set {_harmless(text)}: write KEY=VALUE, with dots between keys", hint=hint)
        secret = path[0] == "env" or redaction.has_secret_shape(value)
        option = f"--set {for_display(key)}" if secret else f"--set {for_display(key)}={for_display(value)}"
        meant, source = yaml_source.read_value(value, path)
        if source.mistakes:
            raise UserError(f"{option}: {source.mistakes[0].text}")
        if path[0] == "env" and len(path) == 2:
            _check_secret(option, path[1], str(meant))
        return cls(option, path, meant, source.written)

    @classmethod
    def variable(cls, text: str) -> Override:
        """Return the override of `--env NAME=VALUE`, or of `--env NAME`: the user's own variable. Raises UserError."""
        name, sign, value = text.partition("=")
        option = f"--env {for_display(name)}"
        if not name:
            raise UserError(f"--env {_harmless(text)}: write NAME=VALUE, or NAME for your own variable")
        if sign:
            _check_secret(option, name, value)
        return cls(option, ("env", name), value if sign else f"${{env:{name}}}")

    @classmethod
    def key(cls, option: str, path: Path, value: str | list[str]) -> Override:
        """Return the override of an option that stands for one key, such as `--zone us-east5`."""
        return cls(f"{option} {_harmless(value if isinstance(value, str) else shlex.join(value))}", path, value)


def apply(source: YamlSource, overrides: Iterable[Override]) -> YamlSource:
    """Return what was read, changed by the overrides in their order. A key of `tpu:` changes every alternative."""
    for override in overrides:
        source = with_any_of(source)
        for rival in _rivals(source.data, override.path):
            source = replace(_pruned(source, rival), data=_without(source.data, rival))
        source = _changed(source, override)
    return source


def outranks(data: Mapping[str, Any], path: Path) -> bool:
    """Return whether these keys, merged into a job, replace the value that an override has put at `path`."""
    return any(_replaces(data, place) for place in (path, *_rivals(data, path)))


def _replaces(data: Any, path: Path) -> bool:
    """Return whether there is a value at `path`, or one that stands in place of a section on the way to it."""
    for part in path:
        if isinstance(data, list) and isinstance(part, int):
            data = data[part]
        elif isinstance(data, Mapping):
            if part not in data:
                return False
            data = data[part]
        else:
            return True
    return True


def _changed(source: YamlSource, override: Override) -> YamlSource:
    """Replace one value. Sections on the way to it that are not there are made."""
    path = override.path
    sections = (path[:end] for end in range(1, len(path)))
    made = next((section for section in sections if not isinstance(_at(source.data, section), Mapping)), path)
    source = _pruned(source, made)
    return replace(
        source,
        data=_with(source.data, path, override.value),
        written={**source.written, **override.written},
        options={**source.options, path: override.option},
    )


def _rivals(data: Mapping[str, Any], path: Path) -> Iterator[Path]:
    """Yield the places of `tpu:` that say the same, and would count beside the override or contradict it."""
    tpu = data.get("tpu")
    if len(path) != 2 or path[0] != "tpu" or path[1] not in Alternative.model_fields or not isinstance(tpu, Mapping):
        return
    several = tpu.get("any_of")
    for key in PROVISIONING_KEYS if path[1] in PROVISIONING_KEYS else (path[1],):
        yield ("tpu", key)
        for number in range(len(several) if isinstance(several, list) else 0):
            yield ("tpu", "any_of", number, key)


def _pruned(source: YamlSource, path: Path) -> YamlSource:
    """Forget where a value was."""
    return source.placed(lambda at: None if at[: len(path)] == path else at)


def _at(data: Any, path: Path) -> Any:
    for part in path:
        data = data.get(part) if isinstance(data, Mapping) else None
    return data


def _with(data: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    section = data if isinstance(data, Mapping) else {}
    return {**section, path[0]: _with(section.get(path[0]), path[1:], value)}


def _without(data: Any, path: Path) -> Any:
    part, rest = path[0], path[1:]
    if isinstance(data, list):
        return [_without(item, rest) if number == part else item for number, item in enumerate(data)]
    if not isinstance(data, Mapping) or part not in data:
        return data
    if not rest:
        return {key: value for key, value in data.items() if key != part}
    return {**data, part: _without(data[part], rest)}


def _check_secret(option: str, name: str, value: str) -> None:
    if env_rules.is_secret(name, value):
        where = "and every user of this machine sees the command line"
        raise UserError(
            f"{option}: its value looks like a secret, {where}", hint=f"export it and write `--env {for_display(name)}`"
        )


def _harmless(text: str) -> str:
    return "…" if redaction.has_secret_shape(text) else for_display(text)
