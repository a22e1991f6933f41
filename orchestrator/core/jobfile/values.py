"""Plain values in place of a job file, as of a job that is written in Python, for the same checks as a file. Pure."""

from collections.abc import Mapping
from typing import Any

from orchestrator.core.jobfile.yaml_source import MAX_DEPTH, MAX_NODES, Path, YamlSource, unprintable
from orchestrator.core.text.names import shown


def source_of(data: Mapping[str, Any]) -> YamlSource:
    """Return the values as a file would hold them, without lines. A value that no file can hold is a mistake."""
    reader = _ValueReader()
    found = reader.value(data, ())
    source = reader.source
    if isinstance(found, dict):
        source.data = found
    return source


class _ValueReader:
    def __init__(self) -> None:
        self.source = YamlSource()
        self._nodes = 0

    def value(self, value: Any, path: Path) -> Any:
        self._nodes += 1
        self.source.lines[path] = 0
        if self._nodes > MAX_NODES or len(path) > MAX_DEPTH:
            return self.source.refuse(0, path, f"more than {MAX_NODES} values, or more than {MAX_DEPTH} levels")
        if isinstance(value, str):
            if problem := unprintable(value):
                return self.source.refuse(0, path, f"contains {problem}; remove it")
            return str(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if isinstance(value, list | tuple):
            return [self.value(each, (*path, number)) for number, each in enumerate(value)]
        return self.source.refuse(
            0, path, f"expected text, a number, a list or a mapping, not `{shown(type(value).__name__)}`"
        )

    def _mapping(self, value: Mapping[Any, Any], path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, each in value.items():
            if not isinstance(key, str) or unprintable(key):
                self.source.refuse(0, path, f"the key {shown(repr(key))} is not a word")
            else:
                found[key] = self.value(each, (*path, key))
        return found
