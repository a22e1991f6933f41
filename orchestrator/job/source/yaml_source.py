"""YAML text or plain values in, plain data and the line of every key out; what no job needs of YAML is refused.

It reads the tree of nodes, and constructs nothing: an alias is refused, at its own line, without being expanded, and a hostile
file ends at a limit. Scalars are resolved by YAML 1.2, as in editors: `no` and `on` are text, 12:30:00 is text and 1e-3 is a
number. Mistakes are collected, not raised, unless the rest of the file cannot be understood.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import yaml

from orchestrator.text.names import for_display
from orchestrator.text.parsing import text_of

MAX_BYTES = 1024 * 1024
MAX_NODES = 20_000
MAX_DEPTH = 20

Path = tuple[str | int, ...]  # ("tpu", "zone", 0)

_INT = re.compile(r"[-+]?\d{1,18}", re.ASCII)
_OCTAL_OR_HEX = re.compile(r"0o[0-7]{1,20}|0x[0-9a-fA-F]{1,16}")
_FLOAT = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d{1,5})?", re.ASCII)
# Not `~`: in `code: ~` it probably means a directory, and is refused as text.
_CONSTANTS: dict[str, Any] = {"": None, "null": None, "true": True, "false": False}
_CONSTANTS |= {".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}
_CONSTANTS = {form: value for word, value in _CONSTANTS.items() for form in (word, word.capitalize(), word.upper())}
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")

# The parser's own messages need knowledge of its grammar.
_PLAINER = {
    "mapping values are not allowed": "unexpected `:`; put a value that holds `: ` in quotes, or look at the line above",
    "could not find expected ':'": "this line has no `:` after its key, or a quote or the indentation is wrong",
    "cannot start any token": "this character has a meaning in YAML; put the value in quotes",
    "found unexpected end of stream": "a quote opened here is never closed",
    "expected <block end>": "this line is not indented like the ones it belongs to",
    "expected ',' or": "a bracket or brace is not closed, or a comma is missing",
}


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong at one place of the file, why, and how to fix it."""

    line: int
    path: Path
    text: str


@dataclass(slots=True)
class YamlSource:
    """What was read. `data` is a mapping; paths in `invalid` hold None because of a mistake that is already listed."""

    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[Path, int] = field(default_factory=dict)
    written: dict[Path, str] = field(default_factory=dict)  # unquoted scalars, as written in the file
    mistakes: list[Mistake] = field(default_factory=list)
    invalid: set[Path] = field(default_factory=set)
    # What an option of the command line has set, in place of a line.
    options: dict[Path, str] = field(default_factory=dict)

    def option(self, path: Path) -> tuple[Path, str] | None:
        """Return what an option has set at `path`, around it or in it: its place and the option. None: the file has it."""
        if path in self.lines:
            return None
        parts = (path[:end] for end in range(len(path), 0, -1))
        around = next((part for part in parts if part in self.options or part in self.lines), None)
        inside = (place for place in self.options if place[: len(path)] == path)
        place = around if around in self.options else next(inside, None)
        return None if place is None else (place, self.options[place])

    def line(self, path: Path) -> int:
        """Return the line of the innermost part of `path` that the file has."""
        return next((self.lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self.lines), 1)

    def placed(self, at: Callable[[Path], Path | None]) -> Self:
        """Return the same with each place moved to where `at` leads; None: what is known of it is forgotten."""

        def moved(places: dict[Path, Any]) -> dict[Path, Any]:
            return {there: known for path, known in places.items() if (there := at(path)) is not None}

        return replace(self, lines=moved(self.lines), written=moved(self.written), options=moved(self.options))

    def is_invalid(self, path: Path) -> bool:
        return any(path[:end] in self.invalid for end in range(len(path) + 1))

    def refuse(self, line: int, path: Path, text: str) -> None:
        """Add a mistake about a value that cannot be used at all."""
        self.mistakes.append(Mistake(line, path, text))
        self.invalid.add(path)


class _Stop(Exception):
    def __init__(self, line: int, text: str, path: Path = ()) -> None:
        super().__init__(text)
        self.mistake = Mistake(line, path, text)


def read(text: str | bytes) -> YamlSource:
    """Return what the text says, with all its mistakes. Never raises."""
    source = YamlSource()
    try:
        _TreeReader(source).read_file(_compose(_decode(text)))
    except _Stop as stop:
        source.mistakes.append(stop.mistake)
        source.data = {}
        source.invalid.add(())
    return source


def read_value(text: str, path: Path) -> tuple[Any, YamlSource]:
    """Return the value that the text stands for at `path`, with mistakes and scalars as written. Never raises."""
    source = YamlSource()
    try:
        node = _compose(_decode(text), is_file=False)
        return None if node is None else _TreeReader(source).value(node, path), source
    except _Stop as stop:
        source.mistakes.append(stop.mistake)
        return None, source


def _decode(text: str | bytes) -> str:
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(raw) > MAX_BYTES:
        raise _Stop(1, "the file has more than 1 MiB; a job file is a page of text: is this the right one?")
    try:
        content = text_of(raw).replace("\r\n", "\n")
    except ValueError as error:
        raise _Stop(1, f"the file {error}") from None
    if bad := _UNPRINTABLE.search(content):
        line = content.count("\n", 0, bad.start()) + 1
        raise _Stop(line, f"{unprintable(bad.group())} does not belong in a text file; delete it")
    return content


def unprintable(text: str) -> str | None:
    """Return what the text holds that does not belong into a text file, in words; None where that is nothing."""
    bad = _UNPRINTABLE.search(text)
    if bad is None:
        return None
    return "a NUL byte" if bad.group() == "\0" else f"the control character U+{ord(bad.group()):04X}"


def _compose(content: str, *, is_file: bool = True) -> yaml.Node | None:
    """Return the tree of the text; None if there is nothing but comments in it."""
    try:
        loader: Any = _Loader(content, is_file=is_file)
        top: yaml.Node | None = loader.get_node() if loader.check_node() else None
        if loader.check_node():
            raise _Stop(_line(loader.peek_event()), "a second document starts here; write one job per file")
        return top
    except yaml.MarkedYAMLError as error:
        # An unclosed bracket or quote is noticed at the end of the file; where it was opened helps more.
        unclosed = "end of stream" in (error.problem or "") or "<stream end>" in (error.problem or "")
        mark = (unclosed and error.context_mark) or error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise _Stop(line, _plainer(error, "".join(content.splitlines()[line - 1 : line]))) from None
    except (yaml.YAMLError, ValueError, OverflowError):  # ValueError: an escape such as "\UFFFFFFFF"
        raise _Stop(1, "the file is not readable YAML; look for unusual characters and escapes") from None


def _plainer(error: yaml.MarkedYAMLError, text: str) -> str:
    if "\t" in text[: len(text) - len(text.lstrip())] or "'\\t'" in (error.problem or ""):
        return "a tab in the indentation; YAML needs spaces"
    message = f"{error.problem or ''} {error.context or ''}"
    plain = next((plain for part, plain in _PLAINER.items() if part in message), None)
    return f"not valid YAML: {plain or error.problem or 'it cannot be read'}"


class _Loader(yaml.SafeLoader):
    """Composes the tree of a file with the tags that are written in it. Raises _Stop at a limit."""

    def __init__(self, content: str, *, is_file: bool) -> None:
        super().__init__(content)
        self._is_file = is_file
        self._values = self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if self._is_file and parent is None and isinstance(event, yaml.SequenceStartEvent):
            text = "a job file is a mapping (`key: value` lines), not a list; remove the leading `-`"
            raise _Stop(_line(event), text)
        is_key = parent is not None and index is None
        self._values += not is_key
        if self._values > MAX_NODES or self._depth > MAX_DEPTH:
            text = f"more than {MAX_NODES} values, or more than {MAX_DEPTH} levels: this is no job file"
            raise _Stop(_line(event), text)
        if isinstance(event, yaml.AliasEvent):
            self.get_event()  # type: ignore[no-untyped-call]
            mark: Any = event.start_mark
            return yaml.Node("", event.anchor, mark, mark)  # of no kind: the alias itself
        event.anchor = None  # without aliases it means nothing, and may be there twice
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        assert node is not None
        node.tag = event.tag or ""  # as written, not as resolved by YAML 1.1
        return node


class _TreeReader:
    def __init__(self, source: YamlSource) -> None:
        self.source = source

    def read_file(self, top: yaml.Node | None) -> None:
        data = None if top is None else self.value(top, ())
        if isinstance(data, dict):
            self.source.data = data
        elif not self.source.mistakes and data is None:
            raise _Stop(1, "the job file is empty; `tpujob init` writes one")
        elif not self.source.mistakes:
            raise _Stop(_line(top), "a job file is a mapping (`key: value` lines), not a single value")

    def value(self, node: yaml.Node, path: Path) -> Any:
        line = _line(node)
        self.source.lines.setdefault(path, line)
        value: Any
        if isinstance(node, yaml.MappingNode):
            value = self._mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            value = [self.value(item, (*path, number)) for number, item in enumerate(node.value)]
        elif isinstance(node, yaml.ScalarNode):
            value = self._scalar(node, path)
        else:
            raise _Stop(line, f"aliases (`*{for_display(node.value)}`) are not allowed; write the value out", path)
        if node.tag:
            tag = for_display(node.tag.replace("tag:yaml.org,2002:", "!!"))
            return self.source.refuse(line, path, f"tags (`{tag}`) are not allowed; write a plain value")
        return value

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        if problem := unprintable(node.value):
            return self.source.refuse(_line(node), path, f"contains {problem}; remove the escape")
        if node.style is not None:
            return node.value
        self.source.written[path] = node.value
        return _resolve(node.value)

    def _mapping(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line, key = _line(key_node), self._key(key_node, path)
            if key is None:
                continue
            here = (*path, key)
            if key in found:
                text = f"duplicate key, first set on line {self.source.lines[here]}; keep one of the two"
                self.source.mistakes.append(Mistake(line, here, text))
                continue
            self.source.lines[here] = line
            found[key] = self.value(value_node, here)
        return found

    def _key(self, node: yaml.Node, path: Path) -> str | None:
        if not isinstance(node, yaml.ScalarNode) or unprintable(node.value):
            text = "a key is not a plain word; write `key: value`"
        elif node.tag or (node.style is None and not isinstance(_resolve(node.value), str)):
            text = f"the key `{for_display(node.value)}` is not a word; put it in quotes if it is meant"
        else:
            return str(node.value)
        self.source.mistakes.append(Mistake(_line(node), path, text))
        return None


def _line(place: Any) -> int:
    return place.start_mark.line + 1 if place.start_mark else 1


def _resolve(word: str) -> Any:
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    if _INT.fullmatch(word):
        return int(word)
    if _OCTAL_OR_HEX.fullmatch(word):
        return int(word, 0)
    return float(word) if len(word) <= 40 and _FLOAT.fullmatch(word) else word


def source_of(data: Mapping[str, Any]) -> YamlSource:
    """Return the values as a file would hold them, without lines. A value that no file can hold is a mistake."""
    source = YamlSource()
    found = _plain(source, data, ())
    if isinstance(found, dict):
        source.data = found
    return source


def _plain(source: YamlSource, value: Any, path: Path) -> Any:
    """Return a value as a file would hold it, and note its place, and what is wrong with it, in the source."""
    source.lines[path] = 0
    if len(source.lines) > MAX_NODES or len(path) > MAX_DEPTH:
        return source.refuse(0, path, f"more than {MAX_NODES} values, or more than {MAX_DEPTH} levels")
    if isinstance(value, str):
        if problem := unprintable(value):
            return source.refuse(0, path, f"contains {problem}; remove it")
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(source, each, (*path, number)) for number, each in enumerate(value)]
    if not isinstance(value, Mapping):
        why = f"expected text, a number, a list or a mapping, not `{for_display(type(value).__name__)}`"
        return source.refuse(0, path, why)
    found: dict[str, Any] = {}
    for key, each in value.items():
        if not isinstance(key, str) or unprintable(key):
            source.refuse(0, path, f"the key {for_display(repr(key))} is not a word")
        else:
            found[key] = _plain(source, each, (*path, key))
    return found
