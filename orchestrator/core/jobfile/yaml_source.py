"""YAML text in, plain data and the line of every key out; tags, aliases and other features that no job needs are refused.

It reads parser events instead of a tree, so that an alias is refused, at its own line, before anything is expanded, and a
hostile file ends at a limit. Scalars are resolved by YAML 1.2, as in editors: `no` and `on` are text, 12:30:00 is text and
1e-3 is a number. Mistakes are collected, not raised, unless the rest of the file cannot be understood.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

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

    def line(self, path: Path) -> int:
        """Return the line of the innermost part of `path` that the file has."""
        return next((self.lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self.lines), 1)

    def is_invalid(self, path: Path) -> bool:
        return any(path[:end] in self.invalid for end in range(len(path) + 1))


class _Stop(Exception):
    def __init__(self, line: int, text: str, path: Path = ()) -> None:
        super().__init__(text)
        self.mistake = Mistake(line, path, text)


def read(text: str | bytes) -> YamlSource:
    """Return what the text says, with all its mistakes. Never raises."""
    source = YamlSource()
    try:
        content = _decode(text)
        _EventReader(source, _events(content)).read_file()
    except _Stop as stop:
        source.mistakes.append(stop.mistake)
        source.data = {}
        source.invalid.add(())
    return source


def _decode(text: str | bytes) -> str:
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(raw) > MAX_BYTES:
        raise _Stop(1, "the file has more than 1 MiB; a job file is a page of text: is this the right one?")
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in raw[:4]:
        raise _Stop(1, "the file is UTF-16 or binary; save it as UTF-8")
    if raw.startswith(b"\xef\xbb\xbf"):
        raise _Stop(1, "the file starts with a byte order mark; save it as UTF-8 without BOM")
    try:
        content = raw.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _Stop(line, f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8") from None
    if bad := _UNPRINTABLE.search(content):
        line = content.count("\n", 0, bad.start()) + 1
        raise _Stop(line, f"{_named(bad.group())} does not belong in a text file; delete it")
    return content


def unprintable(text: str) -> str | None:
    """Return what the text holds that does not belong into a text file, in words; None where that is nothing."""
    bad = _UNPRINTABLE.search(text)
    return _named(bad.group()) if bad else None


def _named(char: str) -> str:
    return "a NUL byte" if char == "\0" else f"the control character U+{ord(char):04X}"


def _events(content: str) -> Iterator[yaml.Event]:
    try:
        yield from yaml.parse(content, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        # An unclosed bracket or quote is noticed at the end of the file; where it was opened helps more.
        unclosed = "end of stream" in (error.problem or "") or "<stream end>" in (error.problem or "")
        mark = (unclosed and error.context_mark) or error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise _Stop(line, _plainer(error, _text_of(content, line))) from None
    except (yaml.YAMLError, ValueError, OverflowError):  # ValueError: an escape such as "\UFFFFFFFF"
        raise _Stop(1, "the file is not readable YAML; look for unusual characters and escapes") from None


def _text_of(content: str, line: int) -> str:
    lines = content.splitlines()
    return lines[line - 1] if line <= len(lines) else ""


def _plainer(error: yaml.MarkedYAMLError, text: str) -> str:
    if "\t" in text[: len(text) - len(text.lstrip())] or "'\\t'" in (error.problem or ""):
        return "a tab in the indentation; YAML needs spaces"
    message = f"{error.problem or ''} {error.context or ''}"
    plain = next((plain for part, plain in _PLAINER.items() if part in message), None)
    return f"not valid YAML: {plain or error.problem or 'it cannot be read'}"


class _EventReader:
    def __init__(self, source: YamlSource, events: Iterator[yaml.Event]) -> None:
        self.source = source
        self.events = events
        self.nodes = 0

    def read_file(self) -> None:
        next(self.events)  # the start of the stream
        first = next(self.events)
        if isinstance(first, yaml.StreamEndEvent):
            raise _Stop(1, "the job file is empty; copy jobs/hello.yaml and change it")
        top = next(self.events)
        line = _line(top)
        if isinstance(top, yaml.SequenceStartEvent):
            raise _Stop(line, "a job file is a mapping (`key: value` lines), not a list; remove the leading `-`")
        data = self._value(top, ())
        next(self.events)  # the end of the document
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise _Stop(_line(after), "a second document starts here; write one job per file")
        if data is None and not self.source.mistakes:
            raise _Stop(1, "the job file is empty; copy jobs/hello.yaml and change it")
        if isinstance(data, dict):
            self.source.data = data
        elif not self.source.mistakes:
            raise _Stop(line, "a job file is a mapping (`key: value` lines), not a single value")

    def _value(self, event: yaml.Event, path: Path) -> Any:
        line = _line(event)
        self.source.lines.setdefault(path, line)
        self.nodes += 1
        if self.nodes > MAX_NODES or len(path) > MAX_DEPTH:
            raise _Stop(line, f"more than {MAX_NODES} values, or more than {MAX_DEPTH} levels: this is no job file")
        if isinstance(event, yaml.AliasEvent):
            raise _Stop(line, f"aliases (`*{_shown(event.anchor or '')}`) are not allowed; write the value out", path)
        assert isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent))
        value = self._untagged(event, path)
        if event.tag is not None:
            self._mistake(
                line,
                path,
                f"tags (`{_shown(event.tag.replace('tag:yaml.org,2002:', '!!'))}`) are not allowed; write a plain value",
                spoils=True,
            )
            return None
        return value

    def _untagged(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent, path: Path) -> Any:
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(path)
        assert isinstance(event, yaml.ScalarEvent)
        if bad := _UNPRINTABLE.search(event.value):
            text = f"contains {_named(bad.group())}; remove the escape"
            self._mistake(_line(event), path, text, spoils=True)
            return None
        if event.style is not None:
            return event.value
        self.source.written[path] = event.value
        return _resolve(event.value)

    def _sequence(self, path: Path) -> list[Any]:
        found: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            found.append(self._value(event, (*path, len(found))))
        return found

    def _mapping(self, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            line = _line(event)
            key = self._key(event, path)
            if key is None:
                self._skip(next(self.events), path)
                continue
            here = (*path, key)
            if key in found:
                first = self.source.lines[here]
                self._mistake(line, here, f"duplicate key, first set on line {first}; keep one of the two")
                self._skip(next(self.events), here)
                continue
            self.source.lines[here] = line
            found[key] = self._value(next(self.events), here)
        return found

    def _key(self, event: yaml.Event, path: Path) -> str | None:
        line = _line(event)
        if isinstance(event, yaml.ScalarEvent) and not _UNPRINTABLE.search(event.value):
            word = event.value
            if event.tag is None and (event.style is not None or isinstance(_resolve(word), str)):
                return word
            self._mistake(line, path, f"the key `{_shown(word)}` is not a word; put it in quotes if it is meant")
            return None
        self._skip(event, (*path, "?"))
        self._mistake(line, path, "a key is not a plain word; write `key: value`")
        return None

    def _skip(self, event: yaml.Event, path: Path) -> None:
        """Read past a value that is not used; mistakes inside it are not reported."""
        aside = YamlSource()
        reader = _EventReader(aside, self.events)
        reader.nodes = self.nodes
        reader._value(event, path)
        self.nodes = reader.nodes

    def _mistake(self, line: int, path: Path, text: str, *, spoils: bool = False) -> None:
        self.source.mistakes.append(Mistake(line, path, text))
        if spoils:
            self.source.invalid.add(path)


def _line(event: yaml.Event) -> int:
    mark = event.start_mark
    return mark.line + 1 if mark else 1


def _resolve(word: str) -> Any:
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    if _INT.fullmatch(word):
        return int(word)
    if _OCTAL_OR_HEX.fullmatch(word):
        return int(word, 0)
    return float(word) if len(word) <= 40 and _FLOAT.fullmatch(word) else word


def _shown(text: str) -> str:
    plain = "".join(char if char.isprintable() else "?" for char in text)
    return plain if len(plain) <= 40 else f"{plain[:39]}…"
