"""The table of disasters, the line that is printed of each, and a page that says the same numbers."""

from __future__ import annotations

import pytest

from orchestrator.cli.commands.guarantee.drill import line, shape
from orchestrator.drill.disasters import DISASTERS, Disaster
from orchestrator.drill.rehearse import Finding
from orchestrator.emulator.faults.fault import read


def test_there_are_ten_and_each_has_its_own_number_name_and_words() -> None:
    assert [each.number for each in DISASTERS] == list(range(1, 11))
    assert len({each.name for each in DISASTERS}) == len({each.broken for each in DISASTERS}) == 10


@pytest.mark.parametrize("disaster", DISASTERS, ids=lambda each: each.name)
def test_its_faults_are_faults_and_as_many_deletes_fail_as_its_bound_says(disaster: Disaster) -> None:
    faults = [read(dict(fault)) for fault in disaster.faults]
    failing = [fault for fault in faults if fault.kind == "operation_fails"]
    assert sum(last or 0 for fault in failing for _, last in fault.when.calls) == disaster.failed_deletes


def test_the_longest_bounds_leave_room_for_the_whole_drill_within_ninety_seconds() -> None:
    assert max(each.bound.seconds for each in DISASTERS) <= 60
    assert sum(each.bound.seconds for each in DISASTERS) / 4 <= 60  # four at once, each at its very worst


def test_a_line_says_what_was_broken_who_ended_it_what_was_billed_and_what_was_promised() -> None:
    (cut,) = [each for each in DISASTERS if each.name == "power cut"]
    text = line(Finding(cut, "switch", 9.44, None))
    assert text == (
        " 4 power cut · kill -9 of everything local while the job runs · ended by switch · billed unclaimed 9.4 s · "
        "bound 15.5 s = time to live 9 s + grace 1.8 s + the switch's own 3.2 s + deletion 1.5 s "
        "(on Google Cloud 18 m 20 s + D) · ok"
    )


def test_a_broken_promise_says_so_and_how() -> None:
    finding = Finding(DISASTERS[0], "nobody", None, "the job's first line did not come about within 45 s")
    assert line(finding).endswith("· BROKEN: the job's first line did not come about within 45 s")
    assert "never came to its end" in line(finding)
    assert (shape(finding)["ok"], shape(finding)["problem"]) == (False, finding.problem)
