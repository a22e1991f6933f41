"""A sweep: one job file, several jobs. `expand` returns them as variants, each a checked job with a name of its own. Pure.

`matrix:` has lists of parameter values; there is a variant for every combination, the last parameter changing fastest.
`variants:` has named changes of keys: mappings are merged, everything else is replaced, and null removes a key. With both,
every named variant runs with every combination. A mistake has the line of the value that is wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from orchestrator import places
from orchestrator.core.jobfile import keys, params, values, yaml_source
from orchestrator.core.jobfile.keys import JobSpec
from orchestrator.core.jobfile.mistakes import messages, refusal
from orchestrator.core.jobfile.overrides import Override, apply
from orchestrator.core.jobfile.rules.sweep import MATRIX, PARALLEL, VARIANTS, sweep_problems
from orchestrator.core.jobfile.yaml_source import Mistake, Path, YamlSource
from orchestrator.core.text import names
from orchestrator.errors import JobSpecError

MAX_LABEL_CHARS = 60


@dataclass(frozen=True, slots=True)
class Variant:
    """One job of a sweep. `label` names it in the sweep, such as `lr=1e-4`; `spec.name` is the name of its runs."""

    number: int  # from 1, in the order of the file
    label: str
    spec: JobSpec
    params: Mapping[str, params.Value] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its runs: `lr-sweep-1`."""
        return str(self.spec.name)


@dataclass(frozen=True, slots=True)
class Sweep:
    """The variants of one job, in the order of the file. `parallel`: how many slices run them at the same time."""

    name: str
    variants: tuple[Variant, ...]
    parallel: int = 1


def load(text: str | bytes, *, path: str, overrides: Iterable[Override] = ()) -> JobSpec | Sweep:
    """Return the job or the sweep that `text` describes, changed by `overrides`. Raises JobSpecError.

    `path` is for messages, and names a job without a name.
    """
    return check(apply(yaml_source.read(text), overrides), path=path)


def from_values(data: Mapping[str, Any], overrides: Iterable[Override] = ()) -> JobSpec | Sweep:
    """Return the job or the sweep that these values describe. Raises JobSpecError without file and lines."""
    return check(apply(values.source_of(data), overrides), path="")


def check(source: YamlSource, *, path: str) -> JobSpec | Sweep:
    """Return the job or the sweep for YAML that has been read already. Raises JobSpecError."""
    return expand(source, path=path) if is_sweep(source) else keys.check(source, path=path)


def is_sweep(source: YamlSource) -> bool:
    """Return whether the file describes several jobs."""
    return MATRIX in source.data or VARIANTS in source.data


def expand(source: YamlSource, *, path: str) -> Sweep:
    """Return the sweep of a file. Raises JobSpecError with every mistake, of the sweep itself or else of its variants.

    `path` is for messages, and names a sweep without a name.
    """
    mistakes = [*source.mistakes, *(Mistake(source.line(at), at, text) for at, text in sweep_problems(source))]
    if mistakes:
        raise refusal(path, messages(path, source, mistakes))
    changes: Mapping[str, Any] = source.data.get(VARIANTS) or {"": None}
    combinations = list(_combinations(source.data.get(MATRIX) or {}))
    sweep_name = _name(source, path, max(len(_suffix(*which)) for which in _which(changes, combinations)))
    which = list(_which(changes, combinations))
    called = labels((change, _values(source, combinations[index - 1])) for change, index in which)
    found: list[Variant] = []
    problems: list[str] = []
    for number, ((change, index), label) in enumerate(zip(which, called, strict=True), 1):
        made = _variant(source, change, combinations[index - 1])
        made.data["name"] = f"{sweep_name}-{_suffix(change, index)}"
        try:
            spec = keys.check(made, path=path)
        except JobSpecError as error:
            problems += [problem for problem in error.problems if problem not in problems]
            continue
        found.append(Variant(number, label, spec, spec.params))
    if problems:
        raise refusal(path, problems)
    return Sweep(sweep_name, tuple(found), source.data.get(PARALLEL) or 1)


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


def _combinations(matrix: Mapping[str, list[Any]]) -> Iterator[dict[str, int]]:
    """Yield for every combination which value of each parameter it has: {"lr": 0, "batch": 2}."""
    for chosen in itertools.product(*(range(len(found)) for found in matrix.values())):
        yield dict(zip(matrix, chosen, strict=True))


def _which(changes: Mapping[str, Any], combinations: list[dict[str, int]]) -> Iterator[tuple[str, int]]:
    """Yield the named change and the number of the combination of every variant. 0: there is only one combination."""
    several = range(1, len(combinations) + 1) if combinations != [{}] else (0,)
    yield from itertools.product(changes, several)


def _suffix(change: str, index: int) -> str:
    return "-".join(part for part in (change, str(index or "")) if part)


def _name(source: YamlSource, path: str, suffix_chars: int) -> str:
    """Return the name of the sweep. One that comes from the file's name is cut so that the names of the runs fit."""
    own = source.data.get("name")
    return str(own) if own else _from_file(path, names.MAX_JOB_NAME_CHARS - 1 - suffix_chars)


def _from_file(path: str, most_chars: int) -> str:
    return names.to_job_name(PurePath(path).stem or keys.NAMELESS)[:most_chars].rstrip("-")


def labels(variants: Iterable[tuple[str, Mapping[str, params.Value]]]) -> Iterator[str]:
    """Yield what each variant is called: its name and its values, such as `small lr=1e-4`.

    Where that is empty, too long, unprintable or not the only one, its name and number count: `small#3`.
    """
    seen = set[str]()
    for number, (name, chosen) in enumerate(variants, 1):
        parts = [name, *(f"{key}={params.text_of(value)}" for key, value in chosen.items())]
        label = " ".join(filter(None, parts))
        if not label or len(label) > MAX_LABEL_CHARS or not label.isprintable() or label in seen:
            label = f"{name}#{number}"
        seen.add(label)
        yield label


def _values(source: YamlSource, chosen: Mapping[str, int]) -> dict[str, params.Value]:
    """Return the parameters of a combination with their values."""
    return {name: source.data[MATRIX][name][number] for name, number in chosen.items()}


def _variant(source: YamlSource, change: str, chosen: Mapping[str, int]) -> YamlSource:
    """Return the variant as if it were a job file, each key at its line of the sweep."""
    own = (source.data.get(VARIANTS) or {}).get(change) or {}
    base = {key: value for key, value in source.data.items() if key not in (MATRIX, VARIANTS, PARALLEL)}
    data = merged(base, own)
    if "tpu" in places.checks_on(own.get("on")).UNUSED and "tpu" not in own:
        data.pop("tpu", None)  # of the other variants; it has no effect there
    made = replace(source, data=data, lines={}, written={}, options={})
    _take(made, source, (), ())
    _take(made, source, (VARIANTS, change), ())
    made.lines[()] = source.line((VARIANTS, change) if own else ())
    if chosen:
        data[params.PARAMS] = {**(data.get(params.PARAMS) or {}), **_values(source, chosen)}
        for name, number in chosen.items():
            _take(made, source, (MATRIX, name, number), (params.PARAMS, name))
    return made


def _take(made: YamlSource, source: YamlSource, below: Path, at: Path) -> None:
    """Copy the places below one path of the source to another path."""
    depth = len(below)
    made.lines |= {(*at, *path[depth:]): line for path, line in source.lines.items() if path[:depth] == below}
    made.written |= {(*at, *path[depth:]): text for path, text in source.written.items() if path[:depth] == below}
    made.options |= {(*at, *path[depth:]): option for path, option in source.options.items() if path[:depth] == below}
