"""The table of `status`: a line a slice at 80 columns, and everything about it where other programs read."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from orchestrator.cli.commands.slices.status import print_slices
from orchestrator.client.slices.status import SliceRow, WaitingRun

NOW = 1_795_000_000.0
HOUR = 3600.0


def row(name: str, **other: Any) -> SliceRow:
    known: dict[str, Any] = {
        "name": name, "node": "tpujob-k3f9ab-7q2m4x1pzt", "project": "acme", "zone": "us-central1-a",
        "accelerator_type": "v5litepod-8", "spot": False, "lease": "ready", "lease_id": "7q2m4x1pzt",
        "state": "READY", "created_at": NOW - HOUR, "deadline": NOW + 23.5 * HOUR, "ends_at": NOW + 23.5 * HOUR,
        "usd_per_hour": 9.6, "usd_so_far": 9.6, "usd_at_most": 230.4, "mode": "run", "emulated": True,
        "run": "ygd9h8ty0y", "owner": "k3f9ab", "yours": True, "remark": None, "now": NOW,
    }  # fmt: skip
    return SliceRow(**known | other)


HELD = {"mode": "hold", "in_use": False, "idle_ends_at": NOW + 59 * 60, "run": None}
ROWS = [
    row("alice", **HELD), row("mnist"), row("lr-sweep-12", zone="europe-west4-b", mode="hold", in_use=True),
    row("train", mode="detached", followed=True), row("old", down_at=NOW - 3.0),
]  # fmt: skip
WAITING = [WaitingRun("waiter", "f6c3fe0pff", "emulated", "v5litepod-16", "us-west4")]


Print = Callable[..., list[str]]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Print:
    """Return a function that prints these slices on a terminal, and returns its lines."""

    def lines_of(*rows: SliceRow, waiting: Sequence[WaitingRun] = WAITING) -> list[str]:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        print_slices(rows, waiting, complete=True)
        return capsys.readouterr().out.splitlines()

    for name, value in {"COLUMNS": "80", "TERM": "xterm-256color", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    return lines_of


def test_at_80_columns_every_slice_and_every_waiting_run_is_a_line(printed: Print) -> None:
    head, *lines = printed(*ROWS)
    assert head.split() == ["SLICE", "TYPE", "ZONE", "STATE", "CLAIM", "COST", "AT", "MOST"]
    assert max(map(len, lines)) <= 80
    cells = [[cell for cell in line.split("  ") if cell] for line in lines]
    assert [each[0] for each in cells] == ["alice", "mnist", "lr-sweep-12", "train", "old", "waiter"]
    assert [each[4].strip() for each in cells] == [
        "idle, 59 m left", "run ygd9h8ty0y", "held, in use", "detached, followed", "being deleted",
        "run f6c3fe0pff",
    ]  # fmt: skip
    assert [each.strip() for each in cells[5][1:4]] == ["v5e-16", "us-west4", "waiting"]
    assert [each.strip() for each in cells[0][5:]] == ["$9.60", "$230.40"]


def test_a_long_name_needs_no_second_line(printed: Print) -> None:
    lines = printed(row("keras-tpustrategy"), row("alice", **HELD), waiting=())
    assert len(lines) == 3 and max(map(len, lines)) <= 80


def test_a_remark_is_a_line_below_the_table(printed: Print) -> None:
    assert printed(row("alice", remark="results of 7q2m are on it"))[-1] == "alice: results of 7q2m are on it"


def test_beside_slices_of_google_cloud_a_cost_says_that_it_is_emulated(printed: Print) -> None:
    text = "\n".join(printed(row("alice"), row("bob", emulated=False, usd_so_far=2.0)))
    assert "$9.60 emulated" in text and "$2.00 " in text and "$2.00 emulated" not in text


def test_elsewhere_a_line_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    print_slices([row("alice", **HELD, remark="a remark")], WAITING, complete=True)
    first, second = capsys.readouterr().out.splitlines()
    assert first.split("\t")[4].startswith("held, idle, until 2026-") and first.split("\t")[4].endswith("; a remark")
    assert first.split("\t")[5:] == ["$9.60 emulated", "$230.40", "tpujob-k3f9ab-7q2m4x1pzt"]
    assert second == "waiter\tv5litepod-16\tus-west4\twaiting\trun f6c3fe0pff\t-\t-\t"
