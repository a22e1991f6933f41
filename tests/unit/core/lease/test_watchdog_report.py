"""The report of a watchdog comes from a VM: untrusted data."""

import json

import pytest

from orchestrator.core.lease.watchdog_report import problem, read_watchdogs

PROVEN = {"v": 1, "armed": True, "route": True, "permission": True, "mode": "run", "claimed_until": 1_800_000_000}


def report(worker: object = 0, **changes: object) -> dict[str, str]:
    return {"tpujob/watchdog": json.dumps(PROVEN | {"worker": worker} | changes)}


def test_a_slice_is_armed_when_every_worker_reports_it() -> None:
    assert problem(read_watchdogs([report(), report(1)], 2)) is None


UNPROVEN = {"armed": False, "permission": None}


def test_the_permission_is_proven_by_one_worker_for_all_and_each_reaches_the_api_itself() -> None:
    reports = [report(), *(report(worker, **UNPROVEN) for worker in range(1, 5))]
    assert problem(read_watchdogs(reports, 5)) is None
    assert problem(read_watchdogs([*reports[:4], report(4, **UNPROVEN, route=False)], 5)) == (
        "worker4: its watchdog has no route to the Cloud TPU API"
    )


def test_a_permission_that_no_worker_proved_does_not_count() -> None:
    assert "has not been proven yet" in str(
        problem(read_watchdogs([report(worker, **UNPROVEN) for worker in range(3)], 3))
    )


def test_one_worker_without_permission_leaves_the_slice_unarmed() -> None:
    found = read_watchdogs([report(armed=False, permission=False), report(1), report(2, **UNPROVEN)], 3)
    assert [status.armed for status in found] == [False, True, True]
    assert "tpu.nodes.delete" in str(problem(found))


def test_a_report_belongs_to_the_worker_that_it_names_wherever_the_api_lists_it() -> None:
    moved = [report(2, mode="detached"), report(0, mode="run"), {}, report(1, mode="hold")]
    assert [status.mode for status in read_watchdogs(moved, 3)] == ["run", "hold", "detached"]
    assert read_watchdogs(moved[:2], 1)[0].mode == "run"
    assert [status.armed for status in read_watchdogs(moved[:2], 3)] == [True, False, True]


def test_a_worker_that_reports_as_another_arms_neither() -> None:
    found = read_watchdogs([report(), report(0)], 2)
    assert [status.armed for status in found] == [False, False]
    assert "2 watchdogs claim to be this worker's" in found[0].why


@pytest.mark.parametrize(("published", "why"), [
    ([], "worker0: its watchdog has published nothing"),
    ([report()], "worker1: its watchdog has published nothing"),
    ([report(), report(None)], "worker1: its watchdog has published nothing that can be read"),
    ([report(), report(1.5)], "worker1: its watchdog has published nothing that can be read"),
    ([report(), report(True)], "worker1: its watchdog has published nothing that can be read"),
    ([report(), report(-1)], "worker1: its watchdog has published nothing"),
    ([report(), {}], "worker1: its watchdog has published nothing"),
    ([report(), {"tpujob/watchdog": "{"}], "worker1: its watchdog has published nothing that can be read"),
    ([report(), {"tpujob/watchdog": "[]"}], "worker1: its watchdog has published nothing that can be read"),
    ([report(armed=False, route=False), report(1)], "no route"),
    ([report(armed=False, permission=False), report(1)], "tpu.nodes.delete"),
    ([report(armed="yes"), report(1)], "not armed"),
])  # fmt: skip
def test_any_other_report_is_a_problem_with_a_reason(published: list[dict[str, str]], why: str) -> None:
    assert why in str(problem(read_watchdogs(published, 2)))


def test_the_claim_that_a_watchdog_has_read_is_returned() -> None:
    (status,) = read_watchdogs([report(mode="detached")], 1)
    assert (status.mode, status.claimed_until) == ("detached", 1_800_000_000)
    (status,) = read_watchdogs([report(claimed_until="soon")], 1)
    assert status.claimed_until is None
