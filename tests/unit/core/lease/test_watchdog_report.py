"""What a switch says about itself comes from a VM: it is data, to be read with care."""

import json

import pytest

from orchestrator.core.lease.watchdog_report import problem, read_watchdogs

PROVEN = {"v": 1, "armed": True, "route": True, "permission": True, "mode": "run", "lease": 1_800_000_000}


def said(worker: object = 0, **changes: object) -> dict[str, str]:
    return {"tpujob/watchdog": json.dumps(PROVEN | {"worker": worker} | changes)}


def test_a_slice_is_armed_when_every_worker_says_so() -> None:
    assert problem(read_watchdogs([said(), said(1)], 2)) is None


UNASKED = {"armed": False, "permission": None}


def test_the_permission_is_proven_by_one_worker_for_all_and_each_reaches_the_api_itself() -> None:
    everybody = [said(), *(said(worker, **UNASKED) for worker in range(1, 5))]
    assert problem(read_watchdogs(everybody, 5)) is None
    assert problem(read_watchdogs([*everybody[:4], said(4, **UNASKED, route=False)], 5)) == (
        "worker4: its switch has no route to the Cloud TPU API"
    )


def test_what_nobody_proved_no_worker_is_believed_to_have() -> None:
    assert "has not been proven yet" in str(
        problem(read_watchdogs([said(worker, **UNASKED) for worker in range(3)], 3))
    )


def test_where_the_first_worker_is_refused_the_slice_is_not_armed_though_others_are() -> None:
    found = read_watchdogs([said(armed=False, permission=False), said(1), said(2, **UNASKED)], 3)
    assert [switch.armed for switch in found] == [False, True, True]
    assert "tpu.nodes.delete" in str(problem(found))


def test_a_word_is_of_the_worker_that_it_names_wherever_the_api_lists_it() -> None:
    moved = [said(2, mode="detached"), said(0, mode="run"), {}, said(1, mode="hold")]
    assert [switch.mode for switch in read_watchdogs(moved, 3)] == ["run", "hold", "detached"]
    assert read_watchdogs(moved[:2], 1)[0].mode == "run"
    assert [switch.armed for switch in read_watchdogs(moved[:2], 3)] == [True, False, True]


def test_a_worker_that_says_it_is_another_one_arms_neither() -> None:
    found = read_watchdogs([said(), said(0)], 2)
    assert [switch.armed for switch in found] == [False, False]
    assert "2 switches say that they are this worker's" in found[0].why


@pytest.mark.parametrize(
    ("published", "words"),
    [
        ([], "worker0: its switch has not said anything"),
        ([said()], "worker1: its switch has not said anything"),
        ([said(), said(None)], "worker1: its switch has not said anything that can be read"),
        ([said(), said(1.5)], "worker1: its switch has not said anything that can be read"),
        ([said(), said(True)], "worker1: its switch has not said anything that can be read"),
        ([said(), said(-1)], "worker1: its switch has not said anything"),
        ([said(), {}], "worker1: its switch has not said anything"),
        ([said(), {"tpujob/watchdog": "{"}], "worker1: its switch has not said anything that can be read"),
        ([said(), {"tpujob/watchdog": "[]"}], "worker1: its switch has not said anything that can be read"),
        ([said(armed=False, route=False), said(1)], "no route"),
        ([said(armed=False, permission=False), said(1)], "tpu.nodes.delete"),
        ([said(armed="yes"), said(1)], "not armed"),
    ],
)
def test_whatever_else_it_says_is_a_problem_with_a_reason(published: list[dict[str, str]], words: str) -> None:
    assert words in str(problem(read_watchdogs(published, 2)))


def test_the_claim_that_it_knows_is_passed_on() -> None:
    (switch,) = read_watchdogs([said(mode="detached", lease="soon")], 1)
    assert (switch.mode, switch.claimed_until) == ("detached", None)
