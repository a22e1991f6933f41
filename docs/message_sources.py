"""The errors that the program can end with, as its sources construct them: what docs/messages.md lists."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from message_sections import SECTIONS

ROOT = Path(__file__).parents[1]
UNSAID = "…"  # a part of a message that the sources alone do not tell
MOST_FORMS = 8  # of one message whose words depend on the case
JOB_FILE = "orchestrator/job/"  # its rules raise ValueError and yield sentences: parts of a JobSpecError


@dataclass(frozen=True, order=True)
class Message:
    """An error as the sources construct it: `{braces}` stand for what differs from case to case."""

    text: str
    hint: str
    code: str  # of the process; "" if it is not known here
    module: str  # path of the source

    @property
    def section(self) -> str:
        """Return the heading of the section that explains it. Raises LookupError if none of SECTIONS fits."""
        module, words = self.module.removeprefix("orchestrator/"), f"{self.text} · {self.hint}"
        for title, rows in SECTIONS.items():
            if any(re.match(where, module) and re.search(pattern, words) for where, pattern in rows):
                return title
        raise LookupError(f"docs/message_sections.py: no section fits {self}")


def messages() -> list[Message]:
    """Return every message of the program, without duplicates, in the order of their words."""
    folders = ("orchestrator", "payload")
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    program = _Program({path: ast.parse(path.read_text(encoding="utf-8")) for path in paths})
    found = {each for path in paths for each in program.messages(path)}
    shown: dict[tuple[str, str], Message] = {}
    for each in sorted(
        found, key=lambda each: (not each.text.strip(UNSAID), literal(each.text).strip(" `:").lower(), each)
    ):
        shown.setdefault((each.text, each.hint), each)
    return list(shown.values())


class _Errors:
    """The classes of errors that end a command or a training: their exit codes, and which make their text themselves."""

    ROOTS = ("TpujobError", "PayloadError", "KnownError", "Failed")  # Failed: of the environment of a worker

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        self.codes: dict[str, str] = dict.fromkeys(self.ROOTS, "")
        self.own_words: dict[str, tuple[ast.expr, ast.expr | None]] = {}  # message and hint that a class itself has
        before = 0
        while len(self.codes) > before:
            before = len(self.codes)
            for kind in classes:
                base = next((name for each in kind.bases if (name := _last(each)) in self.codes), None)
                if base is not None or kind.name in self.ROOTS:
                    self.codes[kind.name] = _exit_code(kind) or self.codes.get(base or kind.name, "")
                    self.own_words |= dict(_own_words(kind))
        self.codes |= dict.fromkeys(("PayloadFailed", "RemoteFunctionError", "Failed"), "1-63") | {
            "Interrupted": "128+n"
        }


def _exit_code(kind: ast.ClassDef) -> str:
    values = (
        node.value for node in kind.body if isinstance(node, ast.Assign) and _last(node.targets[0]) == "exit_code"
    )
    return next(map(ast.unparse, values), "")


def _own_words(kind: ast.ClassDef) -> Iterator[tuple[str, tuple[ast.expr, ast.expr | None]]]:
    for node in ast.walk(kind):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "super().__init__":
            for text in (each for each in node.args[:1] if isinstance(each, ast.JoinedStr)):
                yield kind.name, (text, next((each.value for each in node.keywords if each.arg == "hint"), None))


@dataclass(frozen=True, eq=False)
class _Place:
    """A node, and what is around it: the module, and the function (if any) with its nodes and their parents."""

    tree: ast.Module
    node: ast.AST
    around: tuple[ast.AST, ...] = ()  # from the module to the parent of the node

    @property
    def function(self) -> ast.AST | None:
        return next(
            (each for each in reversed(self.around) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)), None
        )

    def variables(self, name: str) -> list[tuple[_Place, ast.expr]]:
        """Return the values that a variable of the function can have here: the nearest that counts for sure, and later ones."""
        if self.function is None:
            return []
        found: list[tuple[_Place, ast.expr]] = []
        inside = {id(each) for each in (*self.around, self.node)}
        for place in _places(self.tree, self.function, self.around[: self.around.index(self.function)]):
            value = _assigned(place.node, name)
            if value is None or place.node is self.node or place.node.lineno > self.node.lineno:  # type: ignore[attr-defined]
                continue
            if id(place.around[-1]) in inside and not _in_other_branch(place.around[-1], place.node, inside):
                found = []
            found.append((place, value))
        return found


def _in_other_branch(parent: ast.AST, node: ast.AST, inside: set[int]) -> bool:
    """Return whether the node is in one branch of an `if` or a `try`, and what is inside, in another."""
    lists = [value for value in vars(parent).values() if isinstance(value, list)]
    return not any(node in each and any(id(other) in inside for other in each) for each in lists)


def _places(tree: ast.Module, node: ast.AST, around: tuple[ast.AST, ...] = ()) -> Iterator[_Place]:
    """Yield every node below this one, in the order of the source."""
    for child in ast.iter_child_nodes(node):
        yield _Place(tree, child, (*around, node))
        yield from _places(tree, child, (*around, node))


@dataclass
class _Program:
    sources: dict[Path, ast.Module]
    errors: _Errors = field(init=False)
    _near: dict[ast.Module, list[ast.Module]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.errors = _Errors(self.sources.values())

    def messages(self, path: Path) -> Iterator[Message]:
        """Yield the messages of a module, in all of their forms."""
        module = path.relative_to(ROOT).as_posix()
        tree = self.sources[path]
        for place in _places(tree, tree):
            for text, hint, code in self._said(place, module):
                texts, hints = self._forms(text, place), self._forms(hint, place)
                together = len(texts) == len(hints)  # then a case decides on both
                for pair in zip(texts, hints, strict=True) if together else itertools.product(texts, hints):
                    said, advice = (re.sub(r"…[…\s]*…", UNSAID, " ".join(each.split())) for each in pair)
                    if re.search(r"[a-z]{2}", literal(said + advice)):
                        yield Message(said, advice, code, module)

    def _said(self, place: _Place, module: str) -> Iterator[tuple[ast.expr | None, ast.expr | None, str]]:
        """Yield (message, hint, exit code) if an error is made at this place."""
        node, rule = place.node, module.startswith(JOB_FILE)
        if isinstance(node, ast.ClassDef) and node.name in self.errors.own_words:
            yield (*self.errors.own_words[node.name], self.errors.codes[node.name])
        elif isinstance(node, ast.Call) and _last(node.func) != "__init__":
            name = _last(node.func)
            said = {each.arg: each.value for each in node.keywords if each.arg}
            hint, code = said.get("hint"), self.errors.codes.get(name, "")
            if name in ("KnownError", "Denied"):
                yield _of_google(said), hint, self.errors.codes[_last(node.args[0]) if node.args else "AuthError"]
            elif name in self.errors.codes or hint is not None:
                text = node.args[0] if node.args and name not in self.errors.own_words else None
                yield text, hint, ast.unparse(said["exit_code"]) if _is_number(said.get("exit_code")) else code
            elif (name == "ValueError" and rule and node.args) or (name == "mistake" and len(node.args) == 2):
                yield node.args[-1], None, "64"
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Attribute)
            and _last(node.targets[0]) == "hint"
        ):
            caught = (each for each in place.around if isinstance(each, ast.ExceptHandler))
            named = [each for each in caught if each.name == _last(node.targets[0].value)]
            yield None, node.value, self.errors.codes.get(_last(named[-1].type), "") if named else ""
        elif isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple) and rule:
            yield node.value.elts[-1], None, "" if "warning" in getattr(place.function, "name", "") else "64"

    def _forms(self, node: ast.expr | None, place: _Place, depth: int = 0) -> list[str]:
        """Return the forms that the text can have, as far as the sources tell."""
        if node is None or (isinstance(node, ast.Constant) and node.value is None):
            return [""]
        return list(dict.fromkeys([UNSAID] if depth > 6 else self._read(node, place, depth + 1)))[:MOST_FORMS]

    def _read(self, node: ast.expr, place: _Place, depth: int) -> list[str]:
        def forms(each: ast.expr) -> list[str]:
            return self._forms(each, place, depth)

        match node:
            case ast.Constant(value=str() | int() as value):
                return [str(value)]
            case ast.JoinedStr(values=parts):
                return ["".join(each) for each in itertools.product(*map(forms, parts))]
            case ast.FormattedValue(value=value):
                known = forms(value) if isinstance(value, ast.Name | ast.IfExp | ast.Attribute) else [""]
                return known if all(each and each != UNSAID for each in known) else [_placeholder(value)]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return ["".join(each) for each in itertools.product(forms(left), forms(right))]
            case ast.IfExp(body=body, orelse=other):
                return [*forms(body), *forms(other)]
            case ast.BoolOp(op=ast.Or(), values=values):
                return [each for value in values for each in forms(value)]
            case ast.List(elts=[one]) | ast.Call(func=ast.Attribute(attr="mistake"), args=[_, one]):
                return forms(one)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)):
                return self._returned(name, place, depth, module) or [UNSAID]
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                return self._returned(name, place, depth) or [UNSAID]
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return self._values(name, node, place, depth) or [UNSAID]
        return [UNSAID]

    def _values(self, name: str, node: ast.expr, place: _Place, depth: int) -> list[str]:
        """Return what a name stands for: a variable of the function, or a constant of this or of another module."""
        found: list[str] = []
        if isinstance(node, ast.Name):
            found = [text for there, value in place.variables(name) for text in self._forms(value, there, depth)]
        for tree in () if found else self._modules(place):
            values = [value for each in tree.body if (value := _assigned(each, name)) is not None]
            found += [text for value in values for text in self._forms(value, _Place(tree, value), depth)]
        return found

    def _returned(self, name: str, place: _Place, depth: int, module: str = "") -> list[str]:
        """Return what a function of the program returns, if that is text. `module`: that it is called of."""
        named = [self.sources[path] for path in self.sources if path.stem == module]
        for tree in [tree for tree in self._modules(place) if not named or tree in named]:
            for function in tree.body:
                if isinstance(function, ast.FunctionDef) and function.name == name:
                    if function.returns is None or "str" not in ast.unparse(function.returns).split(" | "):
                        return []
                    values = [each for each in _places(tree, function, (tree,)) if isinstance(each.node, ast.Return)]
                    return [text for each in values for text in self._forms(each.node.value, each, depth) if text]  # type: ignore[attr-defined]
        return []

    def _modules(self, place: _Place) -> list[ast.Module]:
        """Return where a name of a module can be defined: there, and in the modules of ours that it imports from."""
        if place.tree not in self._near:
            self._near[place.tree] = list(dict.fromkeys([place.tree, *self._imported(place.tree)]))
        return self._near[place.tree]

    def _imported(self, tree: ast.Module) -> Iterator[ast.Module]:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                base = ROOT / node.module.replace(".", "/")
                for path in (
                    base.with_suffix(".py"),
                    base / "__init__.py",
                    *(base / f"{each.name}.py" for each in node.names),
                ):
                    if path in self.sources:
                        yield self.sources[path]


def _assigned(node: ast.AST, name: str) -> ast.expr | None:
    """Return the value that this statement or expression gives to a name, if it does."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            return next((value for each, value in zip(names, values, strict=False) if _last(each) == name), None)
        case (
            ast.Assign(targets=[ast.Name(id=target)], value=value)
            | ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value)
            | ast.NamedExpr(target=ast.Name(id=target), value=value)
        ) if target == name:
            return value
    return None


def _placeholder(node: ast.expr) -> str:
    """Return a name for a value: `{node}` for `lease.name.node`, `{duration_s}` for `format_duration(duration_s)`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return f"{{{name.strip('_').lower()}}}"
        case ast.BinOp(left=folder, op=ast.Div(), right=ast.Constant(value=name)):
            return f"{_placeholder(folder)}/{name}"
        case ast.Call(func=ast.Attribute(attr="join"), args=[ast.List(elts=words)]):
            return " ".join(str(each.value) for each in words if isinstance(each, ast.Constant))
        case ast.Call(func=ast.Attribute(attr="join"), args=[one]) | ast.Call(args=[one, *_]):
            return _placeholder(one)
        case ast.Call(func=ast.Attribute(value=value)) | ast.Subscript(value=value) | ast.BinOp(left=value):
            return _placeholder(value)
        case ast.GeneratorExp(elt=value) | ast.ListComp(elt=value) | ast.Starred(value=value):
            return _placeholder(value)
        case ast.BoolOp(values=[value, *_]):
            return _placeholder(value)
    return UNSAID


def _of_google(said: dict[str, ast.expr]) -> ast.expr:
    """Return what a reply of Google says that this row is about: the words of its pattern, else its reasons."""
    found = [ast.literal_eval(said[name]) for name in ("text", "reasons") if name in said]
    pattern = found[0] if isinstance(found[0], str) else "|".join(found[0])
    pattern = re.sub(r"\(([^()|]*)(\|[^()]*)?\)(\??)", lambda group: "" if group[3] else group[1], pattern)
    texts = [re.sub(r"\[[^\]]*\][*+]?|\\S\+|\.\*", UNSAID, each) for each in pattern.split("|")]
    plain = [re.sub(r"\\b|.\?|\\(?=\.)|[ '/]*$", "", each) for each in texts]
    return ast.Constant(value="Google: " + ", or ".join(f"“{each}”" for each in plain))


def _last(node: ast.AST | None) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_number(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def literal(text: str) -> str:
    """Return the text without what differs from case to case."""
    return re.sub(r"\{[^}]*\}", "", text)
