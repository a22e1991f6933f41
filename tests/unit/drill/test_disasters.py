"""The table of disasters, and the line that is printed for each."""

import pytest

from orchestrator.cli.commands.guarantee.drill import as_json_object, line
from orchestrator.drill.disasters import DISASTERS, Disaster
from orchestrator.drill.runner import Finding
from orchestrator.emulator.faults.fault import read


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
