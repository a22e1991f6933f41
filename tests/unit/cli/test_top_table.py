"""The table of `tpujob top`: its order, its cells, what fits a terminal, and what keys do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from orchestrator.api.command_line import CommandClient
from orchestrator.api.live import top as live
from orchestrator.api.live.tables import HEAD, cells, remarks
from orchestrator.api.live.top import Asked, Top, TopRow
from orchestrator.api.session.reporter import Reporter
from orchestrator.cli.console import output
from orchestrator.cli.console.top_table import TopScreen, ordered
from orchestrator.errors import UserError
from tests.waiting import until

NOW = 1_700_000_000.0


def row(name: str = "fit", **said: Any) -> TopRow:
    usual: dict[str, Any] = {
        "kind": "run",
        "id": f"{name}-1",
        "state": "running",
        "cloud": "emulated",
    }
    return TopRow(name=name, **usual | said)


def top(*rows: TopRow, problems: tuple[str, ...] = ()) -> Top:
    return Top(NOW, "emulated", "of a test", NOW, problems, rows)


def screen(filters: list[str] | None = None, sort: str | None = None) -> TopScreen:
    return TopScreen(filters or [], sort, ended=False)


def press(shown: TopScreen, *keys: str) -> None:
    for key in keys:
        assert shown.press(key, 10)


def names(rows: list[TopRow]) -> list[str]:
    return [each.name for each in rows]


FULL = row(
    accelerator_type="v5litepod-8", zone="us-central1-a", step=1200, metric="loss", value=0.25, rate=1234.5, rate_of="images",
    hbm_percent=41.0, duty_percent=80.2, cpu_percent=7.0, usd_so_far=0.5, usd_at_most=2.0, until=NOW + 3600,
)  # fmt: skip


def test_a_row_says_what_the_run_does_costs_and_until_when() -> None:
    found = dict(zip(HEAD, cells(FULL, NOW), strict=True))
    assert found["STEP"] == "1,200" and found["FIGURE"] == "loss 0.25" and found["RATE"] == "1,234 images/s"
    assert (found["HBM"], found["DUTY"], found["CPU"]) == ("41 %", "80 %", "7 %")
    assert (found["COST"], found["AT MOST"]) == ("$0.50", "$2.00") and found["UNTIL"].startswith("in ")


def test_what_is_not_known_is_a_dash_and_a_run_that_ended_has_no_bound() -> None:
    found = dict(zip(HEAD, cells(row(usd_at_most=2.0, ended_at=NOW - 60), NOW), strict=True))
    assert {found[name] for name in ("STEP", "FIGURE", "RATE", "HBM", "AT MOST", "TYPE", "ZONE")} == {"-"}
    assert found["UNTIL"].endswith("ago")


def test_figures_are_sorted_from_the_highest_and_what_is_not_known_comes_last() -> None:
    rows = [row("a", step=3), row("b"), row("c", step=20)]
    assert names(ordered(rows, None, "step")) == ["c", "a", "b"]
    assert names(ordered(rows, None, "step", reverse=True)) == ["a", "c", "b"]
    assert names(ordered(rows, None, "name", reverse=True)) == ["c", "b", "a"]
    assert names(ordered(rows, None, None)) == ["a", "b", "c"]


def test_conditions_name_columns_as_the_table_and_as_json_do() -> None:
    rows = [row("a", usd_so_far=1.0, params={"lr": 0.1}), row("b", usd_so_far=3.0)]
    assert names(ordered(rows, ["cost>2"], None)) == ["b"] == names(ordered(rows, ["usd_so_far>2"], None))
    assert names(ordered(rows, ["params.lr=0.1"], None)) == ["a"]
    with pytest.raises(UserError, match="no column `nope`"):
        ordered(rows, ["nope=1"], None)


def test_json_has_the_rows_that_meet_the_conditions() -> None:
    found = top(row("a"), row("b"))
    assert [row.name for row in ordered(found.rows, ["job=b"], None)] == ["b"]


def test_keys_change_the_order() -> None:
    shown, found = screen(), top(row("b", step=1), row("a", step=2))
    press(shown, "s", "s")
    assert shown.sort == "name" and body(shown, found) == ["a", "b"]
    press(shown, "r")
    assert body(shown, found) == ["b", "a"] and "by name, reversed" in shown.lines(found, 120, 24)[-2]


def test_a_filter_is_typed_and_escape_leaves_it() -> None:
    shown, found = screen(), top(row("a"), row("b"))
    press(shown, "/", *"job=bb", "erase", "enter")
    assert shown.filters == ["job=b"] and body(shown, found) == ["b"]
    press(shown, "/", *"xyz", "escape")
    assert shown.filters == ["job=b"]
    press(shown, "/", "\x15", *"job=b q")
    assert "filter: job=b q" in shown.lines(found, 80, 24)[-1], "q is a letter of the filter"
    press(shown, "escape", "escape")
    assert shown.filters == [] and body(shown, found) == ["a", "b"]
    assert not shown.press("q", 10)


@pytest.mark.parametrize("filters", [["name=two words", "cost>2"], ["it's"], ['a"b', "c\\d"], ["remark=*"]])
def test_a_filter_stays_the_same_when_it_is_looked_at_and_left_as_it_is(filters: list[str]) -> None:
    shown = screen(filters)
    press(shown, "/", "enter")
    assert shown.filters == filters


def test_a_quote_without_its_end_is_a_part_of_what_is_looked_for() -> None:
    shown, found = screen(), top(row("it's"), row("b"))
    press(shown, "/", *"it's", "enter")
    assert body(shown, found) == ["it's"]


def test_a_condition_that_no_row_can_meet_is_named_and_hides_nothing() -> None:
    shown, found = screen(["nope=1"]), top(row("a"))
    lines = shown.lines(found, 120, 24)
    assert "filter nope=1 · no column `nope`" in lines[-2] and "a-1" in "\n".join(lines)


def test_arrows_scroll_as_far_as_there_are_rows() -> None:
    shown, found = screen(), top(*(row(f"r{number}") for number in range(30)))
    press(shown, "up", "down", "page down", *["page down"] * 9)
    assert body(shown, found)[-1] == "r29" and len(body(shown, found)) > 10


def test_what_was_not_asked_and_what_is_remarked_is_below_the_table() -> None:
    found = top(
        row("a", remark="worker0 (1 of 1): process 7 holds a chip"), problems=("not known: the queue: no answer",)
    )
    text = "\n".join(screen().lines(found, 80, 24))
    assert "not known: the queue: no answer" in text and "a: worker0 (1 of 1): process 7 holds a chip" in text


WIDE = row("訓練" * 10, metric="損失" * 20, value=0.5, state="unknown: " + "x" * 90, remark="長い" * 90)
HOSTILE = row("a\x1b[2J\nb\tc", metric="loss\x1b]0;x\x07", value=1.0, remark="\x1b[31m" + "x" * 300)


@pytest.mark.parametrize("columns", [10, 20, 40, 80, 200])
@pytest.mark.parametrize("height", [1, 5, 24])
def test_every_line_fits_the_terminal(columns: int, height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown = screen(["x" * 300])
    shown.typed = "訓" * 100
    for found in (top(), top(*[FULL, WIDE, HOSTILE] * 9, problems=("`a long command " + "y" * 100 + "`",))):
        shown.filters = []
        lines = shown.lines(found, columns, height)
        assert all(line.isprintable() for line in lines)
        assert len(lines) == height or height < 6
        assert columns < 20 or max(map(cell_len, lines)) <= columns


def test_a_column_in_which_no_row_has_anything_goes_first() -> None:
    head = next(line for line in screen().lines(top(row("a", duty_percent=3.0)), 60, 24) if line.startswith("NAME"))
    assert "DUTY" in head and "HBM" not in head


@pytest.mark.parametrize("columns", range(40, 140, 7))
def test_a_number_is_shown_whole_or_not_at_all(columns: int) -> None:
    sweep = {"sweep": "learning-rates", "variant": "lr=0.0003"}
    text = "\n".join(screen().lines(top(FULL, row(metric="loss", value=6.367e-07, **sweep)), columns, 24))
    assert "loss 6.367e-07" in text and "loss 0.25" in text and ("images/s" not in text or "1,234 images/s" in text)


def test_a_name_is_that_of_the_table_for_conditions_and_remarks_too() -> None:
    rows = [
        row("s-1", sweep="s", variant="lr=1", remark="busy"),
        row("a", remark="one"),
        row("a", id="a-2", remark="two"),
    ]
    for condition in ("name=s lr=1", "name=s-1", "s lr=1"):
        assert names(ordered(rows, [condition], None)) == ["s-1"]
    assert remarks(rows) == ["s lr=1: busy", "a a-1: one", "a a-2: two"]


@pytest.mark.parametrize("state", ["pending", "succeeded", "collecting"])
def test_chips_and_processors_are_those_of_a_job_that_runs(state: str) -> None:
    assert cells(replace(FULL, state=state), NOW)[8:11] == ("-", "-", "-")


def test_a_variant_that_waits_has_no_run_yet() -> None:
    assert cells(row(kind="job", id="sweep", cloud="", state="queued"), NOW)[1] == "-"


def test_a_step_that_is_old_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)  # the clock by which a step is dated, and not that of the ledger
    assert cells(row(step=44, seen_at=NOW - 90), NOW - 7200)[5] == "44, 90 s ago"
    assert (
        cells(row(step=44, seen_at=NOW - 9), NOW + 7200)[5]
        == cells(row(step=44, seen_at=NOW - 90, ended_at=NOW), NOW)[5]
        == "44"
    )


def test_what_a_run_on_this_machine_costs_is_said_as_elsewhere() -> None:
    assert [cells(row(cloud=cloud), NOW)[11] for cloud in ("local", "google")] == ["none (local)", "unknown"]


def test_what_is_not_proven_gone_beside_the_table_is_the_exit_code_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUJOB_STATE_DIR", str(tmp_path))

    def ask(session: Any) -> Asked:
        session.unproven["lease"] = None
        return Asked(problems=("it asked",))

    monkeypatch.setattr(live, "ask", ask)
    command = CommandClient(Reporter(), "emulated")
    with command.watching() as watch:
        until(lambda: watch.look().problems == ("it asked",))
    assert command.unproven


def test_what_does_not_fit_is_counted() -> None:
    lines = screen().lines(top(*(row(f"r{number}", remark="x" * 100) for number in range(30))), 80, 24)
    assert "rows 1 to 13 of 30" in lines[-2] and "and 25 more; `tpujob top --once` prints all" in lines
    assert "r12" in "\n".join(lines)


def test_the_api_is_not_being_asked_once_it_has_not_answered() -> None:
    found = replace(top(), asked_at=None)
    assert "the API is being asked" in screen().lines(found, 120, 24)[0]
    assert "the API has not answered" in screen().lines(replace(found, problems=("p: no answer",)), 120, 24)[0]


def test_the_first_order_comes_back() -> None:
    shown = screen()
    press(shown, *"s" * 12)
    assert shown.sort is None


def test_a_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    output.console().secrets.add("hunter2hunter2")
    found = top(row("hunter2hunter2", metric="hunter2hunter2", value=1.0, remark="hunter2hunter2"))
    shown = screen(["hunter2hunter2"])
    assert "hunter2" not in "\n".join(shown.lines(found, 200, 24))
    output.console.cache_clear()


def body(shown: TopScreen, found: Top) -> list[str]:
    lines = shown.lines(found, 120, 24)
    begin = next(number for number, line in enumerate(lines) if re.match(r"\W*(\[1m)?NAME", line))
    return [line.split()[0] for line in lines[begin + 1 : -2] if line]
