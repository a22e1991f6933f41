"""What jobs and workers write, as text: alike lines, JSON from elsewhere, metrics, and what reaches a terminal."""

import json
import math
import re
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.text.parsing import DEEPEST, MetricLine, less_is_better, line_of, loads
from orchestrator.text.terminal import (
    LINE_CHARS,
    MOST_RANGES,
    LineSplitter,
    clean,
    grouped,
    masked,
    said_once,
    spelled,
    worker_names,
)


@pytest.mark.parametrize(("one", "other"), [
    ("worker0: no route to host", "worker63: no route to host"),
    ("connect to 10.0.0.7:22 failed", "connect to 10.130.0.12:22022 failed"),
    ("connect to fe80::1ff:fe23:4567:890a failed", "connect to ::1 failed"),
    ("at 0x7f3bd2a01f90", "at 0x55d0c8"), ("object 3f2a9b7c is gone", "object 00c1d2e3f4 is gone"),
    ("run 1b4e28ba-2fa1-11d2-883f-0016d3cca427", "run 6fa459ea-ee8a-3ca4-894e-db77e160355e"),
    ("loss 1.25e-07 after 1,200 steps", "loss 0.3 after 7 steps"),
    ("host t1v-n-0a1b-w-5", "host t1v-n-0a1b-w-12"),
])  # fmt: skip
def test_numbers_addresses_ids_and_names_of_workers_make_no_difference(one: str, other: str) -> None:
    assert masked(one) == masked(other)


@pytest.mark.parametrize(("one", "other"), [
    ("ValueError: bad", "TypeError: bad"), ("FileNotFoundError: 'train.bin'", "FileNotFoundError: 'valid.bin'"),
    ("a dead beef", "a dead face"),
])  # fmt: skip
def test_other_words_make_a_difference(one: str, other: str) -> None:
    assert masked(one) != masked(other)


def test_groups_keep_the_order_of_their_first_items() -> None:
    assert grouped([3, 1, 13, 2, 11], lambda number: number % 10) == [[3, 13], [1, 11], [2]]


@pytest.mark.parametrize(("indexes", "names"), [
    ([], ""), ([7], "worker7"), ([1, 0], "worker0 and worker1"), ([0, 1, 2], "worker0 to worker2"),
    ([*range(63), 64], "worker0 to worker62 and worker64"), ([0, 2, 4], "worker0, worker2 and worker4"),
    (range(0, 64, 2), "worker0, worker2, worker4, worker6 and 28 more"),
])  # fmt: skip
def test_workers_are_named_by_ranges_and_many_ranges_are_cut(indexes: list[int], names: str) -> None:
    assert worker_names(indexes) == names


@given(st.sets(st.integers(0, 300)))
def test_names_of_workers_are_always_short(indexes: set[int]) -> None:
    assert len(worker_names(indexes)) < 30 * (MOST_RANGES + 1)


def test_messages_that_are_alike_are_said_once_with_their_workers() -> None:
    messages = [f"worker{index}: connect to 10.0.0.{index}:22 failed" for index in range(64)]
    assert said_once(messages) == "worker0: connect to 10.0.0.0:22 failed (64 alike: worker0 to worker63)"
    messages[5] = "worker5: no space left on device"
    text = said_once(messages)
    assert text.endswith("(63 alike: worker0 to worker4 and worker6 to worker63); worker5: no space left on device")


def test_messages_without_names_are_counted() -> None:
    assert said_once(["silent", "silent"]) == "silent (2 alike)"
    assert said_once(["silent"]) == "silent"


def test_of_many_different_messages_the_first_are_said_and_the_others_counted() -> None:
    messages = [f"worker0: {letter}" for letter in "pqrstu"]
    assert said_once(messages) == "worker0: p; worker0: q; worker0: r; and 3 more"


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(VALUES, st.booleans())
def test_every_value_is_read_as_python_reads_it(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert loads(text) == json.loads(text)
    if ascii_only:
        assert loads(text.encode()) == json.loads(text)


@pytest.mark.parametrize(("opens", "closes"), [("[", "]"), ('{"a": ', "}"), ('[1, {"]": ', "}]")])
def test_what_is_nested_deeply_is_refused_before_the_parser_recurses(opens: str, closes: str) -> None:
    levels = opens.count("[") + opens.count("{")
    fits = DEEPEST // levels
    assert loads(opens * fits + "1" + closes * fits)
    for deep in (opens * (fits + 1) + "1" + closes * (fits + 1), opens * 100_000):
        with pytest.raises(ValueError, match="nested more than 500 levels"):
            loads(deep)


def test_many_lists_beside_each_other_and_brackets_in_text_are_not_deep() -> None:
    assert len(loads(json.dumps([[0, 1]] * 10_000))) == 10_000
    assert loads(json.dumps('[{"' * 10_000)) == '[{"' * 10_000


@pytest.mark.parametrize("text", ["", "{", '"', "[1,]", b"\xff", "[" * 600 + '"' + "\\" * 601])
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        loads(text)


def test_the_options_are_those_of_json() -> None:
    assert loads("[1, 1e400]", parse_int=float) == [1.0, float("inf")]


@pytest.mark.parametrize(("text", "step", "values"), [
    ('{"step": 1200, "loss": 0.41, "n": 3}', 1200, {"loss": 0.41, "n": 3.0}),
    ('{"loss": 1}', None, {"loss": 1.0}), ('{"step": 10.0, "loss": 1}', 10, {"loss": 1.0}),
    ('{"step": 1, "loss": 2, "note": "x", "on": true, "nested": {"a": 1}, "list": [1], "none": null}', 1, {"loss": 2.0}),
    *((f'{{"loss": {value}}}', None, {"loss": None}) for value in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 400)),
    *((f'{{"step": {step}, "loss": 1}}', None, {"loss": 1.0})
      for step in ("-1", "1.5", '"7"', "true", "null", "1e300", "NaN")),
])  # fmt: skip
def test_a_line_has_a_step_and_those_values_that_are_numbers(
    text: str, step: int | None, values: dict[str, Any]
) -> None:
    assert line_of(json.loads(text)) == MetricLine(step, values)


@pytest.mark.parametrize("found", [[], 7, "loss", None, {}, {"step": 3}, {"\x1b[31m": 1}, {"": 1}, {"n" * 65: 1}])
def test_a_line_without_metrics_says_nothing(found: Any) -> None:
    assert line_of(found) is None


REPORTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(REPORTED)
def test_no_line_raises(found: Any) -> None:
    line = line_of(found)
    assert line is None or all(value is None or math.isfinite(value) for value in line.values.values())


@pytest.mark.parametrize(("names", "less"), [
    (["loss", "val/Loss", "test_error", "perplexity", "rmse", "eval/mse", "step_s", "wer"], True),
    (["acc", "accuracy", "images_per_s", "tokens/sec", "f1", "bleu", "auc"], False),
    (["lr", "learning_rate", "grad_norm", "epoch", "tokens", "beta", "entropy", "x"], None),  # no value is the best
])  # fmt: skip
def test_of_some_metrics_less_is_better_and_of_some_more(names: list[str], less: bool | None) -> None:
    assert {name: less_is_better(name) for name in names} == dict.fromkeys(names, less)


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
