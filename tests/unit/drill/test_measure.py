"""What the drill concludes from the emulator's bills and request log."""

from typing import Any

import pytest

from orchestrator.drill.measure import KillTimes, ended_by, unclaimed_s

NODE = "tpujob-abc"


def bill(since: float, until: float | None, node: str = NODE) -> dict[str, Any]:
    return {"name": f"projects/p/locations/z/nodes/{node}", "since": since, "until": until}


def delete(at: float, caller: str = "client", status: int | None = 200, node: str = NODE) -> dict[str, Any]:
    return {"at": at, "caller": caller, "status": status, "node": node}


def test_only_what_is_billed_after_the_end_of_the_claim_counts() -> None:
    assert unclaimed_s([bill(100, 130)], claim_ended_at=120, now=500) == 10
    assert unclaimed_s([bill(100, 110)], claim_ended_at=120, now=500) == 0


def test_a_slice_that_is_still_billed_is_counted_until_now() -> None:
    assert unclaimed_s([bill(100, None)], claim_ended_at=120, now=150) == 30


def test_a_second_slice_counts_too_from_its_own_beginning() -> None:
    assert unclaimed_s([bill(100, 130), bill(140, 145, "tpujob-two")], claim_ended_at=120, now=500) == 15


@pytest.mark.parametrize(("deletes", "killed", "ended"), [
    ([delete(125)], KillTimes(), "CLI"), ([delete(125)], KillTimes(cli_at=120), "guardian"),
    ([delete(125)], KillTimes(cli_at=120, local_at=120), "gc"),
    ([delete(125, "vm")], KillTimes(cli_at=120, local_at=120), "watchdog"),
    ([delete(119), delete(125)], KillTimes(cli_at=120), "guardian"),  # the delete of the CLI had no effect
    ([delete(125, "vm", 403)], KillTimes(), "nothing"),
    ([delete(125, "vm", None)], KillTimes(), "nothing"),  # no reply
    ([delete(125, "vm", 404, NODE + "-probe")], KillTimes(), "nothing"),
    ([delete(125), delete(135, "vm")], KillTimes(), "CLI"),  # after the slice was absent
    ([], KillTimes(), "nothing"),
])  # fmt: skip
def test_the_sender_of_the_last_accepted_delete_ended_it(
    deletes: list[dict[str, Any]], killed: KillTimes, ended: str
) -> None:
    assert ended_by(deletes, [bill(100, 130)], killed) == ended


def test_nothing_ended_a_slice_that_is_still_there() -> None:
    assert ended_by([delete(125)], [bill(100, None)], KillTimes()) == "nothing"
