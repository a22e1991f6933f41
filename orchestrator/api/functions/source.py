"""How a function travels, found when it is decorated: with the directory of its module, or as its own source.

A function of a script or notebook travels as its source. There its body sees builtins, its arguments, what it imports itself,
and copies of the globals that JSON carries exactly; so any other name is refused here, and not minutes later on a TPU.
"""

import __future__

import ast
import builtins
import dis
import inspect
import io
import os
import re
import sys
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from orchestrator.api.functions.values import EXACT, as_json, kind_of
from orchestrator.errors import UserError
from orchestrator.text import redaction
from orchestrator.text.scripts import VM_PYTHON

NOTEBOOK = "<notebook>"  # whose cells have files of names that change with each kernel
MAINS = ("__main__", "__mp_main__")
VOCABULARY_CHARS = 16
WHY = "a function of a script or notebook travels as its own source"


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """Where the worker finds a function: `module` in the directory `root`, or its `source`. `file` is for messages."""

    name: str
    file: str
    line: int  # of `def`, from 1
    module: str | None = None
    root: Path | None = None
    source: str | None = None
    defaults: tuple[Any, ...] = ()  # of a source, as JSON values
    kwdefaults: dict[str, Any] | None = None
    global_names: tuple[str, ...] = ()  # of a source: which it reads; each call takes their values along

    def __str__(self) -> str:
        return f"`{self.name}` ({self.file}:{self.line})"


def examine(function: object, python: str | None = None) -> FunctionSource:
    """Return how the function travels to a worker with this Python; None: that of a TPU VM.

    Raises UserError, with the reason and a fix, for what cannot travel.
    """
    fn = _plain_function(function)
    code = fn.__code__
    place = FunctionSource(fn.__name__, _label(code.co_filename), code.co_firstlineno)
    module = sys.modules.get(fn.__module__)
    file = getattr(module, "__file__", None)
    if fn.__module__ in MAINS or "<locals>" in fn.__qualname__ or file is None:
        found = _as_source(fn, place)
        _check_syntax(found, python or VM_PYTHON)
        return found
    return FunctionSource(place.name, place.file, place.line, fn.__module__, _import_root(fn, Path(file), place))


def check_module(function: FunctionType, place: FunctionSource, code: Path | None) -> None:
    """Raise UserError unless the worker finds this very function in its module, below the directory that is shipped."""
    assert place.module is not None
    found = getattr(sys.modules.get(place.module), place.name, None)
    if not callable(found) or inspect.unwrap(found) is not inspect.unwrap(function):
        raise UserError(
            f"{place}: `{place.module}.{place.name}` is not this function, and the worker calls it by that name"
        )
    if code is not None and place.root is not None and code.resolve() != place.root:
        raise UserError(
            f"{place}: the worker imports `{place.module}` from {place.root}, and code= names {code}",
            hint=f"leave code= out, or import the module from {code} here, too",
        )


def _plain_function(function: object) -> FunctionType:
    """Return a function made by a `def` at the top of a module, or inside of another function."""
    name = getattr(function, "__name__", type(function).__name__)
    if not isinstance(function, FunctionType):
        raise UserError(
            f"`{name}` is a {type(function).__name__}; what runs on a TPU is a function, written with `def`"
        )
    if function.__name__ == "<lambda>":
        raise UserError("a lambda cannot be found by its name on a worker; write it with `def`")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise UserError(f"`{name}` is async; write a plain `def`, and call asyncio.run inside")
    if inspect.isgeneratorfunction(function):
        raise UserError(f"`{name}` is a generator; return a list, or write to files in $TPUJOB_ARTIFACTS")
    *outer, _ = function.__qualname__.split(".")
    if outer and outer[-1] != "<locals>":
        raise UserError(f"`{function.__qualname__}` is a method; write a function that makes the object and calls it")
    return function


def _label(file: str) -> str:
    """Return what messages and tracebacks call the file. It is the same on every machine and in every kernel."""
    path = Path(file)
    return NOTEBOOK if path.parent.name.startswith("ipykernel_") or file.startswith("<ipython") else path.name


# -- with its module ---------------------------------------------------------------------------------------------------


def _import_root(fn: FunctionType, file: Path, place: FunctionSource) -> Path:
    """Return the directory from which the function's module is imported. Raises UserError if it is not the user's own."""
    parts = fn.__module__.split(".")
    path = file.resolve()
    levels = len(parts) + (path.stem == "__init__")
    root = path.parents[levels - 1] if len(path.parents) >= levels else path.parent
    if path not in (root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py")):
        raise UserError(
            f"{place}: its module `{fn.__module__}` is in {file}, which cannot be imported by that name",
            hint="put the function into a module of its own",
        )
    installed = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    if any(root.is_relative_to(Path(each).resolve()) for each in installed) or "site-packages" in root.parts:
        raise UserError(
            f"{place}: `{parts[0]}` is an installed package, and only your own modules are shipped",
            hint="write a function of your own that imports it, and name the package in requirements=",
        )
    return root


# -- as its own source -------------------------------------------------------------------------------------------------


def _as_source(fn: FunctionType, place: FunctionSource) -> FunctionSource:
    if hasattr(fn, "__wrapped__"):
        raise UserError(
            f"{place} is wrapped by another decorator, which does not travel with its source: {WHY}",
            hint="remove the other decorator, or move the function into a module",
        )
    try:
        lines, first = inspect.getsourcelines(fn)
        text = "".join(lines)
        node, offset = _definition(text)
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        raise UserError(
            f"{place} has no source that could be read: {WHY}",
            hint="write it in a file or a notebook; text of `python -c`, of exec, and of some consoles is not kept",
        ) from None
    try:
        code = _compiled(node)
    except SyntaxError as error:  # such as `nonlocal` for a variable of a function around it
        raise UserError(
            f"{place} uses what is outside of it: {error.msg}; {WHY}", hint="pass it as an argument"
        ) from None
    if (code.co_name, inspect.getargs(code)) != (fn.__code__.co_name, inspect.getargs(fn.__code__)):
        raise UserError(
            f"{place}: its file has changed since it was read", hint="start the script again, or run the cell again"
        )
    last = node.end_lineno
    assert last is not None
    source = "".join(io.StringIO(text).readlines()[node.lineno - offset - 1 : last - offset])
    found = FunctionSource(
        place.name,
        place.file,
        max(first, 1) + node.lineno - offset - 1,
        source=source,
        defaults=tuple(as_json(fn.__defaults__ or (), f"{place}: defaults")),
        kwdefaults=as_json(fn.__kwdefaults__ or None, f"{place}: defaults"),
    )
    outside = outside_names(code, fn)
    carried = tuple(name for name in outside if _is_carried(fn, name))
    if left := [name for name in outside if name not in carried]:
        said = ", ".join(_named(fn, name) for name in left)
        raise UserError(f"{found} uses what is outside of it: {said}; {WHY}", hint=advice(fn, left))
    found = replace(found, global_names=carried)
    globals_of(fn, found)  # what is secret is refused at once, too
    return found


def globals_of(fn: FunctionType, place: FunctionSource) -> dict[str, Any]:
    """Return the values that the globals of a source have now. Raises UserError for one that cannot travel any more."""
    found, seen = {}, set[int]()
    secrets = redaction.Redactor(value for name, value in os.environ.items() if redaction.is_secret_name(name))
    for name in place.global_names:
        where = f"global `{name}` of {place}"
        if name not in fn.__globals__:
            raise UserError(f"{where} is not defined any more", hint=f"define {name} again before the call")
        found[name] = as_json(fn.__globals__[name], where, seen)
        if secrets.hide_all(found[name]) != found[name] or _is_secret(name, found[name]):
            raise UserError(
                f"{where} looks like a secret, and what travels is kept with the run",
                hint='export it, write env={"NAME": "${env:NAME}"}, and read os.environ["NAME"] inside of the function',
            )
    return found


def _is_secret(name: str, value: object) -> bool:
    """Return whether a text in the value is a secret by its name. A short one that is called a token is of a vocabulary."""
    if isinstance(value, dict):
        return any(_is_secret(key, each) for key, each in value.items())
    if isinstance(value, list):
        return any(_is_secret(name, each) for each in value)
    least = VOCABULARY_CHARS if name.upper().endswith("TOKEN") else 1
    return isinstance(value, str) and len(value) >= least and redaction.is_secret_name(name)


def _is_carried(fn: FunctionType, name: str) -> bool:
    """Return whether this name is a global that the function only reads, of a type that JSON carries.

    Those of the script itself, such as `__file__`, are about this machine.
    """
    if name in fn.__code__.co_freevars or name in _globals(fn.__code__, _WRITES) or name[:2] == name[-2:] == "__":
        return False
    return type(fn.__globals__.get(name, _ABSENT)) in EXACT


def _check_syntax(place: FunctionSource, version: str) -> None:
    """Raise UserError for syntax that the Python of the worker does not have, as far as this Python can tell."""
    assert place.source is not None
    found = re.fullmatch(r"(\d)\.(\d{1,2})", version)
    try:
        _definition(place.source, (int(found[1]), int(found[2])) if found else None)  # the job refuses any other text
    except SyntaxError as error:
        raise UserError(
            f"{place} is not written for Python {version}, which the worker has: {error.msg}",
            hint="python= of tpujob.function asks for a newer one",
        ) from None


def _definition(text: str, version: tuple[int, int] | None = None) -> tuple[ast.FunctionDef, int]:
    """Return the function in the text, which may be indented, and how many lines its numbers are too high."""
    indented = text[:1].isspace()
    statement = ast.parse(f"if True:\n{text}" if indented else text, feature_version=version).body[0]
    node = statement.body[0] if isinstance(statement, ast.If) else statement
    if not isinstance(node, ast.FunctionDef):
        raise SyntaxError("not the definition of a function")
    return node, int(indented)


def _compiled(node: ast.FunctionDef) -> CodeType:
    """Return the code of the function as the worker compiles it: annotations and defaults are not evaluated."""
    node.decorator_list = []
    node.args.defaults = [ast.copy_location(ast.Constant(None), each) for each in node.args.defaults]
    node.args.kw_defaults = [each and ast.copy_location(ast.Constant(None), each) for each in node.args.kw_defaults]
    postponed = __future__.annotations.compiler_flag
    module = compile(ast.Module([node], []), "<function>", "exec", flags=postponed, dont_inherit=True)
    return next(each for each in module.co_consts if isinstance(each, CodeType))


# The names that a function uses and does not define: globals, and variables of functions around it.

_WRITES = {"STORE_GLOBAL", "DELETE_GLOBAL"}
_USES = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"} | _WRITES
_ABSENT = object()


def outside_names(code: CodeType, fn: FunctionType) -> list[str]:
    """Return the names of `code`, compiled as if at the top of a module, that are neither builtins nor `fn` itself."""
    own = {fn.__name__, "__name__"}
    around = {*fn.__globals__, *fn.__code__.co_freevars}  # hide a builtin of the same name
    found = (name for name in dict.fromkeys(_globals(code)) if name not in own)
    return [name for name in found if name in around or not hasattr(builtins, name)]


def advice(fn: FunctionType, names: Iterable[str]) -> str:
    """Return what to do about each of these names."""
    fixes: dict[str, list[str]] = {}
    for name in names:
        value, what = _value(fn, name), name
        if line := _import_line(name, value):
            what, fix = f"`{line}`", "write {} inside of it"
        elif name == "__file__":
            fix = "write os.getcwd(), which has the files of code=, in place of {}"
        elif isinstance(value, type) or inspect.isroutine(value):
            fix = "define {} inside of it"
        elif isinstance(value, tuple | set | frozenset) and name in fn.__globals__:
            fix = "write {} as a list"
        elif value is _ABSENT or type(value) in EXACT:
            fix = "pass {} as an argument"
        else:
            fix = "make {} inside of it, or save it to a file that code= ships"
        fixes.setdefault(fix, []).append(what)
    said = ", ".join(fix.format(" and ".join(each)) for fix, each in fixes.items())
    return f"{said}; or move the function into a module, which travels with its directory"


def _named(fn: FunctionType, name: str) -> str:
    """Return the name, with the type of a value that JSON does not carry."""
    value = _value(fn, name)
    plain = value is _ABSENT or type(value) in EXACT or isinstance(value, type | ModuleType) or inspect.isroutine(value)
    return name if plain else f"{name} ({kind_of(value)})"


def _globals(code: CodeType, uses: Set[str] = _USES) -> Iterator[str]:
    own = set[str]()  # of a class body
    for each in dis.get_instructions(code):
        if each.opname == "STORE_NAME":
            own.add(each.argval)
        elif each.opname in uses and each.argval not in own:
            yield each.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals(constant, uses)


def _value(fn: FunctionType, name: str) -> object:
    if name in fn.__code__.co_freevars:
        try:
            return (fn.__closure__ or ())[fn.__code__.co_freevars.index(name)].cell_contents
        except ValueError:  # not assigned yet
            return _ABSENT
    return fn.__globals__.get(name, _ABSENT)


def _import_line(name: str, value: object) -> str | None:
    """Return the line that imports the value under this name; None for what no module has."""
    if isinstance(value, ModuleType):
        home, _, own = value.__name__.rpartition(".")
    else:
        home, own = (str(getattr(value, each, "")) for each in ("__module__", "__name__"))
        if home in ("__main__", "builtins", "", "None") or not own.isidentifier():
            return None
    return f"{f'from {home} ' if home else ''}import {own}" + ("" if own == name else f" as {name}")
