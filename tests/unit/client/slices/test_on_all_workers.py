"""How a command on all workers says which of them failed."""

from orchestrator.client.slices.on_all_workers import failures
from orchestrator.remote.fleet.side_by_side import Ended


def test_workers_that_fail_alike_are_one_line() -> None:
    assert failures([Ended(index, 3) for index in (2, 0, 1, 3)]) == ["worker0 to worker3: exit code 3"]


def test_other_codes_and_other_causes_are_lines_of_their_own_the_first_failure_first() -> None:
    ended = [
        Ended(5, 1), Ended(1, 255, "worker1: the connection was cut"), Ended(0, 0), Ended(4, 2), Ended(7, 1),
        Ended(3, 255, "worker3: the connection was cut"), Ended(6, 255, "worker6: not started"), Ended(8, 255),
    ]  # fmt: skip
    assert failures(ended) == [
        "worker5 and worker7: exit code 1", "worker1: the connection was cut (2 alike: worker1 and worker3)",
        "worker4: exit code 2", "worker6: not started", "worker8: exit code 255",
    ]  # fmt: skip


def test_no_failure_is_no_line() -> None:
    assert failures([Ended(0, 0)]) == []
