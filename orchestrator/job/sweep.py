"""A sweep: one job file, several jobs. `expand` checks it and returns variants, each a checked job of its own. Pure.

`matrix:` has lists of parameter values; there is a variant for every combination, the last parameter changing fastest.
`variants:` has named changes of keys: mappings are merged, everything else is replaced, and null removes a key. With both,
every named variant runs with every combination. A mistake has the line of the value that is wrong.

Each variant is checked as a job of its own afterwards (`keys.check`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from orchestrator import traits
from orchestrator.errors import JobSpecError
from orchestrator.job import job_spec
from orchestrator.job.job_spec import JobSpec
from orchestrator.job.mistakes import messages, refusal
from orchestrator.job.overrides import Override, apply, outranks
from orchestrator.job.source import params, yaml_source
from orchestrator.job.source.yaml_source import Mistake, Path, YamlSource
from orchestrator.text import names
from orchestrator.text.names import for_display

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
    return check(apply(yaml_source.source_of(data), overrides), path="")


def check(source: YamlSource, *, path: str) -> JobSpec | Sweep:
    """Return the job or the sweep for YAML that has been read already. Raises JobSpecError."""
    is_sweep = MATRIX in source.data or VARIANTS in source.data
    return expand(source, path=path) if is_sweep else job_spec.check(source, path=path)


def expand(source: YamlSource, *, path: str) -> Sweep:
    """Return the sweep of a file. Raises JobSpecError with every mistake, of the sweep itself or else of its variants.

    `path` is for messages, and names a sweep without a name.
    """
    mistakes = [*source.mistakes, *(Mistake(source.line(at), at, text) for at, text in sweep_problems(source))]
    if mistakes:
        raise refusal(path, messages(path, source, mistakes))
    changes: Mapping[str, Any] = source.data.get(VARIANTS) or {"": None}
    matrix: Mapping[str, list[Any]] = source.data.get(MATRIX) or {}
    # For every combination, which value of each parameter it has: {"lr": 0, "batch": 2}.
    chosen = itertools.product(*(range(len(found)) for found in matrix.values()))
    combinations = [dict(zip(matrix, each, strict=True)) for each in chosen]
    # The named change and the number of the combination of every variant. 0: there is only one combination.
    which = list(itertools.product(changes, range(1, len(combinations) + 1) if combinations != [{}] else (0,)))
    sweep_name = _name(source, path, max(len(_suffix(*each)) for each in which))
    called = labels((change, _values(source, combinations[index - 1])) for change, index in which)
    found: list[Variant] = []
    problems: list[str] = []
    for number, ((change, index), label) in enumerate(zip(which, called, strict=True), 1):
        made = _variant(source, change, combinations[index - 1])
        made.data["name"] = f"{sweep_name}-{_suffix(change, index)}"
        try:
            spec = job_spec.check(made, path=path)
        except JobSpecError as error:
            problems += [problem for problem in error.problems if problem not in problems]
            continue
        found.append(Variant(number, label, spec, spec.params))
    # The last: a parameter may be unused because its name is misspelled where it would be used.
    unused = [Mistake(source.line(at), at, text) for at, text in _unused(source.data)]
    if problems := problems or messages(path, source, unused):
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


def _suffix(change: str, index: int) -> str:
    return "-".join(part for part in (change, str(index or "")) if part)


def _name(source: YamlSource, path: str, suffix_chars: int) -> str:
    """Return the name of the sweep. One that comes from the file's name is cut so that the names of the runs fit."""
    if own := source.data.get("name"):
        return str(own)
    most_chars = names.MAX_JOB_NAME_CHARS - 1 - suffix_chars
    return names.to_job_name(PurePath(path).stem or job_spec.NAMELESS)[:most_chars].rstrip("-")


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
    if "tpu" in traits.checks_on(own.get("on")).UNUSED and "tpu" not in own:
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


MATRIX, VARIANTS, PARALLEL, KEEP = "matrix", "variants", "parallel", "keep_on_failure"
MAX_VARIANTS = 200
MAX_PARALLEL = 64

_NO_PARAMS = "expected parameters with a value each, such as `lr: 1e-4`"


def sweep_problems(source: YamlSource) -> Iterator[tuple[Path, str]]:
    """Yield what is wrong with the sweep itself, each at its place."""
    data = source.data
    matrix, variants, parallel = data.get(MATRIX), data.get(VARIANTS), data.get(PARALLEL)
    if not isinstance(data.get(params.PARAMS), Mapping | None):
        yield (params.PARAMS,), _NO_PARAMS
    if MATRIX in data:
        yield from _matrix_mistakes(matrix)
    if VARIANTS in data:
        yield from _variants_mistakes(variants, matrix)
    if parallel is not None and (isinstance(parallel, bool) or not isinstance(parallel, int) or parallel < 1):
        yield (PARALLEL,), f"expected a number of slices from 1 to {MAX_PARALLEL}, such as 2"
    elif parallel is not None and parallel > MAX_PARALLEL:
        yield (PARALLEL,), f"{parallel} are too many; write at most {MAX_PARALLEL}"
    count = _count(matrix, variants)
    if count is not None and count > MAX_VARIANTS:
        why = f"makes {count:,} variants; at most {MAX_VARIANTS} are allowed: write fewer values, or several files"
        yield (MATRIX if MATRIX in data else VARIANTS,), why
    if data.get(KEEP) is not None:
        yield (KEEP,), "has no use in a sweep, where the slice of a job that failed goes to the next one; remove it"
    yield from _name_mistakes(data, count)
    yield from _options_without_effect(source)


def _matrix_mistakes(matrix: Any) -> Iterator[tuple[Path, str]]:
    if not isinstance(matrix, Mapping) or not matrix:
        yield (MATRIX,), "expected parameters with lists of values, such as `lr: [1e-4, 3e-4]`"
        return
    for name, found in matrix.items():
        path: Path = (MATRIX, name)
        if problem := params.name_problem(name):
            yield path, problem
        if not isinstance(found, list):
            yield path, "expected a list of values, such as [1e-4, 3e-4]; a single value goes below `params:`"
        elif not found:
            yield path, "is an empty list; write the values to try, or remove it"
        else:
            yield from _value_mistakes(path, found)


def _value_mistakes(path: Path, found: list[Any]) -> Iterator[tuple[Path, str]]:
    for number, value in enumerate(found):
        if problem := params.value_problem(value):
            yield (*path, number), problem
        elif any(type(value) is type(other) and value == other for other in found[:number]):
            yield (*path, number), f"`{for_display(params.text_of(value))}` is listed twice; remove one of them"


def _unused(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """A parameter that changes nothing makes equal runs, each of which costs."""
    used = set(params.references({key: value for key, value in data.items() if key not in (MATRIX, params.PARAMS)}))
    for name in data.get(MATRIX, ()):
        if name not in used:
            how = f"write ${{params.{for_display(name)}}} in `command`, `env` or `train`"
            yield (MATRIX, name), f"changes nothing; {how}"


def _variants_mistakes(variants: Any, matrix: Any) -> Iterator[tuple[Path, str]]:
    if not isinstance(variants, Mapping) or not variants:
        yield (VARIANTS,), "expected a mapping of names, each with the keys that it changes"
        return
    for name, own in variants.items():
        path: Path = (VARIANTS, name)
        if problem := names.job_name_problem(str(name)):
            yield path, f"its name {problem}; for example `{names.to_job_name(str(name))}`"
        if own is not None and not isinstance(own, Mapping):
            yield path, "expected a mapping: keys of the file that it changes; leave it empty to change none"
            continue
        for key in (MATRIX, VARIANTS, PARALLEL, KEEP, "name"):
            if key in (own or {}):
                yield (*path, key), "is of the whole sweep, not of one variant; remove it"
        own_params = (own or {}).get(params.PARAMS)
        if not isinstance(own_params, Mapping | None):
            yield (*path, params.PARAMS), _NO_PARAMS
        for each in own_params if isinstance(own_params, Mapping) else ():
            if isinstance(matrix, Mapping) and each in matrix:
                yield (*path, params.PARAMS, each), "has values in `matrix:` already; remove it from one of the two"


def _options_without_effect(source: YamlSource) -> Iterator[tuple[Path, str]]:
    """An option of the command line that the values of the sweep outrank must not seem to have counted."""
    matrix, variants, single = (source.data.get(key) for key in (MATRIX, VARIANTS, params.PARAMS))
    both = set(matrix) & set(single) if isinstance(matrix, Mapping) and isinstance(single, Mapping) else set[str]()
    for name in sorted(both):
        if source.option((params.PARAMS, name)) is not None:
            fix = f"`--set 'matrix.{for_display(name)}=[…]'` replaces them"
            yield (params.PARAMS, name), f"has no effect: the values of {for_display(name)} in `matrix:` count; {fix}"
    for path in source.options:
        changed = variants.items() if isinstance(variants, Mapping) else ()
        which = next((name for name, own in changed if isinstance(own, Mapping) and outranks(own, path)), None)
        if which is not None:
            own = f"`{for_display(which)}`, which has a value of its own"
            yield path, f"has no effect on the variant {own}; change that"


def _count(matrix: Any, variants: Any) -> int | None:
    """Return how many variants there are; None where that cannot be told."""
    lists = list(matrix.values()) if isinstance(matrix, Mapping) else []
    if any(not isinstance(found, list) for found in lists):
        return None
    return math.prod(len(found) for found in lists) * (len(variants) if isinstance(variants, Mapping) else 1)


def _name_mistakes(data: Mapping[str, Any], count: int | None) -> Iterator[tuple[Path, str]]:
    name = data.get("name")
    if name is None or name == "":
        return
    if not isinstance(name, str) or names.job_name_problem(name):
        yield (
            ("name",),
            f"`{for_display(str(name))}` is not a name; write lower-case letters, digits and `-`, at most 40",
        )
        return
    variants = data.get(VARIANTS)
    longest = max((len(str(each)) + 1 for each in variants), default=0) if isinstance(variants, Mapping) else 0
    longest += 1 + len(str(count)) if MATRIX in data and count is not None else 0
    if len(name) + longest > names.MAX_JOB_NAME_CHARS:
        most = names.MAX_JOB_NAME_CHARS - longest
        why = f"has {len(name)} characters, and the names of its runs are longer; at most {most} are allowed here"
        yield ("name",), why
