"""What travels with a function, and what comes back: values by the rules of JSON, files that may lie, the log."""

import enum
import functools
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.api.functions import values
from orchestrator.api.functions.outcome import ERROR, MAX_RESULT_BYTES, RESULT, Printer, remote_error, value_of
from orchestrator.api.functions.source import examine, globals_of
from orchestrator.api.session.events import LogLines, Notice, RunResult, WorkerEnded, Workers
from orchestrator.errors import ArtifactError, PayloadFailed, RemoteFunctionError, UserError
from payload.functions import outcome
from tests.unit.api.functions.cells import cell

np = SimpleNamespace(ndarray=list)


class Color(enum.IntEnum):
    RED = 1


class Name(str, enum.Enum):  # noqa: UP042 - whose `str` is not its text
    A = "a"


def doubled(levels: int) -> list[Any]:
    """A list that has the next one twice, and so on."""
    found: list[Any] = []
    for _ in range(levels):
        found = [found, found]
    return found


def family() -> dict[str, Any]:
    """A tree whose children know their parent."""
    root: dict[str, Any] = {"children": []}
    root["children"] += [{"parent": root}, {"parent": root}]
    return root


def refused(text: str, name: str = "f", **around: Any) -> tuple[str, str]:
    """The message and the hint for a function of this cell."""
    with pytest.raises(UserError) as raised:
        examine(cell(text, **around)[name])
    return raised.value.message, raised.value.hint or ""


# -- as its own source -------------------------------------------------------------------------------------------------


def test_a_function_of_a_notebook_travels_as_its_own_text_without_what_stands_above_it() -> None:
    text = """
        def keep(decorated): return decorated

        @keep
        @keep
        def f(x):  # a comment
            '''Doc.
        text'''
            return (x,
                    "ü")

        other = 1
    """
    found = examine(cell(text)["f"])
    assert (found.module, found.root, found.name, found.line) == (None, None, "f", 6)
    assert found.source.splitlines()[0] == "def f(x):  # a comment" and found.source.endswith('"ü")\n')


def test_a_function_inside_of_another_travels_with_its_indentation_so_that_its_texts_stay_what_they_are() -> None:
    def outer() -> Any:
        def inner() -> str:
            return """a
    b"""

        return inner

    found = examine(outer())
    assert found.source is not None and found.source.startswith("        def inner() -> str:\n")
    assert '"""a\n    b"""' in found.source


@pytest.mark.parametrize("body", [
    "return sum(range(3)), print, len, ValueError, __name__", "import math\n    return math.pi",
    "from math import pi as p\n    return p",
    "return f(1)",  # itself
    "y = 1\n    def g():\n        nonlocal y\n        y += 1\n    g()\n    return [x + y for x in range(3)]",
    "class A:\n        b = 1\n        c = b + 1\n        def d(self):\n            return self.c\n    return A().d()",
    "def g(a: Unknown = 1) -> Unknown:\n        b: Unknown = a\n        return b\n    return g()",
    "try:\n        pass\n    except Exception as e:\n        return e", "return (lambda x: x + 1)(2)",
])  # fmt: skip
def test_builtins_itself_and_what_it_defines_are_no_names_from_outside(body: str) -> None:
    assert examine(cell(f"def f(x=1):\n    {body}\n")["f"]).source


def test_annotations_are_not_evaluated_on_a_worker_so_they_may_name_anything() -> None:
    text = "def f(x: np.ndarray, *, y: Array = 1) -> Array:\n    z: Array = x\n    return z\n"
    assert examine(cell(text, np=np, Array=np.ndarray)["f"]).source == text
    assert examine(cell(f"from __future__ import annotations\n{text}")["f"]).source == text


@pytest.mark.parametrize(("text", "names", "fix"), [
    ("def f():\n    return np.pi", "np", "write `import math as np` inside of it"),
    ("def f():\n    return path.sep", "path", "write `import posixpath as path` inside of it"),
    ("def f():\n    return etree.A", "etree", "write `from xml import etree` inside of it"),
    ("def f():\n    return root(2)", "root", "write `from math import sqrt as root` inside of it"),
    ("def f():\n    return helper()", "helper", "define helper inside of it"),
    ("def f():\n    global LR\n    LR = 1", "LR", "pass LR as an argument"),
    ("def f():\n    return later_defined", "later_defined", "pass later_defined as an argument"),
    ("def f():\n    return max(1, 2)", "max", "define max inside of it"),  # the notebook's own `max`
    ("def f():\n    return SIZES, LR, DAYS", "SIZES (tuple), DAYS (set)", "write SIZES and DAYS as a list"),
    ("def f():\n    return model", "model (tests.unit.api.functions.test_source.Scalar)",
     "make model inside of it, or save it to a file that code= ships"),
    ("def f():\n    return __file__", "__file__",
     "write os.getcwd(), which has the files of code=, in place of __file__; or move"),
    ("def f():\n    return __version__", "__version__", "pass __version__ as an argument"),  # `__spec__` and so on, too
    ("def f():\n    return np.pi, model, k, helper", "np, model (tests.unit.api.functions.test_source.Scalar), k, helper",
     "write `import math as np` inside of it, make model inside of it, or save it to a file that code= ships, pass k as an"),
    ("def g():\n    k = 3\n    def f():\n        return k\n    return f\nf = g()", "k", "pass k as an argument"),
])  # fmt: skip
def test_a_name_from_outside_is_refused_with_what_to_write_instead(text: str, names: str, fix: str) -> None:
    import os.path
    import xml.etree

    around: dict[str, Any] = {"np": math, "path": os.path, "etree": xml.etree, "root": math.sqrt, "LR": 0.1}
    around |= {"SIZES": (1, 2), "DAYS": {1}, "model": Scalar(), "__file__": "/mine/a.py", "__version__": "1"}
    around |= cell("def helper(): pass\ndef max(a, b): pass")
    message, hint = refused(text, **around)
    assert f" uses what is outside of it: {names}; a function of a script or notebook travels as" in message
    assert fix in hint and hint.endswith("; or move the function into a module, which travels with its directory")


PLAIN = {"LR": 0.1, "STEPS": 3, "NAMES": ["a", "ü\ud800"], "CONFIG": {"a": {"b": [True, None, -0.0, 10**30]}}}


@pytest.mark.parametrize(("body", "names"), [
    ("return LR, STEPS", ("LR", "STEPS")), ("return [LR for _ in range(2)]", ("LR",)), ("return max", ("max",)),
    ("def g():\n        return LR\n    return g()", ("LR",)), ("class A:\n        b = LR\n    return A", ("LR",)),
    ("return CONFIG, NAMES, len", ("CONFIG", "NAMES")), ("LR = 2\n    return LR", ()),
])  # fmt: skip
def test_globals_that_json_carries_exactly_travel_with_the_values_of_the_call(
    body: str, names: tuple[str, ...]
) -> None:
    made = cell(f"def f():\n    {body}\n", **PLAIN, max=2)
    found = examine(made["f"])
    assert found.global_names == names
    values_now = globals_of(made["f"], found)
    assert json.loads(json.dumps(values_now)) == {name: made[name] for name in names}
    made["LR"] = 5
    assert globals_of(made["f"], found).get("LR") == (5 if "LR" in names else None)


@pytest.mark.parametrize(("value", "why"), [
    ((1, 2), r"global `LR` of `f` \(<notebook>:1\) is of type tuple, which JSON does not carry as it is"),
    ([{1}], r"global `LR` of `f` \(<notebook>:1\)\[0\] is of type set"), (math.inf, "is inf, which JSON cannot carry"),
    ({"a": {1: 2}}, r"\['a'\] has a key of type int"), (Color.RED, "is of type .*Color"),
    ({Name.A: 1}, "has a key of type .*Name; the keys of a JSON object are plain text"),
    ([10**5000], r"\[0\] has more than 4,000 digits"), ({10**5000: 1}, "has a key of type int"),
])  # fmt: skip
def test_a_global_that_has_changed_into_what_json_does_not_carry_is_refused_at_the_call(value: Any, why: str) -> None:
    made = cell("def f(): return LR", LR=0.1)
    found = examine(made["f"])
    made["LR"] = value
    with pytest.raises(UserError, match=why):
        globals_of(made["f"], found)
    del made["LR"]
    with pytest.raises(UserError, match=r"global `LR` of `f` \(<notebook>:1\) is not defined any more"):
        globals_of(made["f"], found)


@pytest.mark.parametrize(("made", "where", "kind"), [
    (lambda: {"A": family()}, r"A`.*\['children'\]\[0\]\['parent'\]", "dict"),
    (lambda: {"A": doubled(60)}, r"A`.*\[1\]", "list"), (lambda: {"A": [[0] * 2] * 2}, r"A`.*\[1\]", "list"),
    (lambda: {"A": (each := [1]), "B": each}, "B`.*", "list"),
    (lambda: {"A": (each := {"x": 1}), "B": [each]}, r"B`.*\[0\]", "dict"),
])  # fmt: skip
def test_a_list_or_a_dict_that_is_in_two_places_is_refused_at_once_for_it_would_arrive_as_two(
    made: Callable[[], dict[str, Any]], where: str, kind: str
) -> None:
    message, hint = refused("def f(): return A, B", **{"B": 1, **made()})
    assert re.fullmatch(rf"global `{where} is a {kind} that is also in another place of these globals, .*", message)
    assert "inside of the function" in hint


def test_a_global_that_is_nested_too_deep_is_refused_with_what_to_do() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    message, hint = refused("def f(): return A", A=deep)
    assert message.endswith("[0] is nested more than 100 levels deep") and "code=" in hint


def test_a_global_that_is_a_secret_is_refused_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "open sesame 1234")
    shaped = "hf_" + "a" * 30
    for around in ({"X": "open sesame 1234"}, {"X": ["a", shaped]}, {"PASSWORD": "fe12"}, {"X": {"token": "fe12" * 4}}):
        (name,) = around
        message, hint = refused(f"def f(): return {name}", **around)
        assert message.startswith(f"global `{name}` of `f` (<notebook>:1) looks like a secret")
        assert not any(each in message + hint for each in ("sesame", shaped, "fe12")) and "${env:NAME}" in hint
    assert examine(cell("def f(): return EOS_TOKEN", EOS_TOKEN="</s>")["f"]).global_names == ("EOS_TOKEN",)


def test_a_variable_of_a_function_around_it_cannot_be_written_to() -> None:
    text = "def g():\n    k = 3\n    def f():\n        nonlocal k\n        k += 1\n    return f\nf = g()"
    message, hint = refused(text)
    assert (
        "uses what is outside of it: no binding for nonlocal 'k' found;" in message and hint == "pass it as an argument"
    )


def test_a_default_is_a_json_value_which_may_come_from_anywhere() -> None:
    found = examine(cell("def f(a, b=LR, *, c=(1, LR), d=None): pass", LR=0.1)["f"])
    assert (found.defaults, found.kwdefaults) == ((0.1,), {"c": [1, 0.1], "d": None})
    message, _ = refused("def f(a=object()): pass")
    assert message.endswith(": defaults[0] is of type object, which JSON cannot carry")
    message, _ = refused("def f(*, a=1, b={1: 2}): pass")
    assert message.endswith(": defaults['b'] has a key of type int; the keys of a JSON object are plain text")


@pytest.mark.parametrize(("text", "why"), [
    ("f = lambda: 1", "a lambda cannot be found by its name"),
    ("async def f(): pass", "`f` is async; write a plain `def`"), ("async def f(): yield", "`f` is async"),
    ("def f(): yield", "`f` is a generator"), ("class A:\n    def f(self): pass\nf = A.f", "`A.f` is a method"),
    ("class A:\n    def f(self): pass\nf = A().f", "`f` is a method; what runs on a TPU is a function"),
    ("class f: pass", "`f` is a type; what runs on a TPU is a function"),
    ("f = len", "`len` is a builtin_function_or_method"),
    ("import functools\nf = functools.partial(print)", "`partial` is a partial"), ("f = 3", "`int` is a int"),
    ("import functools\n@functools.lru_cache\ndef f(): pass", "`f` is a _lru_cache_wrapper"),
    ("import functools\ndef d(g):\n    @functools.wraps(g)\n    def w(): return g()\n    return w\n@d\ndef f(): pass",
     "is wrapped by another decorator"),
])  # fmt: skip
def test_what_is_no_plain_function_is_refused(text: str, why: str) -> None:
    assert why in refused(text)[0]


def test_a_function_without_a_source_is_refused() -> None:
    found: dict[str, Any] = {"__name__": "__main__"}
    exec("def f(): pass", found)
    with pytest.raises(UserError, match="has no source that could be read") as raised:
        examine(found["f"])
    assert "python -c" in (raised.value.hint or "")


def test_syntax_that_the_python_of_a_worker_lacks_is_refused() -> None:
    f = cell("def f():\n    try:\n        pass\n    except* ValueError:\n        pass\n")["f"]
    with pytest.raises(
        UserError, match=r"is not written for Python 3\.10, which the worker has: Exception groups"
    ) as raised:
        examine(f)
    assert "python=" in (raised.value.hint or "")
    assert examine(f, "3.11").source


def test_a_file_that_changed_since_is_noticed() -> None:
    import linecache

    f = cell("def f(x): return x\n")["f"]
    file = f.__code__.co_filename
    linecache.cache[file] = (9, None, ["def f(y): return 1\n"], file)
    with pytest.raises(UserError, match="its file has changed since it was read"):
        examine(f)


# -- with its module ---------------------------------------------------------------------------------------------------


def module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, text: str = "import math\ndef f(): return math"
) -> Any:
    """Write the module, and import it as programs do whose directory is `tmp_path`."""
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    name = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    monkeypatch.syspath_prepend(str(tmp_path))
    for each in [each for each in sys.modules if each == name or each.startswith(f"{name.partition('.')[0]}.")]:
        monkeypatch.delitem(sys.modules, each)
    return __import__(name, fromlist=["f"])


@pytest.mark.parametrize("path", ["mine_alone.py", "mine_pkg/sub/deep.py", "mine_init/__init__.py"])
def test_a_function_of_a_module_travels_with_the_directory_from_which_its_module_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    found = examine(module(tmp_path, monkeypatch, path).f)
    name = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    assert (found.root, found.module, found.source) == (tmp_path, name, None)


def test_a_function_that_is_wrapped_in_its_module_travels_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import functools\ndef d(g):\n @functools.wraps(g)\n def w(): return g()\n return w\n@d\ndef f(): pass\n"
    assert examine(module(tmp_path, monkeypatch, "mine_wrapped.py", text).f).module == "mine_wrapped"


def test_a_function_of_an_installed_package_is_refused() -> None:
    for each in (functools.update_wrapper, json.dumps, pytest.fixture):
        with pytest.raises(UserError, match="is an installed package, and only your own modules are shipped") as raised:
            examine(each)
        assert "requirements=" in (raised.value.hint or "")


def test_a_module_that_was_loaded_from_elsewhere_than_its_name_says_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = module(tmp_path, monkeypatch, "mine_moved.py")
    made.f.__module__ = "another.name"
    monkeypatch.setitem(sys.modules, "another.name", made)
    with pytest.raises(UserError, match="cannot be imported by that name"):
        examine(made.f)


# -- as programs meet it -----------------------------------------------------------------------------------------------

PROGRAM = """
from orchestrator.api.functions.source import examine
LR = 0.1
def f(x):
    return x
print(examine(f).source)
def g():
    return LR, examine
try:
    examine(g)
except Exception as error:
    print(error)
"""


def test_a_script_is_read_from_its_file_and_a_program_without_one_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    run = functools.partial(subprocess.run, capture_output=True, text=True, check=False)
    done = run([sys.executable, str(script)])
    assert done.stdout.startswith("def f(x):\n    return x\n"), done.stderr
    assert "`g` (script.py:7) uses what is outside of it: examine;" in done.stdout
    done = run([sys.executable], input=PROGRAM)
    assert "has no source that could be read" in done.stderr


BOTH = pytest.mark.parametrize(
    ("as_json", "refusal"),
    [(values.as_json, UserError), (outcome.as_json, (TypeError, ValueError))],
    ids=["arguments", "results"],
)
AsJson = Callable[[Any, str], Any]


class Scalar:
    """As one of numpy, torch or JAX."""

    ndim = 0

    def item(self) -> float:
        return 0.5


@BOTH
def test_plain_values_are_carried_and_tuples_become_lists(as_json: AsJson, refusal: Any) -> None:
    given = {"b": [True, "ü\ud800"], "c": {"d": ()}, "e": Color.RED, "f": Scalar(), Name.A: Name.A}
    found = as_json(given, "it")
    assert found == {"a": "a", "b": [True, "ü\ud800"], "c": {"d": []}, "e": 1, "f": 0.5}
    assert type(found["e"]) is int and found["b"][0] is True
    assert {type(each) for each in (*found, found["a"])} == {str}
    assert as_json((1, 2.5, None, -0.0, 10**3999), "it") == [1, 2.5, None, -0.0, 10**3999]


@BOTH
@pytest.mark.parametrize(("value", "words"), [
    (math.nan, "it is nan, which JSON cannot carry"), ({"a": [1, math.inf]}, r"it\['a'\]\[1\] is inf"),
    ({1: 2}, "it has a key of type .*int; the keys of a JSON object are plain text"), ({1, 2}, "set"), (b"x", "bytes"),
    (Path("x"), "Path"), ([object()], r"it\[0\] is .*object"), ([-(10**5000)], r"it\[0\] has more than 4,000 digits"),
])  # fmt: skip
def test_what_json_does_not_carry_is_refused_with_its_place(
    as_json: AsJson, refusal: Any, value: Any, words: str
) -> None:
    with pytest.raises(refusal, match=words):
        as_json(value, "it")


@BOTH
def test_a_value_that_holds_itself_is_refused(as_json: AsJson, refusal: Any) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(refusal, match="more than 100 levels deep"):
        as_json(endless, "it")


@BOTH
def test_a_small_value_of_which_json_makes_an_endless_one_is_refused(
    as_json: AsJson, refusal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome, "MAX_RESULT_BYTES", values.MAX_ARGUMENT_BYTES)
    assert len(as_json(doubled(3), "it")) == 2, "what is in it twice arrives as two"
    with pytest.raises(refusal, match="comes after more than 333,333 other values"):
        as_json(doubled(60), "it")


def test_arguments_and_results_have_a_size() -> None:
    with pytest.raises(UserError, match=r"the arguments and globals have 2\.0 MB as JSON, and 1 MB is the most"):
        values.json_text("x" * 2_000_000)
    with pytest.raises(ValueError, match=r"the result has 11\.0 MB as JSON, and 10 MB is the most; write it to a file"):
        outcome.content("x" * 11_000_000)


FAILED = PayloadFailed("the job failed on worker0 with code 1", rc=1, hint="`tpujob logs abc` prints it")
WHOLE = {"schema": 1, "type": "ValueError", "message": "no", "traceback": "T\n  x\n", "file": "/a/b.py", "line": 3}


def run(directory: Path) -> RunResult:
    return RunResult("abc", "fit", "failed", 1, directory, 0.0, 1.0)


def left(directory: Path, name: str, content: Any, worker: int = 0) -> RunResult:
    place = directory / f"worker{worker}" / "artifacts"
    place.mkdir(parents=True, exist_ok=True)
    (place / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return run(directory)


def error_of(result: RunResult) -> RemoteFunctionError | None:
    return remote_error(result, FAILED, lambda text: text.replace("sesame", "***"))


def test_the_value_is_what_the_worker_wrote_whichever_worker_has_process_0(tmp_path: Path) -> None:
    (tmp_path / "worker0").mkdir()
    (tmp_path / "workerx").mkdir()
    value = {"a": [1, 2.5, None, "ü"], "b": 10**30}
    assert value_of(left(tmp_path, RESULT, {"schema": 1, "value": value}, worker=2)) == value


@pytest.mark.parametrize("content", [
    b"", b"[]", b"{}", b'{"schema": 2, "value": 1}', b'{"schema": 1, "value": NaN}',
    b'{"schema": 1, "value": -Infinity}', b'{"schema": 1, "value": 1e999}',
    b'{"schema": 1, "value": ' + b"9" * 5000 + b"}", b'{"schema": 1, "value": "\xff"}',
    b'{"schema": 1, "value": 1} x', b"[" * 200_000,
    b'{"schema": 1, "value": "' + b"x" * MAX_RESULT_BYTES + b'"}',
    b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os",
], ids=lambda content: repr(content[:30]))  # fmt: skip
def test_what_is_no_result_of_a_function_is_an_error_of_the_artifacts(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"function-result\.json is not"):
        value_of(left(tmp_path, RESULT, content))


def test_a_run_without_a_value_says_so(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="run abc left no result of a function"):
        value_of(run(tmp_path))


def test_a_link_or_a_fifo_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"schema": 1, "value": "mine"}')
    result = left(tmp_path, "other", {})
    path = tmp_path / "worker0" / "artifacts" / RESULT
    path.symlink_to(secret)
    with pytest.raises(ArtifactError):
        value_of(result)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ArtifactError):
        value_of(result)


def test_a_remote_error_is_text_with_its_type_place_and_traceback(tmp_path: Path) -> None:
    error = error_of(left(tmp_path, ERROR, WHOLE, worker=1))
    assert isinstance(error, PayloadFailed) and error is not None
    assert error.message == "ValueError: no (b.py:3, worker1)"
    assert (error.type_name, error.file, error.line, error.worker) == ("ValueError", "/a/b.py", 3, 1)
    assert (error.traceback, error.rc, error.hint) == ("T\n  x", 1, FAILED.hint)
    assert error.__notes__ == [f"hint: {FAILED.hint}", "the traceback on worker1:\nT\n  x"]


def test_the_first_worker_with_an_error_counts_and_a_broken_file_does_not(tmp_path: Path) -> None:
    left(tmp_path, ERROR, b'{"schema": 1, "ty', worker=0)
    left(tmp_path, ERROR, {**WHOLE, "message": "two"}, worker=10)
    error = error_of(left(tmp_path, ERROR, {**WHOLE, "message": "one"}, worker=2))
    assert error is not None and error.message.startswith("ValueError: one")
    assert error_of(run(tmp_path / "none")) is None


def test_hostile_text_is_inert(tmp_path: Path) -> None:
    evil = "\x1b]52;c;eA==\x07\x1b[2J\u202e sesame"
    found = {
        "type": f"Value{evil}", "message": f"{evil}\nsecond", "traceback": f"{evil}\n" * 5000, "file": evil,
        "line": -1,
    }  # fmt: skip
    error = error_of(left(tmp_path, ERROR, {"schema": 1, **found}))
    for text in (error.message, error.traceback, error.file, error.type_name, *error.__notes__):
        assert not {"\x1b", "\x07", "\u202e"} & set(text) and "sesame" not in text
    assert (error.type_name, error.line) == ("Exception", None) and "\n" not in error.message
    assert len(error.traceback) < 100_000


@pytest.mark.parametrize(
    "found", [{}, {"type": 1, "message": [], "traceback": {}, "file": None, "line": True}, {"line": 1 << 40}]
)
def test_an_error_of_another_shape_is_still_an_error(tmp_path: Path, found: Any) -> None:
    error = error_of(left(tmp_path, ERROR, {"schema": 1, **found}))
    assert error is not None and error.message == "Exception (worker0)" and error.line is None


def test_a_package_that_is_missing_there_is_named_with_the_way_to_install_it(tmp_path: Path) -> None:
    found = {"type": "ModuleNotFoundError", "message": "No module named 'jax'", "traceback": ""}
    error = error_of(left(tmp_path, ERROR, {**WHOLE, **found}))
    assert error is not None and "requirements=" in (error.hint or "") and len(error.__notes__) == 1


def test_a_call_on_many_workers_prints_the_log_of_worker0_and_the_end_of_one_that_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show = Printer()
    show(Workers(16, Path("/runs/x/logs")))
    for worker in range(16):
        show(LogLines(worker, (f"step {worker}",)))
    show(WorkerEnded("main", 5, 1))
    show(Notice("released", "absent"))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "logs     showing worker0; the logs of the other 15 are in /runs/x/logs",
        "worker0 | step 0",
        "failed   worker5 ended with 1; the end of its log (/runs/x/logs/worker5.log):",
        "worker5 | step 5",
        "released absent",
    ]
