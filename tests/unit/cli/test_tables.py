"""Tables: aligned and colored on a terminal of any width, tabs elsewhere, and never steered by what is in a cell."""

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from rich.cells import cell_len

from orchestrator.cli.tables import print_table

HEAD = ("SLICE", "ZONE", "STATE", "CLAIM", "NODE")
ROWS = [
    ("alice", "us-central1-a", "READY", "held, idle, until 2026-11-23 11:02:03Z", "tpujob-tcmsq6-x6qn33t5b8"),
    ("lr-sweep-3", "us-east5-b", "CREATING", "run x6qn33t5b8", "tpujob-tcmsq6-77qn33t5b8"),
    ("old", "us-east5-b", "unknown: 503", "being deleted", "tpujob-tcmsq6-99qn33t5b8"),
]
IDS = ("x6qn33t5b8", "us-central1-a", "lr-sweep-3")


Draw = Callable[..., str]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Draw:
    """Return a function that prints a table on a terminal of this width."""

    def draw(width: int, rows: Any = ROWS, head: Sequence[str] = HEAD, **how: Any) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        print_table(head, rows, **(how or {"states": (2,), "optional": (4,), "wraps": (3,)}))
        return capsys.readouterr().out

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "")
    return draw


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("width", [70, 80, 120])
def test_a_table_fits_the_terminal_and_breaks_no_id(drawn: Draw, width: int) -> None:
    text = plain(drawn(width))
    assert text.startswith("SLICE       ZONE           STATE")
    assert max(map(cell_len, text.splitlines())) <= width
    assert all(name in text for name in IDS)
    assert ("tpujob-tcmsq6-x6qn33t5b8" in text) == (width > 70), "the least important column is left out first"


def test_a_name_that_is_cut_keeps_its_end(drawn: Draw) -> None:
    """The names of the runs of a sweep differ in their end."""
    rows = [("x6qn33t5b8", "slow-sweep-4"), ("x6qn33t5b8", "äöü漢字漢字")]
    lines = plain(drawn(20, rows, ("RUN", "JOB"), shortens=(1,))).splitlines()
    assert lines[1].split() == ["x6qn33t5b8", "slo…ep-4"] and lines[2].endswith("…漢字")
    assert max(map(cell_len, lines)) <= 20


def test_a_terminal_that_is_narrower_than_the_ids_gets_whole_ids(drawn: Draw) -> None:
    text = plain(drawn(20))
    assert all(name in text for name in IDS)


def test_states_are_colored_by_their_meaning(drawn: Draw) -> None:
    text = drawn(120)
    assert "\x1b[32mREADY" in text and "\x1b[33mCREATING" in text and "\x1b[31munknown: 503" in text


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_without_color_nothing_but_text_is_printed(
    drawn: Draw, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert "\x1b" not in drawn(120)


def test_elsewhere_a_row_is_a_line_of_cells_between_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    assert not sys.stdout.isatty()
    print_table(("A", "B"), [("one", "two\tand\nthree"), ("", "x")])
    assert capsys.readouterr().out == "one\ttwo and three\n\tx\n"


def test_headings_that_are_data_are_printed_elsewhere_too(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("", "run a"), [("total", "1.0")], head_is_data=True)
    assert capsys.readouterr().out == "\trun a\ntotal\t1.0\n"


def test_wide_letters_count_as_what_they_take(drawn: Draw) -> None:
    rows = [("名前", "z", "READY", "x", ""), ("ab", "z", "READY", "x", "")]
    first, second = plain(drawn(80, rows)).splitlines()[1:]
    assert cell_len(first.partition("z")[0]) == cell_len(second.partition("z")[0])
