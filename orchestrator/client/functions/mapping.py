"""`map`: the calls of a grid as a sweep, whose columns are the arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.client.events import SweepResult, VariantResult
from orchestrator.client.functions import outcome
from orchestrator.client.functions.grid import Call
from orchestrator.client.job import Job, spec_of
from orchestrator.core.jobfile import params
from orchestrator.core.jobfile.rules.sweep import MAX_PARALLEL, MAX_VARIANTS
from orchestrator.core.jobfile.sweep import Sweep, Variant, labels
from orchestrator.core.text.names import MAX_JOB_NAME_CHARS
from orchestrator.errors import ArtifactError, PayloadFailed, TpujobError, UserError

MAX_SHOWN = 5


def sweep_of_calls(jobs: Sequence[Job], columns: Sequence[Mapping[str, params.Value]], parallel: int) -> Sweep:
    """Return the sweep of these jobs, one for each call. Raises UserError for too many, or too many slices."""
    if not 1 <= parallel <= MAX_PARALLEL:
        raise UserError(f"parallel={parallel}: a number of slices from 1 to {MAX_PARALLEL}")
    if len(jobs) > MAX_VARIANTS:
        raise UserError(
            f"the grid has {len(jobs):,} calls, and {MAX_VARIANTS} are the most", hint="make several calls of map"
        )
    name = jobs[0].name
    stem = name[: MAX_JOB_NAME_CHARS - 1 - len(str(len(jobs)))].rstrip("-")
    called = labels(("", shown) for shown in columns)
    variants = (
        Variant(number, label, spec_of(replace(job, name=f"{stem}-{number}", params=shown)), shown)
        for number, (job, label, shown) in enumerate(zip(jobs, called, columns, strict=True), 1)
    )
    return Sweep(name, tuple(variants), parallel)


def columns_of(signature: inspect.Signature, call: Call) -> dict[str, params.Value]:
    """Return the arguments of a call that can be columns of a table: single values, by name. Raises TypeError."""
    args, kwargs = call
    return {
        name: value
        for name, value in signature.bind(*args, **kwargs).arguments.items()
        if isinstance(value, str | int | float) and not params.name_problem(name) and not params.value_problem(value)
    }


def values_of(result: SweepResult, hide: Callable[[str], str], *, return_exceptions: bool) -> list[Any]:
    """Return the value of each call, in their order; the error of one that failed, or raise the first of them."""
    found = [_value(each, hide) for each in result.variants]
    failed = [
        each.variant for each, value in zip(result.variants, found, strict=True) if isinstance(value, TpujobError)
    ]
    if failed and not return_exceptions:
        error = next(value for value in found if isinstance(value, TpujobError))
        more = f" and {len(failed) - MAX_SHOWN} more" if len(failed) > MAX_SHOWN else ""
        error.add_note(
            f"{len(failed)} of {len(found)} calls failed: {', '.join(failed[:MAX_SHOWN])}{more}; what the others returned is "
            "kept: the same map returns it without running them again, with return_exceptions=True beside the errors"
        )
        raise error
    return found


def _value(each: VariantResult, hide: Callable[[str], str]) -> Any:
    result = each.result
    if result is None:
        return TpujobError(f"{each.variant} was not run", exit_code=each.exit_code)
    if each.succeeded:
        try:
            return outcome.value_of(result)
        except ArtifactError as missing:
            return missing
    error: TpujobError = result.error or TpujobError(f"{each.variant}: {each.state}", exit_code=each.exit_code)
    if isinstance(error, PayloadFailed):
        error = outcome.remote_error(result, error, hide) or error
    error.result = result
    return error
