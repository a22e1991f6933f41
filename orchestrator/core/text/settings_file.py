"""The text of the settings file: lines `key: value`, and one list, `quota:`. `settings` reads it with me. Pure.

Nodes are composed, not constructed: tags and aliases come to nothing, and every value is the text that stands there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.core.planning import grants
from orchestrator.core.planning.grants import Grant
from orchestrator.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Value:
    """What stands after a key. `where` is the file and the line of the key."""

    file: str
    where: str
    key: str
    node: Any  # a yaml.Node

    def text(self) -> str:
        if self.node.id != "scalar" or not self.node.value:
            raise ConfigError(f"{self.where}: {self.key}: needs one plain value", hint="remove the line to unset it")
        return str(self.node.value)

    def grants(self) -> tuple[Grant, ...]:
        if self.node.id != "sequence":
            raise ConfigError(
                f"{self.where}: {self.key}: needs a list",
                hint="such as `- 5 on-demand Cloud TPU v3-8 devices in zone europe-west4-a`",
            )
        return tuple(self._grant(item) for item in self.node.value)

    def _grant(self, item: Any) -> Grant:
        try:
            return grants.from_text(item.value) if item.id == "scalar" else grants.from_keys(_flat(item))
        except ValueError as error:
            where = f"{self.file}:{item.start_mark.line + 1}"
            raise ConfigError(f"{where}: {self.key}: {error}", hint="`tpujob offers` names types and zones") from error


def read(text: str, *, file: str) -> list[tuple[str, Value]]:
    """Each key with what stands after it, in the order of the file."""
    import yaml

    try:
        top: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark else file
        said = getattr(error, "problem", None) or "it cannot be read"
        raise ConfigError(f"{where}: not valid YAML: {said}") from error
    if top is None:
        return []
    if not isinstance(top, yaml.MappingNode):
        raise ConfigError(f"{file}: settings are lines of the form `key: value`")
    found = []
    for key, node in top.value:
        where = f"{file}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"{where}: {key.value}: needs one plain value", hint="remove the line to unset it")
        found.append((key.value, Value(file, where, key.value, node)))
    return found


def _flat(item: Any) -> dict[str, str]:
    """A mapping of plain words, as they stand there."""
    if item.id != "mapping" or any(part.id != "scalar" for pair in item.value for part in pair):
        raise ValueError("is neither a line nor a mapping of plain values; write `accelerator`, `count` and `zone`")
    return {key.value: value.value for key, value in item.value}
