"""Durations and dollars, parsed and formatted."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.core.text.durations import format_duration, format_usd, format_usd_per_hour, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("1.5h", 5400), (" 1 h 30 m ", 5400)],
)
def test_durations_are_numbers_with_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(("text", "example"), [
    *((text, "90s, 30m, 1h30m or 2d") for text in ("", "soon", "-5m", "30m1h", "1h1h", "1e3s", "٣m")),
    ("45", "45m or 45h"), ("12:30:00", "12h30m"), ("1:30", "1h30m"),
])  # fmt: skip
def test_anything_else_is_refused_with_an_example(text: str, example: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_duration(text)
    assert str(caught.value) == f"write numbers with units, such as {example}"


@pytest.mark.parametrize(("seconds", "text"), [
    (0, "0 s"), (2.14, "2.1 s"), (58.2, "58.2 s"), (59.96, "1 m"), (72, "1 m 12 s"), (3599.7, "1 h"),
    (11100, "3 h 5 m"), (86399, "1 d"), (90000, "1 d 1 h"), (-72, "-1 m 12 s"),
    (float("inf"), "unknown"), (float("nan"), "unknown"),
])  # fmt: skip
def test_durations_are_formatted_in_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(0, 1e9))
@example(3599.5)
def test_a_formatted_duration_parses_as_nearly_the_same(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.03, abs=0.051)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0.1, "$0.10"), (0.0, "$0.00"), (0.001, "<$0.01"), (1234.5, "$1,234.50"), (None, "an unknown amount")],
)
def test_dollars_never_hide_that_something_was_paid_or_is_unknown(amount: float | None, text: str) -> None:
    assert format_usd(amount) == text


@pytest.mark.parametrize(
    ("amount", "text"), [(9.6, "about $9.60/h"), (0.0, "$0.00/h (granted)"), (None, "price unknown")]
)
def test_a_price_is_about(amount: float | None, text: str) -> None:
    assert format_usd_per_hour(amount) == text
