"""Effects on the cloud that are more than one call of it."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.core.lease.cloud_api import Operation, SliceName
from orchestrator.engine.effects.cloud import DeleteAll
from orchestrator.errors import CloudUnavailable
from tests.waiting import HANG_S

NAMES = tuple(SliceName("p", f"zone-{letter}", "n") for letter in "abc")


def world(delete: Any) -> Any:
    return SimpleNamespace(cloud=SimpleNamespace(delete=delete))


def test_no_answer_keeps_another_delete_from_leaving() -> None:
    all_left = threading.Barrier(len(NAMES), timeout=HANG_S)

    def delete(name: SliceName) -> None:
        all_left.wait()  # an API that answers no call before all have arrived

    assert DeleteAll(NAMES).perform(world(delete)) == (None, None, None)


def test_each_answer_or_error_is_in_the_place_of_its_name() -> None:
    accepted, silent = (
        Operation("projects/p/locations/zone-a/operations/1", False, "delete", "n"),
        CloudUnavailable("503"),
    )
    answers = {"zone-a": accepted, "zone-b": silent, "zone-c": None}

    def delete(name: SliceName) -> Operation | None:
        answer = answers[name.zone]
        if isinstance(answer, CloudUnavailable):
            raise answer
        return answer

    assert DeleteAll(NAMES).perform(world(delete)) == (accepted, silent, None)


def test_a_bug_is_no_answer() -> None:
    def delete(name: SliceName) -> None:
        if name.zone == "zone-b":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        DeleteAll(NAMES).perform(world(delete))
