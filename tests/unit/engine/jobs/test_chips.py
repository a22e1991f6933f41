"""When it is asked what the workers say of their chips."""

import pytest

from orchestrator.engine.effects.base import Now
from orchestrator.engine.effects.cloud import GetGuestAttributes
from orchestrator.engine.jobs.chips import ChipWatch
from orchestrator.engine.jobs.monitor import Bill
from tests.unit.engine.virtual import lease_and_request


@pytest.mark.parametrize(
    ("ticks", "asked"),
    [([29, 31, 89, 92, 149, 152], [31, 92, 152]), ([4000, 4010, 4100], [4000])],
    ids=["as the job begins", "as one attaches late"],
)
def test_the_workers_are_asked_soon_once_a_minute_and_once_after_an_attach(ticks: list[int], asked: list[int]) -> None:
    watch, found = ChipWatch(lease_and_request().lease, "a-1", 300.0, Bill(0.0), 0.0), []
    for now in ticks:
        tick = watch.tick()
        assert isinstance(tick.send(None), Now)
        try:
            assert isinstance(tick.send(float(now)), GetGuestAttributes)
            found.append(now)
            tick.close()
        except StopIteration:
            continue
    assert found == asked
