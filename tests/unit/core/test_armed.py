"""What a switch says about itself comes from a VM: it is data, to be read with care."""

import json

import pytest

from orchestrator.core.armed import problem, switches

PROVEN = {"v": 1, "armed": True, "route": True, "permission": True, "mode": "run", "lease": 1_800_000_000}


def said(**changes: object) -> dict[str, str]:
    return {"tpujob/switch": json.dumps(PROVEN | changes)}


def test_a_slice_is_armed_when_every_worker_says_so() -> None:
    assert problem(switches([said(), said()], 2)) is None


@pytest.mark.parametrize(
    ("published", "words"),
    [
        ([], "worker0: its switch has not said anything"),
        ([said()], "worker0: its switch has not said anything"),  # of two workers: nobody knows whose it is
        ([said(), {}], "worker1: its switch has not said anything"),
        ([said(), {"tpujob/switch": "{"}], "worker1: its switch says something unreadable"),
        ([said(), {"tpujob/switch": "[]"}], "worker1: its switch says something unreadable"),
        ([said(armed=False, route=False), said()], "no route"),
        ([said(armed=False, permission=False), said()], "tpu.nodes.delete"),
        ([said(armed="yes"), said()], "not armed"),
    ],
)
def test_whatever_else_it_says_is_a_problem_with_a_reason(published: list[dict[str, str]], words: str) -> None:
    assert words in str(problem(switches(published, 2)))


def test_the_claim_that_it_knows_is_passed_on() -> None:
    (switch,) = switches([said(mode="detached", lease="soon")], 1)
    assert (switch.mode, switch.lease_until) == ("detached", None)
