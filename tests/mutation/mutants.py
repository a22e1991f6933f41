"""Make mutants: the changes of conditions, constants and calls that a module allows, and the module with one of them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from tests import ROOT

OTHER_ORDER = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
}
OTHER_SUM = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
OTHER_NAME = {"min": "max", "max": "min", "any": "all", "all": "any"}
COMPARING_CALLS = ("startswith", "endswith")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
WORDS = ("Report", "log", "print")  # calls and effects that only tell something
# Named arguments that are words, an assertion, or for a log that someone follows.
SAFEGUARDS = ("hint", "strict", "flush")
BOUNDARIES = {(ast.Lt, ast.LtE), (ast.LtE, ast.Lt), (ast.Gt, ast.GtE), (ast.GtE, ast.Gt)}
# Two times are equal for an instant of no length: `<` for `<=` is no other program there.
TIME = re.compile(r"now\b|Now\(|deadline|until|_(s|at|by)\b")


@dataclass(frozen=True)
class Mutant:
    """One change. `number` is its place among those of its module; `owner` the outermost function, "" for none."""

    module: str
    owner: str
    line: int
    end_line: int
    text: str  # of its line
    change: str
    number: int
    names: tuple[str, ...] = ()  # what the statement outside of functions defines

    @property
    def key(self) -> str:
        """What stays the same while other lines change."""
        return f"{self.module}:{self.owner}  {self.text}  {self.change}"


def path_of(module: str) -> Path:
    return ROOT / f"{module.replace('.', '/')}.py"


@cache
def mutants_of(module: str) -> tuple[Mutant, ...]:
    """Return all mutants of a module, in the order of its lines."""
    source = path_of(module).read_text(encoding="utf-8")
    return tuple(mutants_in(source, module))


def mutants_in(source: str, module: str) -> Iterator[Mutant]:
    lines, seen = source.splitlines(), Counter[tuple[str, str, str]]()
    for number, (old, new, owner, names, statement) in enumerate(_changes(ast.parse(source))):
        text, change = lines[old.lineno - 1].strip(), f"{_short(old)} → {_short(new)}"
        seen[owner, text, change] += 1
        if (same := seen[owner, text, change]) > 1:
            change += f" #{same}"
        first, last = min(statement, old.lineno), old.end_lineno
        if isinstance(old, ast.ExceptHandler):
            first, last = old.lineno, old.body[0].lineno
        yield Mutant(module, owner, first, last, text, change, number, names)


def _short(node: ast.AST) -> str:
    if isinstance(node, ast.ExceptHandler):
        return f"except: {'; '.join(ast.unparse(each) for each in node.body)}"[:70]
    return " ".join(ast.unparse(node).split())[:70] or "nothing"


def mutated(source: str, filename: str, number: int) -> CodeType:
    """Compile the source with its change of this number."""
    tree = ast.parse(source)
    old, new = _change(tree, number)

    class Put(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            return new if node is old else super().generic_visit(node)

    ast.copy_location(new, old)
    return compile(ast.fix_missing_locations(Put().visit(tree)), filename, "exec", dont_inherit=True)


def changed(source: str, number: int) -> str:
    """Return the source with its change of this number, and all else as it is written."""
    old, new = _change(ast.parse(source), number)
    lines = source.encode().splitlines(keepends=True)
    before = b"".join(lines[: old.lineno - 1]) + lines[old.lineno - 1][: old.col_offset]
    after = lines[old.end_lineno - 1][old.end_col_offset :] + b"".join(lines[old.end_lineno :])
    text = ast.unparse(new).replace("\n", f"\n{' ' * old.col_offset}")
    return before.decode() + (f"({text})" if isinstance(new, ast.expr) else text) + after.decode()


def _change(tree: ast.Module, number: int) -> tuple[Any, ast.AST]:
    return next((old, new) for at, (old, new, *_) in enumerate(_changes(tree)) if at == number)


Change = tuple[Any, ast.AST, str, tuple[str, ...], int]  # old, new, owner, names, first line of the statement


def _changes(tree: ast.Module) -> Iterator[Change]:
    yield from _below(tree, "", "", (), 0)


def _below(node: ast.AST, classes: str, owner: str, names: tuple[str, ...], line: int) -> Iterator[Change]:
    """Yield the changes of what is below the node. `classes`: the qualified name of the class around it, with a dot."""
    for each in _mutable_children(node):
        inside, around, named, at = owner, classes, names, line
        if isinstance(each, ast.stmt):
            at = each.lineno
            if not owner:
                named = _defined(each) or names
        if isinstance(each, ast.ClassDef) and not owner:
            around, named = f"{classes}{each.name}.", (each.name,)
        for new in _variants(each, node):
            yield each, new, inside, named, at
        if isinstance(each, FUNCTIONS) and not owner:
            for default in (*each.args.defaults, *filter(None, each.args.kw_defaults)):
                fresh = ast.Expression(default)
                yield from _below(fresh, classes, owner, (each.name,), default.lineno)
            inside = f"{classes}{each.name}"
            for statement in each.body:
                yield from _below(ast.Module([statement], []), "", inside, (), statement.lineno)
        else:
            yield from _below(each, around, inside, named, at)


def _defined(statement: ast.stmt) -> tuple[str, ...]:
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    return tuple(each.id for each in targets if isinstance(each, ast.Name))


def _mutable_children(node: ast.AST) -> Iterator[ast.AST]:
    """What may change below a node: no annotation, no decorator, no docstring, no text of a message or of a log."""
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert):
        return
    if isinstance(node, ast.Call) and _name(node.func) in WORDS:
        return
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_comment", "args") and not isinstance(value, list):
            continue
        if field == "decorator_list":
            continue
        for each in value if isinstance(value, list) else [value]:
            docstring = isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
            if isinstance(each, ast.AST) and not docstring and not _never_runs(each):
                yield each


def _never_runs(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg in SAFEGUARDS
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'")


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _variants(node: Any, parent: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node may become."""
    yield from _conditions(node, parent)
    match node:
        case ast.Constant():
            yield from _constants(node, parent)
        case ast.Tuple(elts=each) if isinstance(parent, ast.Compare):
            for at, one in enumerate(each):
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    yield ast.Tuple([*each[:at], ast.Constant(f"XX{one.value}"), *each[at + 1 :]], ast.Load())
        case ast.Call(func=ast.Name(id=name)) if name in OTHER_NAME:
            yield ast.Call(ast.Name(OTHER_NAME[name], ast.Load()), node.args, node.keywords)
        case ast.Call(func=ast.Attribute(attr="suppress")) if node.args:
            yield ast.Call(node.func, [], [])
        case ast.Expr(value=ast.Call() | ast.Await() | ast.Yield() | ast.YieldFrom()) if not _tells(node.value):
            yield ast.Pass()
        case ast.Raise() if "AssertionError" not in ast.unparse(node):
            yield ast.Pass()
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.ExceptHandler() if not isinstance(node.body[0], ast.Raise):
            yield ast.ExceptHandler(node.type, node.name, [ast.Raise()])


def _tells(node: ast.expr) -> bool:
    """Whether it only reports or logs: `await Report(…)`, `yield ("log", …)`, `self.log(…)`."""
    match node:
        case ast.Await(value=value):
            return _tells(value)
        case ast.Yield(value=ast.Tuple(elts=[ast.Constant(value=name), *_])):
            return name in WORDS
        case ast.Call(func=func):
            return _name(func) in WORDS
    return False


def _conditions(node: Any, parent: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare():
            for at, operator in enumerate(node.ops):
                for other in OTHER_ORDER[type(operator)]:
                    if (type(operator), other) in BOUNDARIES and TIME.search(ast.unparse(node)):
                        continue
                    yield ast.Compare(node.left, [*node.ops[:at], other(), *node.ops[at + 1 :]], node.comparators)
        case ast.BoolOp(op=operator):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.BinOp(op=operator) if type(operator) in OTHER_SUM and not _is_text(node.left, node.right):
            yield ast.BinOp(node.left, OTHER_SUM[type(operator)](), node.right)
    decides = node is getattr(parent, "test", None) or (isinstance(parent, ast.comprehension) and node in parent.ifs)
    decides = decides or (isinstance(parent, ast.match_case) and node is parent.guard)
    if decides and not isinstance(node, ast.Compare | ast.Constant | ast.UnaryOp | ast.BoolOp):
        yield ast.UnaryOp(ast.Not(), node)


def _is_text(*nodes: ast.expr) -> bool:
    return any(
        isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
        for node in nodes
    )


def _constants(node: ast.Constant, parent: Any) -> Iterator[ast.AST]:
    match node.value:
        case bool():
            yield ast.Constant(not node.value)
        case int():
            yield ast.Constant(node.value + 1)
        case float():
            yield ast.Constant(2 * node.value or 1.0)
        case str() if isinstance(parent, ast.Compare | ast.MatchValue) or (
            isinstance(parent, ast.Call) and _name(parent.func) in COMPARING_CALLS
        ):
            yield ast.Constant(f"XX{node.value}")
