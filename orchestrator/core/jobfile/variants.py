"""A bench file: one job in several variants, to be compared. `outline` reads it, `variants` returns a JobSpec for each. Pure.

A variant is the base job, changed by `every:` and then by its own keys: mappings are merged, everything else is replaced,
and null removes a key. The caller reads the base's file, which the outline names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.core.jobfile import keys, yaml_source
from orchestrator.core.jobfile.keys import JobSpec
from orchestrator.core.jobfile.yaml_source import Mistake, Path, YamlSource
from orchestrator.core.text import names
from orchestrator.core.text.names import shown
from orchestrator.errors import JobSpecError

KEYS = ("name", "base", "every", "variants")
MAX_VARIANTS = 50


@dataclass(frozen=True, slots=True)
class Outline:
    """A bench file whose base has not been read yet."""

    path: str
    name: str
    base: str  # as written: relative to the bench file
    source: YamlSource


def outline(text: str | bytes, *, path: str, default_name: str) -> Outline:
    """Return the outline. Raises JobSpecError with every mistake that can be found without the base."""
    source = yaml_source.read(text)
    mistakes = source.mistakes or [Mistake(source.line(at), at, why) for at, why in _mistakes(source.data)]
    if mistakes:
        raise JobSpecError(keys.messages(path, source, mistakes))
    return Outline(path, source.data.get("name") or default_name, source.data["base"], source)


def variants(found: Outline, base_text: str | bytes, *, base_path: str) -> dict[str, JobSpec]:
    """Return each variant's job, in the order of the file. Raises JobSpecError: mistakes of the base, or of all variants."""
    keys.load(base_text, path=base_path)
    base = yaml_source.read(base_text).data
    every = found.source.data.get("every") or {}
    specs: dict[str, JobSpec] = {}
    problems: list[str] = []
    for name, own in found.source.data["variants"].items():
        data = merged(merged(base, every), own or {})
        if data.get("on") == "local":
            data.pop("tpu", None)  # from the base; it has no effect there
        data["name"] = f"{found.name}-{name}"
        try:
            specs[name] = keys.check(_source(found.source, name, data), path=found.path)
        except JobSpecError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise JobSpecError(problems)
    return specs


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `change` merged into it; None in `change` removes a key."""
    result = dict(base)
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


def _mistakes(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    for key in data:
        if key not in KEYS:
            yield (key,), f"unknown key; known here: {', '.join(KEYS)}"
    if not isinstance(data.get("base"), str) or not data["base"].strip():
        yield ("base",), "names the job file that the variants change, relative to this file, such as `mnist.yaml`"
    name = data.get("name")
    if name is not None and (not isinstance(name, str) or names.job_name_problem(name)):
        yield ("name",), f"`{shown(str(name))}` is not a name; write lower-case letters, digits and `-`"
    if not isinstance(data.get("every") or {}, Mapping):
        yield ("every",), "expected a mapping: keys of a job file that all variants change alike"
    yield from _variant_mistakes(data.get("variants"))


def _variant_mistakes(found: Any) -> Iterator[tuple[Path, str]]:
    if not isinstance(found, Mapping) or not found:
        yield ("variants",), "expected a mapping of names, each with the keys of a job file that it changes"
        return
    if len(found) > MAX_VARIANTS:
        yield ("variants",), f"{len(found)} are too many; write at most {MAX_VARIANTS}"
    for name, own in found.items():
        path: Path = ("variants", name)
        if problem := names.job_name_problem(str(name)):
            yield path, f"its name {problem}; for example `{names.to_job_name(str(name))}`"
        if own is not None and not isinstance(own, Mapping):
            yield path, "expected a mapping: keys of a job file; leave it empty for the base as it is"


def _source(whole: YamlSource, name: str, data: dict[str, Any]) -> YamlSource:
    """The variant as if it were a job file, each key at its line of the bench file."""
    made = YamlSource(data=data, lines={(): whole.line(("variants", name))})
    for prefix in (("every",), ("variants", name)):
        depth = len(prefix)
        made.lines |= {at[depth:]: line for at, line in whole.lines.items() if at[:depth] == prefix and at != prefix}
        made.written |= {at[depth:]: text for at, text in whole.written.items() if at[:depth] == prefix}
    return made
