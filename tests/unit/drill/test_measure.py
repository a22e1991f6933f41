"""What the drill concludes from the emulator's books."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.drill.measure import Deaths, finisher, unclaimed_s

NODE = "tpujob-abc"


def bill(since: float, until: float | None, node: str = NODE) -> dict[str, Any]:
    return {"name": f"projects/p/locations/z/nodes/{node}", "since": since, "until": until}


def delete(at: float, caller: str = "client", status: int | None = 200, node: str = NODE) -> dict[str, Any]:
    return {"at": at, "caller": caller, "status": status, "node": node}


def test_only_what_is_billed_after_the_end_of_the_claim_counts() -> None:
    assert unclaimed_s([bill(100, 130)], claim_ended_at=120, now=500) == 10
    assert unclaimed_s([bill(100, 110)], claim_ended_at=120, now=500) == 0


def test_a_slice_that_is_still_there_is_counted_until_now() -> None:
    assert unclaimed_s([bill(100, None)], claim_ended_at=120, now=150) == 30


def test_a_second_slice_counts_as_well_and_from_its_own_beginning() -> None:
    assert unclaimed_s([bill(100, 130), bill(140, 145, "tpujob-two")], claim_ended_at=120, now=500) == 15


@pytest.mark.parametrize(
    ("deletes", "deaths", "who"),
    [
        ([delete(125)], Deaths(), "CLI"),
        ([delete(125)], Deaths(cli_at=120), "guardian"),
        ([delete(125)], Deaths(cli_at=120, local_at=120), "gc"),
        ([delete(125, "vm")], Deaths(cli_at=120, local_at=120), "switch"),
        ([delete(119), delete(125)], Deaths(cli_at=120), "guardian"),  # the CLI's own came to nothing
        ([delete(125, "vm", 403)], Deaths(), "nobody"),
        ([delete(125, "vm", None)], Deaths(), "nobody"),  # no reply
        ([delete(125, "vm", 404, NODE + "-probe")], Deaths(), "nobody"),
        ([delete(125), delete(135, "vm")], Deaths(), "CLI"),  # after it was absent nobody ends it any more
        ([], Deaths(), "nobody"),
    ],
)
def test_who_ended_it_is_who_sent_the_last_accepted_delete(
    deletes: list[dict[str, Any]], deaths: Deaths, who: str
) -> None:
    assert finisher(deletes, [bill(100, 130)], deaths) == who


def test_nobody_ended_what_is_still_there() -> None:
    assert finisher([delete(125)], [bill(100, None)], Deaths()) == "nobody"
