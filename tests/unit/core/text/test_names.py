"""Names, labels, durations, dollars and sizes, as people write and read them."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.core.text import names
from orchestrator.core.text.units import (
    format_duration,
    format_size,
    format_usd,
    format_usd_per_hour,
    parse_duration,
    parse_size,
)


def test_a_run_id_is_ten_letters_without_the_ambiguous_ones() -> None:
    assert names.new_run_id(0) == "0000000000"
    assert names.new_run_id(2**50 - 1) == "zzzzzzzzzz"
    assert names.new_run_id(0b00001_00010) == "0000000012"


@given(st.integers(0, 2**50 - 1), st.integers(0, 2**50 - 1))
def test_different_bits_give_different_run_ids(one: int, other: int) -> None:
    assert (names.new_run_id(one) == names.new_run_id(other)) == (one == other)
    assert not set(names.new_run_id(one)) & set("ilou")


def test_more_bits_than_a_run_id_holds_are_a_bug() -> None:
    with pytest.raises(AssertionError):
        names.new_run_id(2**50)


def test_an_owner_id_is_stable_and_differs_by_user_and_machine() -> None:
    assert names.owner_id("ada", "laptop") == names.owner_id("ada", "laptop")
    others = {names.owner_id("ada", "desktop"), names.owner_id("bob", "laptop"), names.owner_id("adal", "aptop")}
    assert len(others | {names.owner_id("ada", "laptop")}) == 4
    assert names.owner_id("\udcff", "x") != names.owner_id("", "x")  # a user name that is not text


@given(st.text(), st.integers(0, 2**50 - 1))
def test_every_node_name_is_allowed_by_the_api(user: str, bits: int) -> None:
    owner, run = names.owner_id(user, "machine"), names.new_run_id(bits)
    node = names.node_name(owner, run)
    assert node == f"tpujob-{owner}-{run}"
    assert names.node_problem(node) is None


def test_the_labels_are_those_that_gc_reads() -> None:
    labels = names.labels(
        lease_id="7q2m4x1pzt", owner="k3f9ab", claimed_until=1795255421.9, deadline=1795341821.0, name="mnist",
        mode="attached",
    )  # fmt: skip
    assert labels == {
        "tpujob": "1", "tpujob-lease-id": "7q2m4x1pzt", "tpujob-owner": "k3f9ab",
        "tpujob-claimed-until": "1795255421", "tpujob-deadline": "1795341821", "tpujob-name": "mnist",
        "tpujob-mode": "attached",
    }  # fmt: skip


@pytest.mark.parametrize(("node", "labels", "ours"), [
    ("tpujob-k3f9ab-7q2m4x1pzt", {"tpujob": "1"}, True), ("tpujob-k3f9ab-7q2m4x1pzt", {}, False),
    ("training", {"tpujob": "1"}, False), ("tpujobs", {"tpujob": "1"}, False),
])  # fmt: skip
def test_a_node_is_ours_by_name_and_label_only_together(node: str, labels: dict[str, str], ours: bool) -> None:
    assert names.is_ours(node, labels) is ours


@given(st.text())
def test_any_text_becomes_a_valid_label_value(text: str) -> None:
    assert re.fullmatch("[a-z0-9_-]{0,63}", names.to_label_value(text))


@given(st.text())
def test_any_text_becomes_a_job_name(text: str) -> None:
    assert names.job_name_problem(names.to_job_name(text)) is None


@pytest.mark.parametrize("text", ["my-project-1", "a23456", "a" * 30, "example.com:my-project"])
def test_project_ids_of_google_are_accepted(text: str) -> None:
    assert names.project_problem(text) is None


@pytest.mark.parametrize("text", [
    "-oProxyCommand=x", "My-Project", "a" * 31, "short", "ends-with-", "1abcdef", "a/../../b", "", "abcdef\n",
    "prоject-1",
])  # fmt: skip
def test_an_invalid_project_id_is_refused_with_the_rule(text: str) -> None:
    problem = names.project_problem(text)
    assert problem is not None and "6 to 30 lower-case letters" in problem


@pytest.mark.parametrize("text", ["us-central1-a", "northamerica-northeast1-b", "europe-west12-c"])
def test_zones_are_recognised_by_their_form(text: str) -> None:
    assert names.zone_problem(text) is None
    assert names.region_problem(text.rpartition("-")[0]) is None


@pytest.mark.parametrize(
    "text", ["us-central1", "../..", "; rm -rf ~", "us-central1-a\n", "-", "US-CENTRAL1-A", "us-central1-aa"]
)
def test_an_invalid_zone_is_refused(text: str) -> None:
    assert names.zone_problem(text) == "is not a zone; zones look like us-central1-a"


@pytest.mark.parametrize("text", ["a", "node-1", "a" * 61])
def test_node_names_of_the_api_are_accepted(text: str) -> None:
    assert names.node_problem(text) is None


@pytest.mark.parametrize("text", ["", "A", "1a", "a-", "-a", "a_b", "a" * 62, "a/b", "$(reboot)", "a\n"])
def test_an_invalid_node_name_is_refused(text: str) -> None:
    assert names.node_problem(text)


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


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("50GB", 50 * 10**9), ("1.5 TB", 1_500 * 10**9), ("512MiB", 512 << 20), ("7 b", 7), ("10kB", 10_000)],
)
def test_a_size_has_a_unit(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "50", "GB", "50 gigabytes", "-1GB", "1e9B", "５GB", "50G"])
def test_an_invalid_size_gets_advice(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as 500MB, 50GB or 1\.5TB"):
        parse_size(text)


@pytest.mark.parametrize(("size_bytes", "text"), [
    (0, "0 bytes"), (1, "1 byte"), (812, "812 bytes"), (81_200, "81 KB"), (999_600, "1.0 MB"), (3_240_000_000, "3.2 GB"),
    (5e15, "5,000.0 TB"),
])  # fmt: skip
def test_a_size_is_shown_with_few_figures(size_bytes: float, text: str) -> None:
    assert format_size(size_bytes) == text
