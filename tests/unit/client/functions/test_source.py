"""What travels, and how; what does not, and why. All of it is decided when a function is decorated."""

import functools
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.client.functions.source import examine
from orchestrator.errors import UserError
from tests.unit.client.functions.cells import cell

np = SimpleNamespace(ndarray=list)


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
    assert found.source is not None
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
    ("def f():\n    return LR, STEPS", "LR, STEPS", "pass LR, STEPS as an argument"),
    ("def f():\n    return helper()", "helper", "define helper inside of it"),
    ("def f():\n    global LR\n    LR = 1", "LR", "pass LR as an argument"),
    ("def f():\n    return [LR for _ in range(2)]", "LR", "pass LR as an argument"),
    ("def f():\n    def g():\n        return LR\n    return g()", "LR", "pass LR as an argument"),
    ("def f():\n    class A:\n        b = LR\n    return A", "LR", "pass LR as an argument"),
    ("def f():\n    return later_defined", "later_defined", "pass later_defined as an argument"),
    ("def f():\n    return max(1, 2)", "max", "define max inside of it"),  # the notebook's own `max`
    ("def g():\n    k = 3\n    def f():\n        return k\n    return f\nf = g()", "k", "pass k as an argument"),
    ("def f():\n    return np.pi * LR", "np, LR", "inside of it, pass LR as an argument; or move the function into"),
])  # fmt: skip
def test_a_name_from_outside_is_refused_with_what_to_write_instead(text: str, names: str, fix: str) -> None:
    import os.path
    import xml.etree

    around = {"np": math, "path": os.path, "etree": xml.etree, "root": math.sqrt, "LR": 0.1, "STEPS": 3}
    around |= cell("def helper(): pass\ndef max(a, b): pass")
    message, hint = refused(text, **around)
    assert f" uses what is outside of it: {names}; a function of a script or notebook travels as" in message
    assert fix in hint and hint.endswith("; or move the function into a module, which travels with its directory")


def test_a_default_is_a_json_value_which_may_come_from_anywhere() -> None:
    found = examine(cell("def f(a, b=LR, *, c=(1, LR), d=None): pass", LR=0.1)["f"])
    assert (found.defaults, found.kwdefaults) == ((0.1,), {"c": [1, 0.1], "d": None})
    message, _ = refused("def f(a=object()): pass")
    assert message.endswith("a default is of type object, which JSON cannot carry")


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
from orchestrator.client.functions.source import examine
LR = 0.1
def f(x):
    return x
print(examine(f).source)
def g():
    return LR
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
    assert "`g` (script.py:7) uses what is outside of it: LR;" in done.stdout
    done = run([sys.executable], input=PROGRAM)
    assert "has no source that could be read" in done.stderr
