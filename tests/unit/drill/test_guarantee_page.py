"""docs/guarantee.md says what the code promises: bounds, periods, and what was measured."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest
import yaml

from orchestrator.core.lease import timings as claim_timings
from orchestrator.core.lease.timings import GOOGLE
from orchestrator.core.text.durations import parse_duration
from tests import ROOT

FOLDER = ROOT / "docs"
PAGE = (FOLDER / "guarantee.md").read_text(encoding="utf-8")
EMULATED = claim_timings.emulated()
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]


def drawing(name: str) -> ModuleType:
    """A script of docs/guarantee."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / "guarantee" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_bounds_of_the_page_are_the_table_of_promises() -> None:
    assert drawing("bounds").page_text(PAGE) == PAGE, "run `python docs/guarantee/bounds.py`"


def test_every_class_has_its_row() -> None:
    named = {cells[0] for cells in ROWS if re.fullmatch(r"C\d+'?", cells[0])}
    assert named == {*(f"C{number}" for number in range(13)), "C3'"}


@pytest.mark.parametrize(
    ("name", "google_s", "emulated_s"),
    [
        ("heartbeat", GOOGLE.heartbeat_s, EMULATED.heartbeat_s),
        ("time to live", GOOGLE.ttl_s, EMULATED.ttl_s),
        ("grace", GOOGLE.grace_s, EMULATED.grace_s),
        ("label", GOOGLE.label_ttl_s, EMULATED.label_ttl_s),
        ("first label", GOOGLE.provision_s + GOOGLE.boot_s, EMULATED.provision_s + EMULATED.boot_s),
        ("linger", GOOGLE.linger_s, EMULATED.linger_s),
        ("margin", GOOGLE.margin_s, EMULATED.margin_s),
    ],
)
def test_the_periods_of_the_page_are_those_of_the_pace(name: str, google_s: float, emulated_s: float) -> None:
    (cells,) = [cells for cells in ROWS if cells[0] == name]
    assert [parse_duration(cell.replace("min", "m")) for cell in cells[1:3]] == [google_s, emulated_s]
    assert GOOGLE.poll_s == GOOGLE.heartbeat_s and GOOGLE.renew_s == 1800


def test_the_table_and_the_curves_are_drawn_from_the_measured_rows() -> None:
    plot = drawing("plot")
    assert plot.page_text(PAGE) == PAGE, "run `python docs/guarantee/plot.py`"
    assert (FOLDER / "guarantee" / "unclaimed.svg").read_text(encoding="utf-8") == plot.svg()


def test_no_measured_slice_was_billed_for_longer_than_promised() -> None:
    rows, _ = drawing("plot").read()
    over = [(layer, *each) for layer, own in rows.items() for each in own if each[1] is not None and each[0] > each[1]]
    assert over == []
    assert {"L1/L2", "L3", "L4", "nobody"} <= set(rows)


def test_each_role_can_be_pasted_and_only_the_users_creates() -> None:
    roles = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
    assert len(roles) == 3
    for role in roles:
        assert set(role) == {"title", "description", "stage", "includedPermissions"}
        assert {"tpu.nodes.get", "tpu.nodes.delete"} <= set(role["includedPermissions"])
    assert [("tpu.nodes.create" in role["includedPermissions"]) for role in roles] == [True, False, False]
