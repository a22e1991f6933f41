"""docs/guarantee.md says what the code promises: bounds, periods, and what was measured."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from orchestrator.core import pace as paces
from orchestrator.core.durations import parse_duration
from orchestrator.core.pace import GOOGLE
from orchestrator.drill import promise
from orchestrator.drill.promise import Promise, World

FOLDER = Path(__file__).parents[3] / "docs"
PAGE = (FOLDER / "guarantee.md").read_text(encoding="utf-8")
EMULATED = World(pace=paces.emulated(), provision_s=2.0)
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]


def row(*beginning: str) -> list[str]:
    (found,) = [
        cells for cells in ROWS if all(cell.startswith(said) for cell, said in zip(cells, beginning, strict=False))
    ]
    return found


def plot() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plot", FOLDER / "guarantee" / "plot.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("beginning", "kept_by", "outage_s"),
    [
        (("C0", "the end"), promise.owner, 0),
        (("C1", "the command"), promise.guardian, 0),
        (("C1", "… while"), promise.guardian_of_a_create, 0),
        (("C2", "the guardian"), promise.timer, 0),
        (("C3", "the machine"), promise.switch, 0),
        (("C3", "… the run was detached"), promise.switch_of_a_detached_run, 0),
        (("C3", "… the slice was held"), promise.switch_of_a_held_slice, 0),
        (("C3'", "… and"), promise.switch_of_a_create, 0),
        (("C5", "… nobody"), promise.switch, 60.0),
        (("C7", "C3, and"), promise.sweeper, 0),
    ],
)
def test_the_bounds_of_the_page_are_those_of_the_promise(
    beginning: tuple[str, str], kept_by: Promise, outage_s: float
) -> None:
    *_, google, emulated = row(*beginning)
    assert google == kept_by(World(outage_s=outage_s)).symbolic
    assert emulated == kept_by(replace(EMULATED, outage_s=outage_s)).symbolic


def test_every_class_has_its_row() -> None:
    named = {cells[0] for cells in ROWS if re.fullmatch(r"C\d+'?", cells[0])}
    assert named == {*(f"C{number}" for number in range(13)), "C3'"}


@pytest.mark.parametrize(
    ("name", "google_s", "emulated_s"),
    [
        ("beat", GOOGLE.beat_s, EMULATED.pace.beat_s),
        ("time to live", GOOGLE.ttl_s, EMULATED.pace.ttl_s),
        ("grace", GOOGLE.grace_s, EMULATED.pace.grace_s),
        ("label", GOOGLE.label_ttl_s, EMULATED.pace.label_ttl_s),
        ("first label", GOOGLE.provision_s + GOOGLE.boot_s, EMULATED.pace.provision_s + EMULATED.pace.boot_s),
        ("linger", GOOGLE.linger_s, EMULATED.pace.linger_s),
        ("margin", GOOGLE.margin_s, EMULATED.pace.margin_s),
    ],
)
def test_the_periods_of_the_page_are_those_of_the_pace(name: str, google_s: float, emulated_s: float) -> None:
    (cells,) = [cells for cells in ROWS if cells[0] == name]
    assert [parse_duration(cell.replace("min", "m")) for cell in cells[1:3]] == [google_s, emulated_s]
    assert GOOGLE.poll_s == GOOGLE.beat_s and GOOGLE.renew_s == 1800


def test_the_table_and_the_curves_are_drawn_from_the_measured_rows() -> None:
    drawing = plot()
    assert drawing.page_text(PAGE) == PAGE, "run `python docs/guarantee/plot.py`"
    assert (FOLDER / "guarantee" / "unclaimed.svg").read_text(encoding="utf-8") == drawing.svg()


def test_no_measured_slice_was_billed_for_longer_than_promised() -> None:
    rows, _ = plot().read()
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
