"""The rules of a sweep: its lists of values, its named variants, their number and their names. Pure.

Each variant is checked as a job of its own afterwards (`keys.check`).
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.core.jobfile import params
from orchestrator.core.jobfile.overrides import outranks
from orchestrator.core.jobfile.yaml_source import Path, YamlSource
from orchestrator.core.text import names
from orchestrator.core.text.names import shown

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
        yield from _unused(data, matrix)
    if VARIANTS in data:
        yield from _variants_mistakes(variants, matrix)
    if parallel is not None and (isinstance(parallel, bool) or not isinstance(parallel, int) or parallel < 1):
        yield (PARALLEL,), f"expected a number of slices from 1 to {MAX_PARALLEL}, such as 2"
    elif parallel is not None and parallel > MAX_PARALLEL:
        yield (PARALLEL,), f"{parallel} are too many; write at most {MAX_PARALLEL}"
    count = _count(matrix, variants)
    if count is not None and count > MAX_VARIANTS:
        at = MATRIX if MATRIX in data else VARIANTS
        yield (
            (at,),
            f"makes {count:,} variants; at most {MAX_VARIANTS} are allowed: write fewer values, or several files",
        )
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
            yield (*path, number), f"`{shown(params.text_of(value))}` is listed twice; remove one of them"


def _unused(data: Mapping[str, Any], matrix: Any) -> Iterator[tuple[Path, str]]:
    """A parameter that changes nothing makes equal runs, each of which costs."""
    used = set(params.references({key: value for key, value in data.items() if key not in (MATRIX, params.PARAMS)}))
    for name, found in matrix.items() if isinstance(matrix, Mapping) else ():
        if name not in used and not params.name_problem(name) and isinstance(found, list) and found:
            yield (MATRIX, name), f"changes nothing; write ${{params.{shown(name)}}} in `command`, `env` or `train`"


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
            fix = f"`--set 'matrix.{shown(name)}=[…]'` replaces them"
            yield (params.PARAMS, name), f"has no effect: the values of {shown(name)} in `matrix:` count; {fix}"
    for path in source.options:
        changed = variants.items() if isinstance(variants, Mapping) else ()
        which = next((name for name, own in changed if isinstance(own, Mapping) and outranks(own, path)), None)
        if which is not None:
            yield path, f"has no effect on the variant `{shown(which)}`, which has a value of its own; change that"


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
        yield ("name",), f"`{shown(str(name))}` is not a name; write lower-case letters, digits and `-`, at most 40"
        return
    variants = data.get(VARIANTS)
    longest = max((len(str(each)) + 1 for each in variants), default=0) if isinstance(variants, Mapping) else 0
    longest += 1 + len(str(count)) if MATRIX in data and count is not None else 0
    if len(name) + longest > names.MAX_JOB_NAME_CHARS:
        most = names.MAX_JOB_NAME_CHARS - longest
        yield (
            ("name",),
            f"has {len(name)} characters, and the names of its runs are longer; at most {most} are allowed here",
        )
