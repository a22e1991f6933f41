"""What reaches a terminal is text, whatever a worker printed."""

import re
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.text.terminal import LINE_CHARS, LineSplitter, clean, spelled


def lines(*pieces: bytes) -> list[str]:
    splitter = LineSplitter()
    return [line for piece in pieces for line in splitter.feed(piece)] + list(splitter.flush())


@pytest.mark.parametrize(("raw", "shown"), [
    (b"plain\ttext", "plain\ttext"), (b"\x1b[31mred\x1b[0m", "red"), (b"\x1b]0;title\x07after", "after"),
    (b"\x1b]52;c;Y3VybCBldmls\x1b\\after", "after"), (b"\x1b]52;c;never ends", ""), (b"\x1bP+q544e\x1b\\x", "x"),
    (b"a\x08b\x00c\x7fd", "abcd"), ("\x9b31mC1 \x9d0;t\x9cx".encode(), "C1 x"),
    (b"\x1b[2J\x1b[1;1Hhome", "home"), (b"\x1b(Bx\x1bcreset", "xreset"),
    ("moc\u202egnp.exe".encode(), "mocgnp.exe"), (b"\xff\xfe broken", "\ufffd\ufffd broken"),
    (b"10%\r50%\r100%", "100%"), (b"100%\r", "100%"), (b"windows\r", "windows"), (b"\r\r", ""),
    (b"x" * 10_000, "x" * (LINE_CHARS - 1) + "…"),
])  # fmt: skip
def test_a_line_is_cleaned(raw: bytes, shown: str) -> None:
    assert clean(raw) == shown


@pytest.mark.parametrize(("pieces", "shown"), [
    ([b"on", b"e\ntw", b"o\n\nrest"], ["one", "two", "", "rest"]),
    ([b"10%\r20", b"%\r", b"100%\n", b"next\n"], ["100%", "next"]),  # of a progress bar its last state only
    ([b"done\r\n", b"next\r\n"], ["done", "next"]),
    (["é".encode()[:1], "é".encode()[1:] + b"\n"], ["é"]),
    # A sequence that never ends hides the rest of its line only.
    ([b"before\x1b]52;c;hidden\nnext line\nand \xc2\x9d hidden", b"\nlast\n"], ["before", "next line", "and ", "last"]),
])  # fmt: skip
def test_lines_are_put_together_from_pieces(pieces: list[bytes], shown: list[str]) -> None:
    assert lines(*pieces) == shown


@pytest.mark.parametrize(("name", "shown"), [
    ("not\udcffutf8\udce9.bin", r"not\xffutf8\xe9.bin"),
    ("tab\t", r"tab\t"), ("\\udcff\n", r"\\udcff\n"), ("\\\udcff", r"\\\xff"), ("あ", "あ"), ("\ud800", r"\ud800"),
    ("x" * 4000 + ".bin", "x" * 99 + "…" + "x" * 96 + ".bin"),
])  # fmt: skip
def test_a_name_of_a_file_is_spelled_on_one_short_line(name: str, shown: str) -> None:
    assert spelled(name) == shown


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_of_nested_bars_the_lower_one_is_no_line_each_time(
    monkeypatch: pytest.MonkeyPatch, size: int, end: bytes
) -> None:
    """As tqdm draws them: a newline leads down to the inner bar, and the end of its state up again."""
    epoch = b"\repoch %d" + b"".join(b"\n\rstep %d\x1b[A" % step for step in range(9)) + b"\n\r     \r\x1b[A"
    raw = (epoch % 1 + epoch % 2 + b"\repoch 2\nend\x1b[A\n\rbar").replace(b"\n", end)
    splitter, pieces = LineSplitter(), [raw[at : at + size] for at in range(0, len(raw), size)]
    monkeypatch.setattr(splitter, "_add", add := Mock(wraps=splitter._add))
    found = [line for piece in pieces for line in splitter.feed(piece)]
    assert add.call_count <= 2 * len(pieces), "not once for each state, which takes thirty times as long as plain text"
    assert found == ["epoch 1", "epoch 2", "epoch 2"] and splitter.bar() == "bar"


@pytest.mark.parametrize("piece", [b"x" * 65536, b"50%\r" * 16384, b"\x1b[31m" * 13000])
def test_a_gigabyte_without_a_line_end_is_held_in_bounded_memory(piece: bytes) -> None:
    splitter = LineSplitter()
    for _ in range(200):
        assert splitter.feed(piece) == []
    assert len(splitter._line) <= 4 * LINE_CHARS
    assert len(splitter.feed(b"\n")[0]) <= LINE_CHARS


@given(st.binary(max_size=500))
def test_no_control_character_ever_gets_through(raw: bytes) -> None:
    assert not re.search("[\x00-\x08\x0a-\x1f\x7f-\x9f]", clean(raw))


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"\x1b", b"[A", b"\r", b"\n"]), max_size=12))
def test_how_the_bytes_were_cut_makes_no_difference(pieces: list[bytes]) -> None:
    assert lines(*pieces) == lines(b"".join(pieces))


PARTS = st.sampled_from(
    [
        *(b"plain text", b"\ttab", b"   ", b"\r", b"\r\n", b"50%\r", b"\x1b[31m", b"\x1b[0m", b"\x1b", b"\x1b]0;title"),
        *(
            b"\x07", b"\x1b\\", b"\x1b[2J", b"\x1b[", b"A", b"\x00\x08", "é·█".encode(),
            "\u202e\u2028".encode(), "\x9b31m\x9d".encode(),
        ),
        *(b"\xff\xc3", b"y" * (LINE_CHARS - 3), b"\x1b[1m" * 4000, b"\n", b"\n", b"\n"),
    ]
)  # fmt: skip


@given(st.lists(PARTS, max_size=25).map(b"".join))
def test_many_lines_at_once_are_cleaned_as_each_by_itself(raw: bytes) -> None:
    *whole, rest = raw.split(b"\n")
    each = [line for part in whole for line in lines(part + b"\n")]
    assert lines(raw) == each + lines(rest)


@pytest.mark.parametrize("pieces", [[b"a se\x1b[0mcret\nplain\n"], [b"a se\x1b[", b"0mcret\n", b"plain\n"]])
def test_what_an_escape_sequence_tore_apart_is_hidden_once_it_is_whole(pieces: list[bytes]) -> None:
    splitter = LineSplitter(lambda text: text.replace("secret", "[redacted]"))
    assert [line for piece in pieces for line in splitter.feed(piece)] == ["a [redacted]", "plain"]
