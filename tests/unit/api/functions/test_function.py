"""A decorated function: the job of a call, what the payload calls, and the calls of a map as a sweep."""

import inspect
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tpujob
from orchestrator.api.functions.function import RemoteFunction
from orchestrator.api.functions.outcome import columns_of, sweep_of_calls, values_of
from orchestrator.api.functions.values import calls_of
from orchestrator.api.jobs.job import Job, spec_of
from orchestrator.api.session.events import RunResult, SweepResult, VariantResult
from orchestrator.errors import ArtifactError, CapacityError, PayloadFailed, RemoteFunctionError, TpujobError, UserError
from orchestrator.job.sweep import Sweep
from payload.functions import call
from tests.unit.api.functions.cells import cell
from tests.unit.api.functions.test_source import module


@dataclass
class Worker:
    """The `run` of the payload, for one process."""

    artifacts: Path
    options: dict[str, Any]
    rank: int = 0
    said: list[str] = field(default_factory=list)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call the function of a job as a worker does, and return what it left."""
    monkeypatch.setitem(sys.modules, "tpujob", tpujob)  # which the payload replaces
    (tmp_path / "artifacts").mkdir()

    def run(job: Job, backend: Any = None, rank: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
        train = spec_of(job).train
        assert train is not None and train.options is not None
        metrics = call.main(backend, Worker(tmp_path / "artifacts", dict(train.options), rank))
        path = tmp_path / "artifacts" / "function-result.json"
        return metrics, json.loads(path.read_text()) if path.exists() else {}

    return run


def error(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "artifacts" / "function-error.json").read_text())
    return found


def of(text: str, **around: Any) -> RemoteFunction[..., Any]:
    return tpujob.function("v5e-8")(cell(text, **around)["f"])


# -- the job -----------------------------------------------------------------------------------------------------------


def test_the_job_of_a_call_has_the_keys_of_the_decorator() -> None:
    decorate = tpujob.function(
        "v6e-8", zone=["us-east5", "us-central1"], spot=True, env={"A": "b"}, name="mine", code="src",
        max_duration="30m", backend="xla", requirements=["einops"], python="3.12",
    )  # fmt: skip
    job = decorate(cell("def f_of(x): return x")["f_of"]).job(3)
    spec = spec_of(job)
    assert (spec.name, spec.code, spec.env, spec.limits.max_duration_s) == ("mine", "src", {"A": "b"}, 1800.0)
    assert (spec.requirements, spec.python) == (("einops",), "3.12")
    (one,) = spec.tpu.alternatives
    assert (one.accelerator, one.zone, one.spot) == ("v6e-8", ("us-east5", "us-central1"), True)
    assert spec.train is not None and (spec.train.backend, spec.train.entry) == ("xla", "payload.functions.call:main")
    assert tpujob.function()(cell("def f_of(x): return x")["f_of"]).job(3).name == "f-of"


def test_a_module_is_shipped_from_the_directory_of_its_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    f = tpujob.function()(module(tmp_path, monkeypatch, "pack/mine_code.py").f)
    monkeypatch.setattr(sys.modules["pack.mine_code"], "f", f)  # as a decorator does
    monkeypatch.chdir("/")
    job = f.job()
    assert (job.directory / spec_of(job).code).resolve() == tmp_path  # type: ignore[operator]
    elsewhere = tpujob.function(code=tmp_path / "pack")(f.__wrapped__)  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=f"the worker imports `pack.mine_code` from {tmp_path}, and code= names"):
        elsewhere.job()
    monkeypatch.setattr(sys.modules["pack.mine_code"], "f", print)
    with pytest.raises(UserError, match=r"`pack.mine_code.f` is not this function"):
        f.job()


def test_arguments_are_checked_before_there_is_a_job() -> None:
    f = of("def f(x, *, y=1): pass")
    with pytest.raises(TypeError, match=r"f\(\) missing a required argument: 'x'"):
        f.job()
    with pytest.raises(UserError, match=r"argument `y` of `f` \(<notebook>:1\)\['a'\] is of type object"):
        f.job(1, y={"a": object()})
    with pytest.raises(UserError, match="argument `x` of `f`"):
        f.job({1, 2})


def test_the_decorator_needs_its_parentheses_and_keeps_the_face_of_the_function() -> None:
    with pytest.raises(UserError, match="with parentheses"):
        tpujob.function(cell("def f(): pass")["f"])
    f = of("def f(x: int, *, y=1) -> int:\n    'Doc.'\n    return x + y")
    assert (getattr(f, "__name__", ""), f.__doc__, list(inspect.signature(f).parameters)) == ("f", "Doc.", ["x", "y"])
    assert repr(f) == "<tpujob.function f on v5e-8>"
    with pytest.raises(UserError, match="`f` is a RemoteFunction"):
        tpujob.function()(f)


def test_it_can_be_called_here_and_in_a_job_a_call_is_one_here(monkeypatch: pytest.MonkeyPatch) -> None:
    f = of("def f(x): return (x, 2)")
    assert f.local(1) == (1, 2)
    monkeypatch.setenv("TPUJOB_RUN", "abc")
    assert f(1) == (1, 2)


def test_the_job_of_a_call_has_the_globals_of_that_moment() -> None:
    made = cell("def f(): return LR", LR=0.1)
    f = tpujob.function("v5e-8")(made["f"])

    def carried() -> Any:
        train = spec_of(f.job()).train
        assert train is not None and train.options is not None
        return json.loads(str(train.options["call"]))["globals"]

    assert carried() == {"LR": 0.1}
    made["LR"] = 0.2
    assert carried() == {"LR": 0.2}


# -- on a worker -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "args", "kwargs", "value"), [
    ("def f(): pass", (), {}, None), ("def f(x, y=LR, *, z=(1, 2)): return x, y, z", (1,), {}, [1, 0.1, [1, 2]]),
    ("def f(x, y=LR, *, z=(1, 2)): return x, y, z", ((1, 2), 2), {"z": {"a": None}}, [[1, 2], 2, {"a": None}]),
    ("def f(*a, b, **c): return a, b, c", (1, 2), {"b": 3, "d": 4}, [[1, 2], 3, {"d": 4}]),
    ("def f(x, /, *, y): return x - y", (1,), {"y": 2}, -1),
    ("def f(n=3): return 1 if n < 2 else n * f(n - 1)", (), {}, 6),
    ("def f(x: LR = LR) -> LR:\n    y: LR = x\n    return y", (), {}, 0.1),
    ("if True:\n    def f():\n        return '''a\nb'''", (), {}, "a\nb"),
    ("def f():\n    return '\u200b\u00fc\x0c'", (), {}, "\u200bü\x0c"),
    ("def f():\n    import dataclasses\n    @dataclasses.dataclass\n    class A:\n        x: int\n    return A(1).x",
     (), {}, 1),
    ("def f():\n    import tpujob\n    return tpujob.function('v5e-8')(lambda: 3)()", (), {}, 3),
    ("@keep\n@keep\ndef f(): return 1", (), {}, 1),
    ("def f(x): return [x, '${params.lr}']", ("\\${env:A} ${", ), {}, ["\\${env:A} ${", "${params.lr}"]),
    ("def f():\n    def g(): return LR\n    return g(), LR, [LR for _ in '1']", (), {}, [0.1, 0.1, [0.1]]),
])  # fmt: skip
def test_what_the_client_writes_is_what_the_payload_calls(
    worker: Any, text: str, args: Any, kwargs: Any, value: Any
) -> None:
    f = of(text, LR=0.1, keep=lambda f: f)
    _, found = worker(f.job(*args, **kwargs))
    assert found == {"schema": 1, "value": value}


def test_a_function_of_a_module_is_imported_there_with_a_tpujob_that_decorates_nothing(
    worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
import tpujob
from tpujob import Client, PayloadFailed
client = Client("emulated")
@tpujob.function("v5e-8", env={"A": "b"})
def helper(x): return x + 1
@tpujob.function("v5e-8")
def f(x):
    try:
        return helper(x)
    except PayloadFailed:
        raise
"""
    f = module(tmp_path, monkeypatch, "mine_there.py", text).f
    job = f.job(1)
    monkeypatch.delitem(sys.modules, "mine_there")  # as in another process
    assert worker(job)[1]["value"] == 2


def test_the_numbers_of_a_result_are_metrics(worker: Any, tmp_path: Path) -> None:
    metrics, _ = worker(of("def f(): return {'loss': 0.5, 'n': 2, 'ok': True, 'name': 'x', 'all': [1]}").job())
    assert metrics == {"loss": 0.5, "n": 2}
    assert (tmp_path / "artifacts" / "metrics.jsonl").read_text() == '{"loss": 0.5, "n": 2}\n'
    assert worker(of("def f(): return 0.25").job())[0] == {"value": 0.25}
    assert worker(of("def f(): return [1]").job())[0] == {}


def test_only_process_0_leaves_a_result_and_needs_one_that_json_carries(worker: Any) -> None:
    assert worker(of("def f(): return object()").job(), rank=1) == ({}, {})


def test_backend_and_run_are_given_to_parameters_that_wait_for_them(worker: Any) -> None:
    text = "def f(x, backend=None, run=None): return [x, backend and backend.name, run is not None]"
    xla = tpujob.function(backend="xla")(cell(text)["f"])
    backend = SimpleNamespace(rank=0, name="xla:cpu")
    assert worker(xla.job(1), backend)[1]["value"] == [1, "xla:cpu", True]
    assert worker(xla.job(1, run=3), backend)[1]["value"] == [1, "xla:cpu", True]
    assert worker(of(text).job(1))[1]["value"] == [1, None, True]
    other = tpujob.function(backend="xla")(cell("def f(run='mine'): return run")["f"])
    assert worker(other.job(), backend)[1]["value"] == "mine"


def test_an_exception_is_left_as_text_with_the_lines_of_the_notebook(worker: Any, tmp_path: Path) -> None:
    f = of("\n\n@keep\ndef f(x):\n    import json\n    y = 1\n    return json.loads(x)", keep=lambda f: f)
    with pytest.raises(ValueError, match="Expecting value"):
        worker(f.job("no"))
    found = error(tmp_path)
    assert (found["type"], found["line"]) == ("json.decoder.JSONDecodeError", 7)
    assert found["file"] == "<notebook>"
    assert found["traceback"].startswith(
        f'Traceback (most recent call last):\n  File "{found["file"]}", line 7, in f\n'
    )
    assert "    return json.loads(x)\n" in found["traceback"]


@pytest.mark.parametrize(("body", "kind", "words"), [
    ("return {'a': {1}}", "TypeError", "the result['a'] is a builtins.set, which JSON cannot carry"),
    ("return float('nan')", "ValueError", "the result is nan"),
    ("return [10**5000]", "ValueError", "the result[0] has more than 4,000 digits, which JSON cannot carry; return hex(…)"),
    ("return 'x' * 11_000_000", "ValueError", "the result has 11.0 MB as JSON"),
    ("raise SystemExit(3)", "SystemExit", "3"),
    ("class E(Exception):\n        def __str__(self): return 1 / 0\n    raise E", "tpujob_function.f.<locals>.E", ""),
    ("raise ValueError('x' * 100_000)", "ValueError", "x" * 4000),
])  # fmt: skip
def test_a_result_that_cannot_travel_and_a_strange_exception_are_errors_too(
    worker: Any, tmp_path: Path, body: str, kind: str, words: str
) -> None:
    with pytest.raises(BaseException) as raised:
        worker(of(f"def f():\n    {body}").job())
    assert not isinstance(raised.value, AssertionError)
    found = error(tmp_path)
    assert found["type"] == kind and found["message"].startswith(words) and len(json.dumps(found)) < 100_000
    assert not (tmp_path / "artifacts" / "function-result.json").exists()


def test_the_first_process_of_a_worker_names_the_error(worker: Any, tmp_path: Path) -> None:
    for word in ("first", "second"):
        with pytest.raises(ValueError, match=word):
            worker(of(f"def f(): raise ValueError('{word}')").job())
    assert error(tmp_path)["message"] == "first"
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == ["function-error.json"]


def fit(lr: float, width: int = 1, *, layers: tuple[int, ...] = (), note: str = "") -> None: ...


def sweep_of(grid: Any, parallel: int = 1, name: str = "") -> Sweep:
    f = tpujob.function(name=name)(cell("def fit(lr, width=1, *, layers=(), note=''): pass")["fit"])
    calls = calls_of(grid)
    columns = [columns_of(inspect.signature(fit), call) for call in calls]
    return sweep_of_calls([f.job(*args, **kwargs) for args, kwargs in calls], columns, parallel)


def test_every_call_is_a_variant_whose_single_arguments_are_columns() -> None:
    sweep = sweep_of([(1e-4,), {"lr": 0.5, "layers": [1, 2], "note": "x"}, (True, 2)], parallel=2)
    assert (sweep.name, sweep.parallel) == ("fit", 2)
    assert [(each.number, each.name, each.label) for each in sweep.variants] == [
        (1, "fit-1", "lr=1e-4"),
        (2, "fit-2", "lr=0.5 note=x"),
        (3, "fit-3", "lr=true width=2"),
    ]
    assert dict(sweep.variants[1].params) == {"lr": 0.5, "note": "x"} == dict(sweep.variants[1].spec.params)
    call = json.loads(sweep.variants[1].spec.train.options["call"])  # type: ignore[union-attr, index]
    assert (call["args"], call["kwargs"]) == ([0.5], {"layers": [1, 2], "note": "x"})


def test_a_label_that_is_long_or_not_the_only_one_is_a_number() -> None:
    sweep = sweep_of([{"lr": 1}, {"lr": 1}, {"lr": 1, "note": "x" * 80}, {"lr": 1, "note": "a\nb"}, {"lr": 2}])
    assert [each.label for each in sweep.variants] == ["lr=1", "#2", "#3", "#4", "lr=2"]


def test_the_same_arguments_in_order_or_by_name_are_the_same_call() -> None:
    first, second = sweep_of([(1, 2), {"width": 2, "lr": 1}]).variants
    assert first.spec.train == second.spec.train


def test_a_long_name_leaves_room_for_the_numbers() -> None:
    sweep = sweep_of([(1,)] * 12, name="x" * 40)
    assert {len(each.name) for each in sweep.variants} == {39, 40} and sweep.variants[11].name.endswith("x-12")


@pytest.mark.parametrize(("grid", "parallel", "words"), [
    ([(1,)], 0, "parallel=0: a number of slices from 1 to 64"), ([(1,)], 65, "parallel=65"),
    ([(n,) for n in range(201)], 1, "the grid has 201 calls, and 200 are the most"),
    ([({1},)], 1, "argument `lr` of `fit`"),
])  # fmt: skip
def test_a_grid_that_cannot_run_is_refused(grid: Any, parallel: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        sweep_of(grid, parallel)
    with pytest.raises(TypeError, match="missing a required argument: 'lr'"):
        sweep_of([{}])


# -- what comes back ---------------------------------------------------------------------------------------------------


def ended(directory: Path, number: int, state: str, why: TpujobError | None = None, **left: Any) -> VariantResult:
    artifacts = directory / str(number) / "worker0" / "artifacts"
    artifacts.mkdir(parents=True)
    for name, content in left.items():
        (artifacts / f"function-{name}.json").write_text(json.dumps({"schema": 1, **content}))
    result = RunResult(f"run{number}", "fit", state, 0, directory / str(number), 0.0, 1.0, error=why)
    return VariantResult(number, f"lr={number}", f"fit-{number}", {}, state, result.run, 0, result=result)


def values(*variants: VariantResult, **more: bool) -> list[Any]:
    result = SweepResult("abc", "fit", variants, 1)
    return values_of(result, lambda text: text, return_exceptions=more.get("return_exceptions", True))


def test_values_and_errors_are_in_the_places_of_their_calls(tmp_path: Path) -> None:
    failure = PayloadFailed("the job failed on worker0 with code 1", rc=1)
    found = values(
        ended(tmp_path, 1, "succeeded", result={"value": [1]}),
        ended(tmp_path, 2, "failed", failure, error={"type": "ValueError", "message": "no"}),
        ended(tmp_path, 3, "failed", failure),
        ended(tmp_path, 4, "error", CapacityError("none")),
        ended(tmp_path, 5, "succeeded"),
        VariantResult(6, "lr=6", "fit-6", {}, "error", exit_code=64),
    )
    assert found[0] == [1]
    kinds = [RemoteFunctionError, PayloadFailed, CapacityError, ArtifactError, TpujobError]
    assert [type(each) for each in found[1:]] == kinds
    assert (found[1].message, found[1].result.run) == ("ValueError: no (worker0)", "run2")
    assert (found[5].message, found[5].exit_code) == ("lr=6 was not run", 64)


def test_without_return_exceptions_the_first_error_is_raised_and_names_the_others(tmp_path: Path) -> None:
    good = ended(tmp_path, 1, "succeeded", result={"value": 1})
    bad = [ended(tmp_path, number, "error", CapacityError(f"none {number}")) for number in range(2, 10)]
    assert values(good, return_exceptions=False) == [1]
    with pytest.raises(CapacityError, match="none 2") as raised:
        values(good, *bad, return_exceptions=False)
    (note,) = raised.value.__notes__
    assert note.startswith(
        "8 of 9 calls failed: lr=2, lr=3, lr=4, lr=5, lr=6 and 3 more; what the others returned is kept"
    )


def test_a_mapping_of_lists_is_every_combination_the_last_name_changing_fastest() -> None:
    found = calls_of({"lr": (1, 2), "width": range(2)})
    assert found == [((), {"lr": lr, "width": width}) for lr in (1, 2) for width in (0, 1)]


def test_a_list_has_one_call_in_each_item() -> None:
    assert calls_of([{"lr": 1}, (2, 3), {}]) == [((), {"lr": 1}), ((2, 3), {}), ((), {})]
    assert calls_of((i,) for i in range(2)) == [((0,), {}), ((1,), {})]


@pytest.mark.parametrize(("grid", "words"), [
    ([], "the grid is empty"), ({}, "the grid is empty"), ({"lr": []}, "the grid is empty"),
    ({"lr": 1}, r"grid\['lr'\] is not a list of values"),
    ({"lr": "abc"}, r"grid\['lr'\] is not a list of values"),
    ([{"lr": 1}, 2], r"grid\[1\] is neither a dict of arguments nor a tuple"), ([[1]], r"grid\[0\] is neither"),
])  # fmt: skip
def test_anything_else_is_refused_with_an_example(grid: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as raised:
        calls_of(grid)
    assert "write {'lr': [1e-4, 3e-4]}" in (raised.value.hint or "")
