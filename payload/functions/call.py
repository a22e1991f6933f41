"""The `entry` that calls a function of the Python API: `@tpujob.function` and `Client.call`.

The option `call` is the call as JSON text. A function of a module is imported from `code:`; one of a script or notebook
comes as its source, which defines nothing else, with the values of the globals that it reads.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import json
import linecache
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from payload import artifacts
from payload.failures import PeerLost, TrainingInterrupted
from payload.functions import outcome, stand_in
from payload.launch.entry import own_frames

MODULE = "tpujob_function"  # in which a function that came as its source is defined


def main(backend: Any, run: Any) -> dict[str, Any]:
    """Call the function on this process, and return the numbers of its result, as metrics.

    Process 0 writes the result. The first process of a worker in which the function raises writes the error.
    """
    call = json.loads(run.options["call"])
    offered = {"backend": backend, "run": run}
    given = {name: offered[name] for name in call["given"]}
    is_first = (run if backend is None else backend).rank == 0
    stand_in.install()
    file = call["file"]
    try:
        function = _function(call)
        if call["module"] is not None:
            file = str(sys.modules[call["module"]].__file__)
        value = function(*call["args"], **call["kwargs"], **given)
        plain = outcome.as_json(value, "the result") if is_first else None
        content = outcome.content({"schema": 1, "value": plain}) if is_first else b""
    except (PeerLost, TrainingInterrupted):
        raise  # a consequence of what happened elsewhere
    except BaseException as error:
        outcome.write_error(run.artifacts, error.with_traceback(own_frames(error.__traceback__)), file)
        raise
    if is_first:
        artifacts.write_whole(run.artifacts / artifacts.RESULT, lambda file: file.write(content))
    found = outcome.numbers(plain)
    if found:
        with (run.artifacts / artifacts.METRICS).open("a", encoding="utf-8") as metrics:
            metrics.write(json.dumps(found) + "\n")
    return found


def _function(call: dict[str, Any]) -> Callable[..., Any]:
    if call["module"] is not None:
        module = importlib.import_module(call["module"])
        return getattr(module, call["name"])
    return _defined(call)


def _defined(call: dict[str, Any]) -> Callable[..., Any]:
    """Return the function of this source. Nothing outside of its body is evaluated: neither annotations nor defaults."""
    source, line = call["source"], call["line"]
    indented = source[
        :1
    ].isspace()  # inside of a function or an `if`; its text stays as it is, for strings of several lines
    tree = ast.parse(f"if True:\n{source}" if indented else source)
    ast.increment_lineno(tree, line - (2 if indented else 1))
    statement = tree.body[0]
    node = statement.body[0] if isinstance(statement, ast.If) else statement
    assert isinstance(node, ast.FunctionDef)
    node.decorator_list = []
    node.args.defaults = [ast.copy_location(ast.Constant(None), each) for each in node.args.defaults]
    node.args.kw_defaults = [each and ast.copy_location(ast.Constant(None), each) for each in node.args.kw_defaults]
    lines = ["\n"] * (line - 1) + [f"{text}\n" for text in source.split("\n")]
    linecache.cache[call["file"]] = (len(source), None, lines, call["file"])  # for tracebacks
    postponed = __future__.annotations.compiler_flag
    code = compile(ast.Module([node], []), call["file"], "exec", flags=postponed, dont_inherit=True)
    module = sys.modules[MODULE] = ModuleType(MODULE)
    vars(module).update(call.get("globals", {}))  # a run that goes on may have none
    exec(code, vars(module))  # noqa: S102 - the user's own program
    function: Any = getattr(module, call["name"])
    function.__defaults__ = tuple(call["defaults"])
    function.__kwdefaults__ = call["kwdefaults"]
    return function
