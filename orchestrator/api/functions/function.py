"""A function that runs on a TPU: what `tpujob.function` makes of a function. Importing this module costs nothing."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, cast, overload

import tpujob
from orchestrator.api.functions import outcome
from orchestrator.api.functions.outcome import columns_of, sweep_of_calls
from orchestrator.api.functions.source import check_module, examine, globals_of
from orchestrator.api.functions.values import Grid, as_json, calls_of, json_text
from orchestrator.api.jobs.job import Job, Limits, Tpu, Train
from orchestrator.api.session.arguments import Duration
from orchestrator.api.session.events import RunResult
from orchestrator.errors import TpujobError, UserError
from orchestrator.report.comparison.figures import FUNCTION_ENTRY
from orchestrator.text.names import to_job_name

if TYPE_CHECKING:
    from orchestrator.api.jobs.job import StrPath
    from tpujob import Client, Job, Run, RunResult

P = ParamSpec("P")
R = TypeVar("R")
BackendName = Literal["none", "xla", "cuda", "cpu", "tpu", "auto"]

IN_A_JOB = "TPUJOB_RUN"


class RemoteFunction(Generic[P, R]):
    """A function whose call runs on a TPU; `tpujob.function` makes it. It has the signature of the function.

    Arguments and result are what JSON carries: None, bool, int, float, str, and lists and dicts of them. Tuples arrive as
    lists.
    """

    def __init__(
        self, function: Callable[P, R], fields: Mapping[str, Any], backend: BackendName, client: Client | None
    ) -> None:
        """`fields`: those of the job of every call."""
        self._source = examine(function, fields["python"])
        self._function = function
        self._fields = fields
        self._backend = backend
        self._client = client
        functools.update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<tpujob.function {self._source.name} on {self._fields['tpu'].accelerator or 'a TPU'}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function on a TPU and return its value. Inside of a job this is an ordinary call.

        Raises what `Client.run` raises; RemoteFunctionError for an exception in the function.
        """
        if IN_A_JOB in os.environ:
            return self._function(*args, **kwargs)
        return self._run(self._made_client(), args, kwargs)

    def local(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here, in this process."""
        return self._function(*args, **kwargs)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Return the job of a call, for `Client.plan`, `run` and `submit`. Creates nothing.

        Raises UserError for arguments that JSON does not carry; TypeError for those that the function does not take.
        """
        return self._job(args, kwargs)

    @overload
    def map(
        self, grid: Grid, *, parallel: int = 1, again: bool = False, return_exceptions: Literal[False] = False
    ) -> list[R]: ...

    @overload
    def map(
        self, grid: Grid, *, parallel: int = 1, again: bool = False, return_exceptions: Literal[True]
    ) -> list[R | TpujobError]: ...

    def map(
        self, grid: Grid, *, parallel: int = 1, again: bool = False, return_exceptions: bool = False
    ) -> list[R] | list[R | TpujobError]:
        """Run a sweep of calls, and return their values in order. `parallel` slices run them, each one call after the other.

        `grid` is a list of calls, each a dict of arguments or a tuple of them; or a dict of lists, of which every combination
        is a call. A call that fails stops no other one: at the end, the first error is raised, or with `return_exceptions` each
        is in the place of its value. What succeeded before with the same arguments and code is not run again, except with
        `again`; so the same map goes on after an interruption. The arguments are columns of `tpujob compare`.

        Raises UserError and TypeError for a grid that cannot be run: then nothing was created. Raises Interrupted after Ctrl-C.
        """
        calls = calls_of(grid)
        signature = inspect.signature(self._function)
        jobs = [self._job(*call) for call in calls]
        sweep = sweep_of_calls(jobs, [columns_of(signature, call) for call in calls], parallel)
        client = self._made_client()
        found = client._map(sweep, jobs[0], again, return_exceptions, client.on_event or outcome.printer())
        return cast(list[R], found)

    def value(self, run: str | Run | RunResult) -> R:
        """Return the value of a run of this function, such as one of `Client.submit`; wait for its end.

        Raises what the run raises; ArtifactError if it left no value.
        """
        if not isinstance(run, RunResult):
            client = self._made_client() if isinstance(run, str) else run._client
            run = client.attach(run, on_event=client.on_event or outcome.printer())
        return cast(R, outcome.value_of(run))

    def _run(self, client: Client, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
        result = client.run(self._job(args, kwargs), on_event=client.on_event or outcome.printer())
        return cast(R, outcome.value_of(result))

    def _made_client(self) -> Client:
        return self._client or tpujob.Client()

    def _job(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Job:
        source, code = self._source, self._fields["code"]
        if source.module is not None:
            check_module(inspect.unwrap(self._function), source, None if code is None else Path(code))
        own = {"name": self._fields["name"] or to_job_name(source.name), "code": source.root if code is None else code}
        options = {"function": source.name, "call": self._call_text(args, kwargs)}
        train = Train(entry=FUNCTION_ENTRY, backend=self._backend, options=options)
        return Job(**{**self._fields, **own}, train=train)

    def _call_text(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the call as `payload.functions.call` reads it."""
        signature = inspect.signature(self._function)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:  # without the function's name
            raise TypeError(f"{self._source.name}() {error}") from None
        for name, value in bound.arguments.items():
            bound.arguments[name] = as_json(value, f"argument `{name}` of {self._source}")
        given = [
            name
            for name in ("backend", "run")
            if name not in bound.arguments
            and (parameter := signature.parameters.get(name)) is not None
            and parameter.default is None
        ]
        own = ("name", "module", "source", "file", "line", "defaults", "kwdefaults")
        called = {key: getattr(self._source, key) for key in own}
        carried = globals_of(inspect.unwrap(self._function), self._source)
        return json_text({**called, "globals": carried, "args": bound.args, "kwargs": bound.kwargs, "given": given})


def function(
    accelerator: str | None = None,
    *,
    zone: str | Sequence[str] | None = None,
    spot: bool | None = None,
    backend: BackendName = "none",
    requirements: StrPath | Sequence[str] | None = None,
    python: str | None = None,
    code: StrPath | None = None,
    name: str = "",
    env: Mapping[str, str] | None = None,
    max_duration: Duration | None = None,
    client: Client | None = None,
) -> Callable[[Callable[P, R]], RemoteFunction[P, R]]:
    """Return a decorator: a call of the decorated function runs on a TPU, and returns its value.

    Example::

        @tpujob.function("v5e-8", zone="us-central1")
        def double(x: int) -> int:
            return 2 * x

        print(double(21))

    Each call gets a slice, which is proven absent when the call ends, or runs on one that `up` holds. Every worker calls the
    function once, in a plain process; the value of worker 0 counts. With another `backend`, every core of every worker calls
    it, as an `entry` of `train:` with torch_xla (`"xla"`) and so on. Parameters `backend=None` and `run=None` that a call
    leaves out get those of an entry: `run.report(step=…, loss=…)`, `run.artifacts`, and so on.

    A function of a module travels with the directory from which that module is imported. One of a script or a notebook travels
    as its own source, with the directory `code` if that is set, and with the values that its globals have at each call, as far
    as JSON carries them exactly: write its imports inside of it.

    `requirements` are installed on every worker: a file, or packages. These, `python`, `accelerator`, `zone`, `spot`, `name`,
    `env` and `max_duration` are keys of a job. Without `client`, each call makes one. Where it has no `on_event`, the steps and
    the log go to stderr, and in a notebook to a display below the cell.

    Raises UserError for a function that cannot travel: when it is decorated.
    """
    if callable(accelerator):
        raise UserError("write `@tpujob.function()`, with parentheses, in which an accelerator may stand")

    fields = {
        "tpu": Tpu(accelerator=accelerator, zone=zone, spot=spot),
        "requirements": requirements,
        "python": python,
        "code": code,
        "name": name,
        "env": env,
        "limits": None if max_duration is None else Limits(max_duration=max_duration),
    }
    return lambda decorated: RemoteFunction(decorated, fields, backend, client)
