"""Redaction: secrets are kept out of everything that tpujob prints or stores. Pure.

A secret is known by its value (what `${env:NAME}` brings into a job, an emulator's token) or by its shape. Text that went
through `Redactor.hide`, and bytes that went through a `RedactedStream` in pieces of any size, hold neither; base64, URL, JSON
and repr spellings of a known value count too. So does a secret in pieces, with colors or other characters between them that
`text.terminal` takes out or that are not seen: text may be cleaned before or after.
"""

import base64
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from urllib.parse import quote, quote_plus

from orchestrator.text.terminal import COLORS, ESCAPES, PLAIN, UNPRINTABLE_IN_LINES, harmless_lines

MASK = "[redacted]"
MIN_VALUE_CHARS = 6  # a shorter value occurs in ordinary words
MIN_LINE_CHARS = 12  # each line of a value counts on its own: lines rarely stay together in a log
MAX_KEY_BYTES = 16 * 1024
HELD_BYTES = 64 * 1024  # of a line that does not end
OVERLAP_BYTES = 4 * 1024  # no token is longer

# Shapes of common keys: Google, GitHub, GitLab, AWS, Hugging Face, OpenAI, Slack, JWT, bearer tokens. Each with the text that
# it begins with. Of each group, most of a log has none: that is found out by one search for a single byte and what is around
# it, which is many times faster than a search for each beginning.
_GROUPS: tuple[tuple[bytes, bytes, dict[bytes, bytes]], ...] = (
    (b"9", rb"9(?<=ya29)(?=\.)", {b"ya29.": rb"ya29\.[\w.~+/=-]{0,4000}"}),
    (b"A", rb"A(?=Iza|KIA)", {b"AIza": rb"AIza[\w-]{30,100}", b"AKIA": rb"\bAKIA[0-9A-Z]{16}"}),
    (
        b"h",
        rb"h(?=[pousr]_|f_|ub_pat_)",
        {
            **{b"gh%c_" % kind: rb"\bgh%c_\w{20,255}" % kind for kind in b"pousr"},
            b"hf_": rb"\bhf_\w{20,255}",
            b"github_pat_": rb"github_pat_\w{20,255}",
        },
    ),
    (
        b"-",
        rb"-(?:(?<=sk-)|(?<=glpat-)|(?<=xox[abprs]-))",
        {b"sk-": rb"\bsk-[\w-]{20,255}", b"glpat-": rb"glpat-[\w-]{16,255}", b"xox": rb"\bxox[abprs]-[\w-]{10,255}"},
    ),
    (b"J", rb"J(?<=eyJ)", {b"eyJ": rb"\beyJ[\w-]{10,4000}\.[\w-]{10,4000}(?:\.[\w-]{0,2000})?"}),
    (b"B", rb"B(?=earer )", {b"Bearer ": rb"\bBearer +[\w.~+/=-]{16,4000}"}),
)
_KEY_BEGIN = rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY"
_KEY_END = rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?:-----)?"
_KEY_LINES = rb"(?:-----)?(?:(?:\s|\\n)*[A-Za-z0-9+/=]{40,200})*"  # of a key without an end; \n may be spelled out
_NAME = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|APIKEY|API_KEY|ACCESS_KEY|SECRET_KEY|PRIVATE_KEY)$", re.I)

# Of Unicode's `Default_Ignorable_Code_Point` what cleaning leaves: nothing by itself, but a part of emoji and of letters.
_UNSEEN = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# All bytes but those that such a character begins with in UTF-8, U+00AD excepted; few logs have one.
_SEEN = bytes(set(range(256)) - set(b"\xcd\xe1\xe3\xef\xf0\xf3"))

Span = tuple[int, int]


def has_secret_shape(text: str) -> bool:
    """Return whether the text contains the shape of a secret."""
    return bool(_shaped(_encoded(text)))


def is_secret_name(variable: str) -> bool:
    """Return whether a variable of this name is meant to hold a secret."""
    return _NAME.search(variable) is not None


class Redactor:
    """The secrets of one process. Safe to use from several threads: values are only added."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._forms: tuple[bytes, ...] = ()
        self.add(*values)

    def add(self, *values: str) -> None:
        """Hide these values from now on."""
        forms = {form for value in values for form in _forms(value)}
        self._forms = tuple(sorted(forms.union(self._forms)))

    def hide(self, text: str) -> str:
        """Return the text with every secret replaced by MASK."""
        data = _encoded(text)
        return text if (hidden := self.hide_bytes(data)) is data else hidden.decode("utf-8", "surrogatepass")

    def hide_bytes(self, data: bytes) -> bytes:
        """Return the bytes with every secret replaced by MASK; the same object if there is none."""
        spans = self.spans(data)
        if not spans:
            return data
        starts, ends = zip(*spans, strict=True)
        kept = (data[begin:end] for begin, end in zip((0, *ends), (*starts, len(data)), strict=True))
        return MASK.encode().join(kept)

    def hide_all(self, data: object) -> object:
        """Return plain data, as of JSON, with `hide` applied to every text in it."""
        if isinstance(data, str):
            return self.hide(data)
        if isinstance(data, dict):
            return {self.hide_all(key): self.hide_all(value) for key, value in data.items()}
        return [self.hide_all(value) for value in data] if isinstance(data, list | tuple) else data

    def spans(self, data: bytes) -> list[Span]:
        """Return where secrets are, in order, overlapping ones as one; also where cleaning would put one together."""
        found = self._found(data)
        if not data.isascii() or data.translate(None, PLAIN):
            text = data.replace(b"\r", b"\n").decode("utf-8", "surrogateescape")  # a state of a line ends at either
            shown = harmless_lines(text)
            if data.translate(None, _SEEN) or b"\xc2\xad" in data:
                shown = _UNSEEN.sub("", shown)
            if shown != text and (places := self._found(cleaned := _encoded(shown))):
                found += _before_cleaning(text, cleaned, sorted(places))
        return _merged(found)

    def _found(self, data: bytes) -> list[Span]:
        return [*_shaped(data), *(span for form in self._forms for span in _places(form, data))]

    @property
    def longest_bytes(self) -> int:
        """The length of the longest known value."""
        return max(map(len, self._forms), default=0)


class RedactedStream:
    """Redacts one stream of bytes. A line is held back until it ends, and a private key until its END."""

    def __init__(self, secrets: Redactor) -> None:
        self._secrets = secrets
        self._held = b""
        self._dropping = False  # after a gap, until a line begins that no key reaches into

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; return those that can be shown now, redacted."""
        held = self._held + data
        if self._dropping:
            self._held, begin = held, held.find(b"\n", MAX_KEY_BYTES) + 1
            if not begin and len(held) <= HELD_BYTES:
                return b""
            self._dropping, held = False, held[begin or HELD_BYTES :]
        cut = max(held.rfind(b"\n"), held.rfind(b"\r")) + 1
        key = _unended_key(held[:cut])
        if key is not None and len(held) - key <= MAX_KEY_BYTES:
            cut = key
        elif len(held) - cut > HELD_BYTES:
            cut = self._within_line(held)
        self._held = held[cut:]
        return self._secrets.hide_bytes(held[:cut])

    def skip(self) -> None:
        """Go on after a gap, with a whole line. What is cut by it is dropped on both sides: it may be half of a secret."""
        self._held, self._dropping = b"", True

    def flush(self) -> bytes:
        """Return the rest, redacted, at the end of the stream."""
        held, self._held = b"" if self._dropping else self._held, b""
        return self._secrets.hide_bytes(held)

    def _within_line(self, held: bytes) -> int:
        """Where an endless line can be cut: neither inside a secret nor where one may have begun."""
        cut = max(0, len(held) - max(OVERLAP_BYTES, self._secrets.longest_bytes))
        return next((start for start, end in self._secrets.spans(held) if start < cut < end), cut)


def _forms(value: str) -> Iterator[bytes]:
    """The spellings of a value."""
    value = value.strip()
    lines = [line for line in map(str.strip, value.splitlines()) if len(line) >= MIN_LINE_CHARS]
    parts = [value, *(lines if len(lines) > 1 else ())]
    for part in dict.fromkeys([*parts, *(_UNSEEN.sub("", part) for part in parts)]):
        if len(part) < MIN_VALUE_CHARS:
            continue
        raw = _encoded(part)
        yield raw
        yield json.dumps(part)[1:-1].encode()
        yield json.dumps(part, ensure_ascii=False)[1:-1].encode("utf-8", "surrogatepass")
        yield repr(part)[1:-1].encode("utf-8", "surrogatepass")
        for url in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
            yield url.encode()
            yield re.sub("%..", lambda escape: escape[0].lower(), url).encode()
        yield raw.hex().encode()
        yield from _base64_forms(raw)


def _base64_forms(raw: bytes) -> Iterator[bytes]:
    """Also inside of something longer (`user:password`): in each of three phases, the letters that depend on it alone."""
    for phase in range(3):
        code = base64.b64encode(bytes(phase) + raw)
        first = (0, 2, 3)[phase]
        last = (len(raw) + phase) * 8 // 6
        if last - first >= MIN_VALUE_CHARS:
            yield code[first:last]
            yield code[first:last].translate(bytes.maketrans(b"+/", b"-_"))


def _shaped(data: bytes) -> list[Span]:
    found = list(_keys(data))
    for byte, scout, tokens in _GROUPS:
        if byte in data and re.compile(scout).search(data):
            for anchor, shape in tokens.items():
                found += _tokens(anchor, shape, data)
    return found


def _tokens(anchor: bytes, shape: bytes, data: bytes) -> Iterator[Span]:
    at = data.find(anchor)
    while at >= 0:
        found = re.compile(shape).match(data, at)
        if found:
            yield found.span()
        at = data.find(anchor, found.end() if found else at + 1)


def _keys(data: bytes) -> Iterator[Span]:
    """Private keys in PEM form, each to its end."""
    if b"V" not in data or b"PRIVATE KEY" not in data:
        return
    at = 0
    while begin := re.compile(_KEY_BEGIN).search(data, at):
        end = re.compile(_KEY_END).search(data, begin.end(), begin.end() + MAX_KEY_BYTES)
        end = end or re.compile(_KEY_LINES).match(data, begin.end())
        at = end.end() if end else begin.end()
        yield begin.start(), at


def _unended_key(data: bytes) -> int | None:
    """Where a private key begins that has no end yet; None without one."""
    if b"V" not in data or b"PRIVATE KEY" not in data:
        return None
    last = 0
    for end in re.compile(_KEY_END).finditer(data):
        last = end.end()
    begin = re.compile(_KEY_BEGIN).search(data, last)
    return begin.start() if begin else None


def _places(form: bytes, data: bytes) -> Iterator[Span]:
    at = data.find(form)
    while at >= 0:
        yield at, at + len(form)
        at = data.find(form, at + 1)


def _before_cleaning(text: str, cleaned: bytes, spans: Sequence[Span]) -> Iterator[Span]:
    """Yield where in the text, in bytes, is what has these places, in order, once it is cleaned.

    Only the lines that they are on are looked at: most of a log has no secret.
    """
    lines, rest = text.split("\n"), cleaned.split(b"\n")
    if len(lines) != len(rest):  # an escape sequence took a line end along
        yield from _in_block(text, spans)
        return
    ends = list(accumulate(len(each) + 1 for each in rest))
    blocks: list[tuple[int, int, list[Span]]] = []  # lines, from the first to the last, and what is in them
    for start, end in spans:
        first, last = bisect_right(ends, start), bisect_right(ends, end - 1)
        if blocks and first <= blocks[-1][1]:
            first, before, inside = blocks.pop()
            inside.append((start, end))
            blocks.append((first, max(before, last), inside))
        else:
            blocks.append((first, last, [(start, end)]))
    line = at = 0  # and where that line begins in the text
    for first, last, inside in blocks:
        at += sum(len(each.encode("utf-8", "surrogateescape")) + 1 for each in lines[line:first])
        line, begin = first, ends[first - 1] if first else 0
        block = "\n".join(lines[first : last + 1])
        for start, end in _in_block(block, [(start - begin, end - begin) for start, end in inside]):
            yield at + start, at + end


def _in_block(text: str, spans: Iterable[Span]) -> Iterator[Span]:
    steps = []
    for pattern in (COLORS, ESCAPES, UNPRINTABLE_IN_LINES, _UNSEEN):
        steps.append(_taken_out(pattern, text))
        text = pattern.sub("", text)
    for start, end in spans:
        first, last = start, end - 1
        for places, taken in reversed(steps):
            first, last = (place + taken[bisect_right(places, place)] for place in (first, last))
        yield first, last + 1


def _taken_out(pattern: re.Pattern[str], text: str) -> tuple[list[int], list[int]]:
    """Return where in the rest something was taken out, and how much before each of these places and after the last."""
    places, taken, end, place = list[int](), [0], 0, 0
    for found in pattern.finditer(text):
        place += len(text[end : (start := found.start())].encode("utf-8", "surrogateescape"))
        end = found.end()
        places.append(place)
        taken.append(taken[-1] + len(text[start:end].encode("utf-8", "surrogateescape")))
    return places, taken


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
