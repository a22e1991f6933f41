"""docs/guarantee.md and docs/bounds.md agree with the code: bounds, periods, and measurements."""

import importlib.util
import re
import sys
from types import ModuleType

import pytest
import yaml

from orchestrator.core.lease import timings as claim_timings
from orchestrator.core.lease.timings import GOOGLE
from orchestrator.core.text.durations import parse_duration
from orchestrator.promises import PROMISES
from tests import ROOT
from tests.simulation.oracle.invariants import STATEMENTS

FOLDER = ROOT / "docs"
BOUNDS_PAGE = (FOLDER / "bounds.md").read_text(encoding="utf-8")
EMULATED = claim_timings.emulated()
ROWS = [line.strip("| ").split(" | ") for line in BOUNDS_PAGE.splitlines() if line.startswith("| ")]


def script(name: str) -> ModuleType:
    """Return a script of docs/guarantee as a module."""
    spec = importlib.util.spec_from_file_location(f"guarantee_{name}", FOLDER / "guarantee" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look it up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["bounds.md", "guarantee.md"])
def test_the_bounds_of_a_page_are_those_of_the_table_of_promises(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert script("bounds").page_text(name, text) == text, "run `python docs/guarantee/bounds.py`"


def test_a_formula_has_each_term_with_its_length_and_a_letter_for_what_tpujob_cannot_promise() -> None:
    bounds = script("bounds")
    assert bounds.formula(PROMISES["watchdog"]) == ("time to live 15 m + grace 3 m + the watchdog's own work 20 s + D")
    assert bounds.formula(PROMISES["cut off"]) == ""


def test_every_class_has_its_row() -> None:
    named = {cells[0] for cells in ROWS if re.fullmatch(r"C\d+'?", cells[0])}
    assert named == {*(f"C{number}" for number in range(13)), "C3'"}


@pytest.mark.parametrize(("name", "google_s", "emulated_s"), [
    ("heartbeat", GOOGLE.heartbeat_s, EMULATED.heartbeat_s), ("time to live", GOOGLE.ttl_s, EMULATED.ttl_s),
    ("grace", GOOGLE.grace_s, EMULATED.grace_s), ("label", GOOGLE.label_ttl_s, EMULATED.label_ttl_s),
    ("first label", GOOGLE.provision_s + GOOGLE.boot_s, EMULATED.provision_s + EMULATED.boot_s),
    ("linger", GOOGLE.linger_s, EMULATED.linger_s), ("margin", GOOGLE.margin_s, EMULATED.margin_s),
])  # fmt: skip
def test_the_periods_of_the_page_are_those_of_the_code(name: str, google_s: float, emulated_s: float) -> None:
    (cells,) = [cells for cells in ROWS if cells[0] == name]
    assert [parse_duration(cell.replace("min", "m")) for cell in cells[1:3]] == [google_s, emulated_s]
    assert GOOGLE.poll_s == GOOGLE.heartbeat_s and GOOGLE.renew_s == 1800


def test_the_table_and_the_curves_are_drawn_from_the_measured_rows() -> None:
    plot = script("plot")
    assert plot.page_text(BOUNDS_PAGE) == BOUNDS_PAGE, "run `python docs/guarantee/plot.py`"
    assert (FOLDER / "guarantee" / "unclaimed.svg").read_text(encoding="utf-8") == plot.svg()


def test_no_measured_slice_was_billed_for_longer_than_promised() -> None:
    measured = script("plot").read()
    assert [row for row in measured.rows if row.unclaimed_s > row.bound_s] == []
    assert {row.layer for row in measured.rows} == {"local", "watchdog", "gc"} and measured.unbounded > 0


def test_each_role_is_valid_and_only_the_users_may_create() -> None:
    page = (FOLDER / "permissions.md").read_text(encoding="utf-8")
    roles = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    assert len(roles) == 3
    for role in roles:
        assert set(role) == {"title", "description", "stage", "includedPermissions"}
        assert {"tpu.nodes.get", "tpu.nodes.delete"} <= set(role["includedPermissions"])
    assert [("tpu.nodes.create" in role["includedPermissions"]) for role in roles] == [True, False, False]


def test_the_page_of_invariants_lists_those_of_the_simulator() -> None:
    page = (FOLDER / "invariants.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (.+) \|$", page, re.MULTILINE))
    assert rows == {"invariant": "what holds", **{str(name): text for name, text in STATEMENTS.items()}}
