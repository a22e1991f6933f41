"""JSON from elsewhere: as Python reads it, and never deep enough to reach Python's own limit."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.text.json_text import DEEPEST, loads

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
