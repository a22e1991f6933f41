"""What the cloud has for which project: capacity in time, quota, reservations, closed queues, locations, create rate."""

import json
import re
import time
from dataclasses import fields
from typing import Any

import pytest
import yaml

from cloud_tpu_emulator.api import admin
from cloud_tpu_emulator.faults.api_errors import ApiError
from cloud_tpu_emulator.faults.plain_data import BadData, as_fields
from cloud_tpu_emulator.model.records import OperationRecord, Settings
from cloud_tpu_emulator.model.supply import Capacity
from cloud_tpu_emulator.model.supply import load as supply_of
from tests import ROOT
from tests.emulator.unit.model.queue_fixture import PLACE, ZONE, QueueCloud

EAST = "us-east5-b"
SPOT: dict[str, Any] = {"schedulingConfig": {"spot": True}}
RESERVED: dict[str, Any] = {"schedulingConfig": {"reserved": True}}


def cloud_with(**data: Any) -> QueueCloud:
    cloud = QueueCloud()
    admin.rehearse(cloud.state, data, cloud.now)
    return cloud


def outcome(cloud: QueueCloud, operation: OperationRecord) -> str:
    cloud.wait(20)
    return "READY" if operation.error is None else f"{operation.error['code']}: {operation.error['message']}"


# -- capacity -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begun_at", [1_800_000_000.1, 1_800_000_007.3, 1_800_000_123.456])
def test_capacity_has_changed_at_exactly_the_time_that_is_named(begun_at: float) -> None:
    """Times are large (from 1970), so that adding and subtracting a delay may round."""
    for seconds in (0.1, 13.7, 22.9, 30.3):
        rule = Capacity(until_s=seconds, added_at=begun_at)
        _, changes_at = rule.changes()
        assert not rule.open_at(changes_at)
        assert Capacity(from_s=seconds, added_at=begun_at).open_at(changes_at)


def test_a_stockout_begins_and_ends_at_the_given_times() -> None:
    cloud = cloud_with(capacity=[{"zone": ZONE, "from_s": 60, "until_s": 180}])
    assert outcome(cloud, cloud.create("before")) == "READY"
    cloud.wait(60)
    output = outcome(cloud, cloud.create("during"))
    assert output.startswith(f'8: There is no more capacity in the zone "{ZONE}"; you can try in another zone')
    cloud.wait(100)
    assert outcome(cloud, cloud.create("after")) == "READY"
    assert cloud.nodes == {"before": "READY", "after": "READY"}


def test_chips_are_limited_and_free_again_when_nodes_are_deleted() -> None:
    cloud = cloud_with(capacity=[{"zone": ZONE, "type": "v5litepod", "chips": 8}])
    assert outcome(cloud, cloud.create("a")) == "READY"
    assert "no more capacity" in outcome(cloud, cloud.create("b", acceleratorType="v5litepod-8"))
    assert outcome(cloud, cloud.create("c")) == "READY"
    assert "no more capacity" in outcome(cloud, cloud.create("d"))
    assert (
        outcome(cloud, cloud.create("e", zone=EAST, acceleratorType="v6e-8", runtimeVersion="v2-alpha-tpuv6e"))
        == "READY"
    )
    cloud.delete("a")
    cloud.wait(5)
    assert outcome(cloud, cloud.create("f")) == "READY"


def test_the_last_rule_that_fits_and_holds_decides() -> None:
    rules = [{"zone": "*"}, {"zone": "us-central1", "chips": None}, {"zone": ZONE, "type": "v5e", "until_s": 60}]
    cloud = cloud_with(capacity=rules)
    assert "no more capacity" in outcome(cloud, cloud.create("a"))
    cloud.wait(60)
    assert outcome(cloud, cloud.create("b")) == "READY"
    assert "no more capacity" in outcome(cloud, cloud.create("c", zone="us-west4-a"))


def test_capacity_may_concern_one_tier_only() -> None:
    cloud = cloud_with(capacity=[{"tier": "spot"}])
    assert outcome(cloud, cloud.create("a")) == "READY"
    assert "no more capacity" in outcome(cloud, cloud.create("b", **SPOT))


def test_a_preempted_node_uses_no_chips_and_keeps_its_quota() -> None:
    cloud = cloud_with(capacity=[{"chips": 4}])
    cloud.create("a", **SPOT)
    cloud.wait(10)
    cloud.state.set_state(f"{PLACE}/nodes/a", "PREEMPTED", cloud.now)
    cloud.follow()
    assert outcome(cloud, cloud.create("b")) == "READY"


def test_a_start_needs_capacity_too() -> None:
    cloud = cloud_with(capacity=[{"chips": 4}])
    cloud.create("a")
    cloud.wait(10)
    cloud.state.change_power(f"{PLACE}/nodes/a", "stop", "v2", cloud.now)
    cloud.wait(10)
    cloud.create("b")
    cloud.wait(10)
    operation = cloud.state.change_power(f"{PLACE}/nodes/a", "start", "v2", cloud.now)
    assert "no more capacity" in outcome(cloud, operation)
    assert cloud.nodes == {"a": "STOPPED", "b": "READY"}


def test_a_queued_resource_gets_its_nodes_as_soon_as_there_is_capacity() -> None:
    cloud = cloud_with(capacity=[{"zone": ZONE, "until_s": 120}])
    began = cloud.now
    cloud.queue()
    assert cloud.states("PROVISIONING")[-2:] == ["WAITING_FOR_RESOURCES", "PROVISIONING"]
    assert cloud.now - began == 120


def test_the_oldest_request_gets_free_capacity() -> None:
    cloud = cloud_with(capacity=[{"chips": 4}])
    cloud.queue("first")
    cloud.queue("second")
    cloud.wait(20)
    assert (cloud.shown("first"), cloud.shown("second")) == ("ACTIVE", "WAITING_FOR_RESOURCES")
    cloud.unqueue("first", force=True)
    cloud.wait(20)
    assert cloud.shown("second") == "ACTIVE"


def test_a_request_for_several_nodes_waits_for_capacity_for_all_of_them() -> None:
    cloud = cloud_with(capacity=[{"chips": 8}])
    cloud.create("a")
    cloud.queue(spec={"multisliceParams": {"nodeCount": 2}})
    cloud.wait(50)
    assert cloud.shown() == "WAITING_FOR_RESOURCES"
    cloud.delete("a")
    cloud.wait(20)
    assert cloud.shown() == "ACTIVE"


# -- quota --------------------------------------------------------------------------------------------------------

QUOTA = {"name": "TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI", "limit": 8, "tier": "spot", "type": "v5litepod"}


def test_an_exceeded_quota_is_a_429_that_names_it() -> None:
    cloud = cloud_with(quotas=[QUOTA])
    cloud.create("a", **SPOT)
    cloud.create("b", **SPOT)
    with pytest.raises(ApiError) as refusal:
        cloud.create("c", **SPOT)
    assert (refusal.value.http, refusal.value.status) == (429, "RESOURCE_EXHAUSTED")
    assert refusal.value.message == f"Quota limit '{QUOTA['name']}' has been exceeded. Limit: 8 in zone {ZONE}."
    [detail] = refusal.value.details
    assert detail["@type"] == "type.googleapis.com/google.rpc.QuotaFailure"
    [violation] = detail["violations"]
    assert violation["description"] == f"Quota '{QUOTA['name']}' exhausted. Limit 8 in zone {ZONE}"
    cloud.create("on-demand")
    cloud.create("other-project", project="elsewhere", **SPOT)
    cloud.create("other-zone", zone="us-west4-a", **SPOT)


def test_a_quota_may_be_per_region_and_in_cores() -> None:
    cloud = cloud_with(quotas=[{"name": "Q", "limit": 8, "unit": "cores", "per": "region"}])
    v4 = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    cloud.create("a", zone="us-central2-b", **v4)
    with pytest.raises(ApiError, match="Limit: 8 in region us-central2"):
        cloud.create("b", zone="us-central2-b", **v4)


@pytest.mark.parametrize("end", ["PREEMPTED", "STOPPED", "TERMINATED"])
def test_a_listed_node_holds_quota_until_it_is_deleted(end: str) -> None:
    cloud = cloud_with(quotas=[{"limit": 4}])
    cloud.create("a", **SPOT)
    cloud.wait(10)
    cloud.state.set_state(f"{PLACE}/nodes/a", end, cloud.now)
    with pytest.raises(ApiError, match="Quota limit"):
        cloud.create("b")
    cloud.delete("a")
    cloud.wait(5)
    cloud.create("b")


@pytest.mark.parametrize("end", ["WAITING_FOR_RESOURCES", "FAILED", "SUSPENDED"])
def test_a_queued_resource_holds_quota_until_it_is_deleted_and_its_node_does_not_count_again(end: str) -> None:
    stockout = [] if end == "SUSPENDED" else [{"chips": 0}]
    cloud = cloud_with(quotas=[{"limit": 4}], capacity=stockout)
    cloud.queue(spot={}, queueingPolicy={"validUntilDuration": "10s"} if end == "FAILED" else {})
    cloud.wait(20)
    if end == "SUSPENDED":
        cloud.delete("q-node")
        cloud.wait(5)
    assert cloud.shown() == end
    with pytest.raises(ApiError, match="Quota limit"):
        cloud.queue("other")
    with pytest.raises(ApiError, match="Quota limit"):
        cloud.create("n")
    cloud.unqueue()
    cloud.wait(5)
    cloud.create("n")


def test_an_active_request_and_its_node_count_once() -> None:
    cloud = cloud_with(quotas=[{"limit": 8}])
    cloud.queue()
    cloud.wait(20)
    cloud.create("n")
    with pytest.raises(ApiError, match="Quota limit"):
        cloud.create("m")


def test_a_repeated_request_id_does_not_use_quota_again() -> None:
    cloud = cloud_with(quotas=[{"limit": 4}])
    first = cloud.queue(request_id="r")
    assert cloud.queue(request_id="r") is first


# -- locations, rates, queues -------------------------------------------------------------------------------------


def test_a_location_that_is_not_on_the_list_is_denied() -> None:
    cloud = cloud_with(locations=["us-east5-*"])
    for ask in (cloud.create, cloud.queue):
        with pytest.raises(ApiError, match=f"Permission denied on 'locations/{ZONE}'") as refusal:
            ask()
        assert refusal.value.details[0]["reason"] == "LOCATION_POLICY_VIOLATED"
    cloud.state.check_place("p", EAST)


def test_a_denied_location_stays_readable_while_the_project_has_a_resource_there() -> None:
    cloud = QueueCloud()
    cloud.create("n")
    admin.rehearse(cloud.state, {"locations": [EAST]}, cloud.now)
    cloud.state.check_place("p", ZONE)
    with pytest.raises(ApiError, match="Permission denied"):
        cloud.state.check_place("other", ZONE)


def test_too_many_creates_within_a_minute_are_refused() -> None:
    cloud = cloud_with(creates_per_minute=2)
    cloud.create("a")
    cloud.wait(30)
    cloud.create("b")
    with pytest.raises(ApiError, match="'Maximum number of CreateNode requests per minute'") as refusal:
        cloud.create("c")
    assert refusal.value.http == 429
    cloud.wait(30)
    cloud.create("c")


def test_a_closed_queue_fails_the_operation_and_leaves_a_failed_request() -> None:
    cloud = cloud_with(closed_queues=[{"zone": ZONE, "type": "v5litepod-4"}])
    operation = cloud.queue()
    cloud.wait(2)
    assert operation.error["code"] == 7
    assert operation.error["message"] == (
        "User does not have permission to submit requests into this queue for accelerator type v5litepod-4 "
        f"in location {ZONE}."
    )
    assert (cloud.shown(), cloud.row().failure) == ("FAILED", operation.error)


# -- reservations -------------------------------------------------------------------------------------------------

RESERVATION = {"name": "ours", "zone": ZONE, "chips": 8, "type": "v5litepod-*"}


def test_reserved_nodes_use_the_reservation_and_no_other_capacity() -> None:
    cloud = cloud_with(reservations=[RESERVATION], capacity=[{"chips": 0}])
    assert outcome(cloud, cloud.create("a", **RESERVED)) == "READY"
    named: dict[str, Any] = {"schedulingConfig": {"reservationName": f"{PLACE}/reservations/ours"}}
    assert outcome(cloud, cloud.create("b", **named)) == "READY"
    output = outcome(cloud, cloud.create("c", **RESERVED))
    assert output.startswith(
        "8: Insufficient reserved capacity. Contact customer support to increase your reservation."
    )
    assert "no more capacity" in outcome(cloud, cloud.create("d"))


def test_a_request_waits_for_a_reservation_and_fails_for_one_that_does_not_exist() -> None:
    cloud = cloud_with(reservations=[RESERVATION])
    cloud.create("a", acceleratorType="v5litepod-8", **RESERVED)
    cloud.queue(reservationName=f"{PLACE}/reservations/ours")
    cloud.wait(20)
    assert cloud.shown() == "WAITING_FOR_RESOURCES"
    cloud.delete("a")
    cloud.wait(20)
    assert cloud.shown() == "ACTIVE"
    operation = cloud.queue("r", reservationName=f"{PLACE}/reservations/theirs")
    cloud.wait(5)
    assert (cloud.shown("r"), (operation.error or {}).get("code")) == ("FAILED", 9)


# -- the data -----------------------------------------------------------------------------------------------------


def test_a_supply_with_present_times_is_read_back() -> None:
    supply = supply_of({"capacity": [{"zone": ZONE, "until_s": 600}]}, added_at=time.time())
    assert supply_of(json.loads(json.dumps(supply.dump(), default=as_fields))).capacity == supply.capacity


def test_a_rehearsal_survives_a_restart_and_is_shown_as_it_was_given() -> None:
    data = {
        "settings": {"provision_s": 7},
        "capacity": [{"zone": ZONE, "chips": 4, "until_s": 600}],
        "quotas": [QUOTA],
        "reservations": [RESERVATION],
        "closed_queues": [{"type": "v5p"}],
        "locations": ["us-*"],
        "creates_per_minute": 91,
        "faults": [{"kind": "drop", "when": {"first": 1}}],
    }
    cloud = cloud_with(**data)
    before = admin.dump(cloud.state)
    cloud.restart()
    assert admin.dump(cloud.state) == before
    assert before["settings"]["provision_s"] == 7
    assert before["capacity"][0] | {"tier": "any", "type": "*", "from_s": 0, "added_at": cloud.now} == {
        **{"zone": ZONE, "type": "*", "tier": "any", "chips": 4, "from_s": 0, "until_s": 600, "added_at": cloud.now}
    }
    admin.rehearse(cloud.state, {}, cloud.now)
    assert admin.dump(cloud.state).keys() == {"settings", "faults"}
    assert cloud.state.settings.provision_s == 7


@pytest.mark.parametrize(("data", "expected"), [
    ([], "A rehearsal must be an object"),
    ({"capacities": []}, 'There is no field "capacities" in a rehearsal; there are settings, capacity,'),
    ({"capacity": {}}, "capacity must be a list"), ({"capacity": [[]]}, r"Capacity\[0\] must be an object"),
    ({"capacity": [{"zones": "a"}]}, r'no field "zones" in capacity\[0\]; there are zone, type, tier, chips, from_s'),
    ({"capacity": [{"chips": -1}]}, r"capacity\[0\].chips must be a whole number from 0 to 1000000000, not -1"),
    ({"capacity": [{"chips": True}]}, "must be a whole number"),
    ({"capacity": [{"tier": "cheap"}]},
     r"capacity\[0\].tier must be one of any, on-demand, spot, reserved, flex-start"),
    ({"capacity": [{"from_s": 5, "until_s": 5}]}, "must be after its from_s"),
    ({"capacity": [{"until_s": "soon"}]}, "must be a number from 0 to"),
    ({"capacity": [{"zone": ""}]}, r"capacity\[0\].zone must not be empty"),
    ({"quotas": [{"name": "Q"}]}, r"Quotas\[0\] needs limit"),
    ({"quotas": [{"limit": 1, "per": "planet"}]}, "must be one of zone, region"),
    ({"reservations": [{}]}, "needs name and zone and chips"),
    ({"locations": "us"}, "locations must be a list of strings"),
    ({"preemptions": [{}]}, "A preemption needs either after_s or per_hour"),
    ({"preemptions": [{"after_s": 1, "per_hour": 1}]}, "A preemption needs either after_s or per_hour"),
    ({"preemptions": [{"per_hour": 0}]}, "per_hour of a preemption must be more than 0"),
    ({"preemptions": [{"after_s": 1, "nth": "first"}]}, "nth of a preemption must be like 2, "),
    ({"preemptions": [{"after_s": 1, "since": "BIRTH"}]}, r"preemptions\[0\].since must be one of READY, CREATING"),
    ({"preemptions": [{"after_s": -1}]}, r"preemptions\[0\].after_s must be a number from"),
    ({"creates_per_minute": 1.5}, "creates_per_minute must be a whole number"),
    ({"settings": {"provision_s": -1}}, "settings.provision_s must be a number from 0"),
    ({"settings": {"speed": 1}}, 'There is no field "speed" in settings; there are provision_s'),
    ({"settings": []}, "Settings must be an object"),
    ({"faults": [{"kind": "boom"}]}, 'There is no fault of kind "boom"'),
    ({"faults": {}}, "faults must be a list"),
])  # fmt: skip
def test_a_mistake_is_one_clear_line_and_changes_nothing(data: Any, expected: str) -> None:
    cloud = cloud_with(capacity=[{"chips": 4}], faults=[{"kind": "drop"}])
    before = admin.dump(cloud.state)
    mixed = {"settings": {"stop_s": 9}, "locations": ["us-*"]} | data if isinstance(data, dict) else data
    with pytest.raises(BadData, match=expected) as caught:
        admin.rehearse(cloud.state, mixed, cloud.now)
    assert "\n" not in str(caught.value)
    assert admin.dump(cloud.state) == before


# -- the page -----------------------------------------------------------------------------------------------------

PAGE = ROOT / "docs" / "emulator.md"


def test_the_example_of_the_page_is_a_rehearsal_with_every_part() -> None:
    [example] = re.findall(r"```yaml\n(# lean-times.yaml\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    data = yaml.safe_load(example)
    assert set(data) == set(admin.PARTS)
    cloud = cloud_with(**data)
    assert set(admin.dump(cloud.state)) == set(admin.PARTS)


def test_the_page_names_every_setting() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [field.name for field in fields(Settings) if f"`{field.name}`" not in text] == []
