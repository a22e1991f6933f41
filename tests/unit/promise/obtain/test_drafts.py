"""What is drafted of a plan: how long each slice may live, how it is asked for, and by which way after a refusal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.capacity.capacity_request import CapacityRequest
from orchestrator.capacity.plan import make
from orchestrator.capacity.provisioning import Provisioning
from orchestrator.errors import BadRequest, CloudError, DeadlineExceeded
from orchestrator.places.tpu.place import PLACE as CLOUD_TPU
from orchestrator.promise.lease.access import NO_RULES, ProjectRules, Route, Via
from orchestrator.promise.lease.lease import Purpose
from orchestrator.promise.lease.periods import GOOGLE
from orchestrator.promise.obtain import drafts
from orchestrator.promise.obtain.drafts import Draft, PlanDrafter, Site

NOW = 1_800_000_000.0
DAY = 86400.0


def drafter(directory: Path, plan: dict[str, Any] | None = None, **candidate: Any) -> PlanDrafter:
    """Return the drafter of a plan with one candidate, of which these things are so."""
    made = make([CapacityRequest("v5litepod-8", ("us-central1-a",))])
    only = replace(made.candidates[0], **{"usd_per_hour": 10.0, "life_s": DAY, **candidate})
    site = Site("google", "p", "0wner0", lambda lease: directory / lease, GOOGLE, lambda: NOW, CLOUD_TPU.watched)
    return PlanDrafter(replace(made, candidates=(only,), **(plan or {})), site, "mnist", Purpose.RUN)


@pytest.mark.parametrize(("plan", "candidate", "used_s", "spent_usd", "left_s"), [
    ({}, {}, 0.0, 0.0, DAY), ({}, {}, 3600.0, 50.0, DAY - 3600),
    ({"max_cost": 60.0}, {}, 0.0, 0.0, DAY), ({"max_cost": 60.0}, {}, 3600.0, 10.0, 5 * 3600 - GOOGLE.absent_s),
    ({"max_cost": 6000.0}, {}, 3600.0, 10.0, DAY - 3600), ({"max_cost": 60.0}, {"usd_per_hour": None}, 60.0, 10.0, DAY - 60),
    ({}, {"life_s": 3600.0}, 3540.0, 0.0, 60.0), ({}, {"life_s": 3600.0}, 3541.0, 0.0, None),
    ({"max_cost": 60.0}, {}, 60.0, 59.9, None),
])  # fmt: skip
def test_each_attempt_gets_what_is_left_of_time_and_money(
    tmp_path: Path,
    plan: dict[str, Any],
    candidate: dict[str, Any],
    used_s: float,
    spent_usd: float,
    left_s: float | None,
) -> None:
    made = drafter(tmp_path, plan, **candidate)
    if left_s is None:
        with pytest.raises(DeadlineExceeded, match="too little is left"):
            made.make(used_s, spent_usd)
        assert made.made == []
    else:
        ((lease, request),) = made.make(used_s, spent_usd)
        assert lease.deadline == pytest.approx(NOW + left_s) and made.made == [lease.id]
        assert int(request.labels["tpujob-deadline"]) == int(lease.deadline)


def drafted(made: PlanDrafter) -> Draft:
    (draft,) = made.make()
    return draft


def test_nothing_is_used_up_before_the_first_attempt(tmp_path: Path) -> None:
    assert drafted(drafter(tmp_path, {"max_cost": 0.001})).lease.deadline == NOW + DAY


@pytest.mark.parametrize(("provisioning", "queued", "reserved", "flex_s"), [
    (Provisioning.ON_DEMAND, False, False, None), (Provisioning.RESERVED, False, True, None),
    (Provisioning.QUEUED, True, False, None), (Provisioning.FLEX_START, True, False, DAY),
])  # fmt: skip
def test_how_a_slice_is_asked_for(
    tmp_path: Path, provisioning: Provisioning, queued: bool, reserved: bool, flex_s: float | None
) -> None:
    for wait_s, valid_s in ((0.0, drafts.DEFAULT_WAIT_S), (90.0, 90.0)):
        lease, request = drafted(drafter(tmp_path, {"wait_s": wait_s}, provisioning=provisioning, queued=queued))
        assert request.reserved is reserved and lease.name.queued is queued and (request.queue is not None) is queued
        if request.queue is not None:
            assert (request.queue.valid_for_s, request.queue.flex_start_s) == (valid_s, flex_s)


def test_after_a_refusal_the_way_is_another_one_or_none(tmp_path: Path) -> None:
    learned: list[CloudError] = []
    refusal = BadRequest("no external addresses")
    made = drafter(tmp_path)
    site = replace(made.site, rules=lambda: ProjectRules(no_external_addresses=bool(learned)), learn=learned.append)
    made = replace(made, site=site)
    assert made.reroute(Route(), refusal) == Route(Via.IAP) and learned == [refusal]
    assert made.reroute(Route(Via.IAP), refusal) is None
    assert drafted(made).request.external_ips is False and drafted(drafter(tmp_path)).request.external_ips is True
    assert ProjectRules() == NO_RULES
