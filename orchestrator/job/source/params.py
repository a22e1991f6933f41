"""Parameters of a job: `params:`, and `${params.NAME}` in the values of the file. Pure.

A value that is exactly `${params.NAME}` becomes the parameter with its YAML type and its line. Inside of a text, and anywhere
in `command`, `setup` and `env`, the parameter is inserted as the file writes it: `1e-4` stays `1e-4`.
"""

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.job.source.yaml_source import Path, YamlSource
from orchestrator.text.names import for_display

Value = str | int | float | bool

PARAMS = "params"
NOT_SUBSTITUTED = (PARAMS, "matrix", "variants", "name")
MAX_CHARS = 1000

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_REFERENCE = re.compile(r"\$\{params\.([A-Za-z_][A-Za-z0-9_-]*)\}", re.ASCII)
_TEXTS = ("command", "setup", "env")  # whose values are text, whatever they look like
_BEGIN = "${params."


def resolve(source: YamlSource) -> YamlSource:
    """Return the file with every `${params.NAME}` replaced by its value. What cannot be is a mistake of the result."""
    params = source.data.get(PARAMS)
    if params is None and _BEGIN not in json.dumps(source.data, default=str):
        return source
    resolver = _Resolver(source, params if isinstance(params, Mapping) else {})
    data = {
        key: value if key in NOT_SUBSTITUTED else resolver.value(value, (key,)) for key, value in source.data.items()
    }
    made = resolver.made
    made.data = data
    if isinstance(params, Mapping):
        for name, value in params.items():
            if problem := name_problem(name) or value_problem(value):
                made.refuse(made.line((PARAMS, name)), (PARAMS, name), problem)
    return made


def references(data: Any) -> Iterator[str]:
    """Yield the name of every parameter that these values refer to."""
    if isinstance(data, str):
        yield from _REFERENCE.findall(data)
    elif isinstance(data, Mapping | list):
        for part in data.values() if isinstance(data, Mapping) else data:
            yield from references(part)


def name_problem(name: str) -> str | None:
    """Return what is wrong with the name of a parameter; None if it is valid."""
    if _NAME.fullmatch(name):
        return None
    return f"`{for_display(name)}` is not the name of a parameter; use letters, digits, `_` and `-`, a letter first"


def value_problem(value: Any) -> str | None:
    """Return what is wrong with the value of a parameter; None if it is valid."""
    if value is None:
        return "has no value; write one, or remove it"
    if isinstance(value, Mapping | list):
        kind = "a mapping" if isinstance(value, Mapping) else "a list"
        return f"expected one value (text, a number, true or false), got {kind}; lists of values go below `matrix:`"
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    if isinstance(value, str) and len(value) > MAX_CHARS:
        return f"has {len(value):,} characters; at most {MAX_CHARS:,} are allowed"
    return None


def text_of(value: Value) -> str:
    """Return the value as people write it, in its shortest form: `1e-4`, `0.05`, `true`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, float):
        return str(value)
    plain = repr(value)
    if value == 0 or 0.01 <= abs(value) < 1e6:
        return plain
    digits = next(text for places in range(17) if float(text := f"{value:.{places}e}") == value)
    mantissa, _, exponent = digits.partition("e")
    short = f"{mantissa}e{int(exponent)}"
    return plain if len(plain) <= len(short) else short


class _Resolver:
    def __init__(self, source: YamlSource, params: Mapping[str, Any]) -> None:
        self.params = params
        own = source.placed(lambda path: path)
        self.made = replace(own, mistakes=list(source.mistakes), invalid=set(source.invalid))

    def value(self, value: Any, path: Path) -> Any:
        if isinstance(value, Mapping):
            return {key: self.value(each, (*path, key)) for key, each in value.items()}
        if isinstance(value, list):
            return [self.value(each, (*path, number)) for number, each in enumerate(value)]
        if not isinstance(value, str) or _BEGIN not in value:
            return value
        if problem := self._problem(value):
            return self.made.refuse(self.made.line(path), path, problem)
        if (exact := _REFERENCE.fullmatch(value)) and path[0] not in _TEXTS:
            return self._exact(exact[1], path)
        return _REFERENCE.sub(lambda found: self._text(found[1]), value)

    def _exact(self, name: str, path: Path) -> Any:
        """Its mistakes are at the line of the parameter: what is wrong is written there."""
        place = (PARAMS, name)
        if place in self.made.options:
            self.made.options[path] = self.made.options[place]
            self.made.lines.pop(path, None)
        else:
            self.made.lines[path] = self.made.line(place)
        if place in self.made.written:
            self.made.written[path] = self.made.written[place]
        return self.params[name]

    def _text(self, name: str) -> str:
        value = self.params[name]
        return self.made.written.get((PARAMS, name), value if isinstance(value, str) else text_of(value))

    def _problem(self, text: str) -> str | None:
        if _BEGIN in _REFERENCE.sub("", text):
            return "has a `${params.` that names no parameter; write ${params.NAME}"
        for name in _REFERENCE.findall(text):
            if name not in self.params:
                near = difflib.get_close_matches(name[:40], self.params, n=1)
                known = f"; known: {', '.join(map(for_display, self.params))}" if self.params else ""
                give = f"give it a value in `params:` or `matrix:`{known}"
                advice = f"did you mean `{for_display(near[0])}`?" if near else give
                return f"`{for_display(f'${{params.{name}}}')}`: there is no such parameter; {advice}"
            if value_problem(self.params[name]):
                return f"`{for_display(f'${{params.{name}}}')}` has no value that can be used"
        return None
