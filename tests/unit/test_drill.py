"""The drill: its table of disasters, what it concludes, and the pages that tell its bounds and measurements."""

import importlib.util
import re
import sys
from types import ModuleType
from typing import Any

import pytest
import yaml

from cloud_tpu_emulator.faults.fault import read
from orchestrator.cli.commands.guarantee.drill import as_json_object, line
from orchestrator.drill.bounds import PROMISES
from orchestrator.drill.runner import DISASTERS, Disaster, Finding
from orchestrator.drill.sandbox import ended_by, unclaimed_s
from orchestrator.promise.lease import periods as claim_timings
from orchestrator.promise.lease.periods import GOOGLE
from orchestrator.text.units import parse_duration
from tests import ROOT
from tests.simulation.oracle.invariants import STATEMENTS


def test_there_are_ten_with_different_numbers_names_and_descriptions() -> None:
    assert [each.number for each in DISASTERS] == list(range(1, 11))
    assert len({each.name for each in DISASTERS}) == len({each.broken for each in DISASTERS}) == 10


@pytest.mark.parametrize("disaster", DISASTERS, ids=lambda each: each.name)
def test_its_faults_are_valid_and_as_many_deletes_fail_as_its_bound_assumes(disaster: Disaster) -> None:
    faults = [read(dict(fault)) for fault in disaster.faults]
    failing = [fault for fault in faults if fault.kind == "operation_fails"]
    assert sum(last or 0 for fault in failing for _, last in fault.when.calls) == disaster.failed_deletes


def test_the_whole_drill_takes_at_most_ninety_seconds() -> None:
    assert max(each.bound.seconds for each in DISASTERS) <= 60
    assert sum(each.bound.seconds for each in DISASTERS) / 4 <= 60  # four at once, each at its bound


def test_a_line_shows_the_disaster_what_ended_the_slice_the_billed_time_and_the_bound() -> None:
    (cut,) = [each for each in DISASTERS if each.name == "power cut"]
    text = line(Finding(cut, "watchdog", 9.44, None))
    assert text == (
        " 4 power cut · kill -9 of everything local while the job runs · ended by watchdog · billed unclaimed 9.4 s · "
        "bound 15.5 s = time to live 9 s + grace 1.8 s + the watchdog's own work 3.2 s + deletion 1.5 s "
        "(on Google Cloud 18 m 20 s + D) · ok"
    )


def test_a_broken_promise_is_reported_with_its_problem() -> None:
    finding = Finding(DISASTERS[0], "nothing", None, "the start of the job: not within 45 s")
    assert line(finding).endswith("· BROKEN: the start of the job: not within 45 s")
    assert "never came to its end" in line(finding)
    assert (as_json_object(finding)["ok"], as_json_object(finding)["problem"]) == (False, finding.problem)


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


NODE = "tpujob-abc"


def bill(since: float, until: float | None, node: str = NODE) -> dict[str, Any]:
    return {"name": f"projects/p/locations/z/nodes/{node}", "since": since, "until": until}


def delete(at: float, caller: str = "client", status: int | None = 200, node: str = NODE) -> dict[str, Any]:
    return {"at": at, "caller": caller, "status": status, "node": node}


@pytest.mark.parametrize(("bills", "now", "counted"), [
    ([bill(100, 130)], 500, 10), ([bill(100, 110)], 500, 0), ([bill(100, None)], 150, 30),  # the last: it is still billed
    ([bill(100, 130), bill(140, 145, "tpujob-two")], 500, 15),  # a second slice counts too, from its own beginning
])  # fmt: skip
def test_only_what_is_billed_after_the_end_of_the_claim_counts(bills: list[Any], now: float, counted: float) -> None:
    assert unclaimed_s(bills, claim_ended_at=120, now=now) == counted


@pytest.mark.parametrize(("deletes", "killed", "ended"), [
    ([delete(125)], (None, None), "CLI"), ([delete(125)], (120, None), "guardian"),
    ([delete(125)], (120, 120), "gc"),
    ([delete(125, "vm")], (120, 120), "watchdog"),
    ([delete(119), delete(125)], (120, None), "guardian"),  # the delete of the CLI had no effect
    ([delete(125, "vm", 403)], (None, None), "nothing"),
    ([delete(125, "vm", None)], (None, None), "nothing"),  # no reply
    ([delete(125, "vm", 404, NODE + "-probe")], (None, None), "nothing"),
    ([delete(125), delete(135, "vm")], (None, None), "CLI"),  # after the slice was absent
    ([], (None, None), "nothing"),
])  # fmt: skip
def test_the_sender_of_the_last_accepted_delete_ended_it(
    deletes: list[dict[str, Any]], killed: tuple[float | None, float | None], ended: str
) -> None:
    assert ended_by(deletes, [bill(100, 130)], *killed) == ended


def test_nothing_ended_a_slice_that_is_still_there() -> None:
    assert ended_by([delete(125)], [bill(100, None)], None, None) == "nothing"
