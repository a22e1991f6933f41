"""Events that no client causes: preemption, maintenance, failures of hosts, the end of flex-start."""

from typing import Any

import pytest

from cloud_tpu_emulator.api import admin
from cloud_tpu_emulator.faults.api_errors import ApiError
from cloud_tpu_emulator.model.records import LOST, Power
from cloud_tpu_emulator.wire.replies import node_json
from tests.emulator.unit.model.queue_fixture import NODE, PLACE, ZONE, QueueCloud

SPOT: dict[str, Any] = {"schedulingConfig": {"spot": True}}
NAME = f"{PLACE}/nodes/n"


def cloud_with(*preemptions: dict[str, Any], **settings: Any) -> QueueCloud:
    cloud = QueueCloud(**settings)
    admin.rehearse(cloud.state, {"preemptions": list(preemptions)}, cloud.now)
    return cloud


def ready(**spec: Any) -> QueueCloud:
    cloud = QueueCloud(notice_s=30)
    cloud.create(**SPOT | spec)
    cloud.wait(10)
    cloud.node("n").boot_pending = False
    return cloud


@pytest.fixture
def noticed() -> QueueCloud:
    """A cloud with a node that is preempted in 30 s."""
    cloud = ready()
    cloud.state.preempt(NAME, cloud.now, notice_s=30)
    return cloud


# -- preemption by hand -------------------------------------------------------------------------------------------


def test_a_preemption_is_announced_and_happens_after_the_notice(noticed: QueueCloud) -> None:
    noticed.wait(29)
    assert (noticed.nodes, noticed.node("n").preempted_at, noticed.node("n").power) == ({"n": "READY"}, 1040, Power.ON)
    noticed.wait(1)
    assert (noticed.nodes, noticed.node("n").power, noticed.billed()) == ({"n": "PREEMPTED"}, Power.OFF, 40)
    noticed.wait(100)
    assert noticed.billed() == 40


def test_a_second_notice_does_not_give_more_time(noticed: QueueCloud) -> None:
    noticed.wait(20)
    noticed.state.preempt(NAME, noticed.now, notice_s=30)
    noticed.wait(10)
    assert noticed.nodes == {"n": "PREEMPTED"}


def test_a_node_that_is_deleted_after_its_notice_leaves_no_event(noticed: QueueCloud) -> None:
    noticed.delete("n")
    noticed.wait(2)
    assert (noticed.nodes, noticed.state.events, noticed.state.next_due()) == ({}, [], None)


def test_a_preemption_while_creating_ends_the_operation_with_the_error_of_the_api() -> None:
    cloud = QueueCloud()
    operation = cloud.create(**SPOT)
    cloud.wait(3)
    cloud.state.preempt(NAME, cloud.now, notice_s=30)
    assert cloud.nodes == {"n": "PREEMPTED"}
    assert operation.error["code"] == 3
    assert operation.error["message"].startswith(
        "Cloud TPU received a bad request. update is not supported while in state PREEMPTED [EID: 0x"
    )


def test_a_notice_survives_a_restart_of_the_daemon(noticed: QueueCloud) -> None:
    noticed.restart()
    noticed.wait(29)
    assert noticed.nodes == {"n": "READY"}
    noticed.wait(1)
    assert noticed.nodes == {"n": "PREEMPTED"}


# -- preemption as data -------------------------------------------------------------------------------------------


def test_a_schedule_counts_from_ready_and_gives_its_notice() -> None:
    cloud = cloud_with({"after_s": 60, "notice_s": 5})
    cloud.create(**SPOT)
    cloud.create("on-demand")
    cloud.wait(10 + 60)
    assert (cloud.nodes["n"], cloud.node("n").preempted_at) == ("READY", cloud.now + 5)
    cloud.wait(5)
    assert cloud.nodes == {"n": "PREEMPTED", "on-demand": "READY"}


def test_the_setting_determines_the_length_of_a_notice() -> None:
    cloud = cloud_with({"after_s": 60}, notice_s=7)
    cloud.create(**SPOT)
    cloud.wait(70)
    assert cloud.node("n").preempted_at == cloud.now + 7


def test_a_schedule_may_be_for_some_zones_types_names_and_numbers() -> None:
    cloud = cloud_with(
        {"after_s": 1, "zone": "us-central1", "type": "v5e", "node": "job-*", "nth": "1,3-", "notice_s": 0}
    )
    for index in range(4):
        cloud.create(f"job-{index}", **SPOT)
    cloud.create("other", **SPOT)
    cloud.create("job-west", zone="us-west4-a", **SPOT)
    cloud.wait(20)
    preempted = {name for name, state in cloud.nodes.items() if state == "PREEMPTED"}
    assert preempted == {"job-0", "job-2", "job-3"}


def test_a_node_may_be_preempted_while_creating() -> None:
    cloud = cloud_with({"since": "CREATING", "after_s": 4, "nth": "1"})
    first, second = cloud.create("a", **SPOT), cloud.create("b", **SPOT)
    cloud.wait(10)
    assert cloud.nodes == {"a": "PREEMPTED", "b": "READY"}
    assert ((first.error or {}).get("code"), second.error) == (3, None)


def test_a_rate_depends_on_its_seed_and_is_right_on_average() -> None:
    def preemption_times(seed: int) -> list[float]:
        cloud = cloud_with({"per_hour": 6, "seed": seed, "notice_s": 0}, provision_s=0)
        begin = cloud.now
        for index in range(200):
            cloud.create(f"n{index}", **SPOT)
        found = []
        while cloud.state.events:
            cloud.wait(cloud.state.events[0].at - cloud.now)
            found.append(cloud.now - begin)
        assert all(node.state in LOST for node in cloud.state.nodes.values())
        return found

    assert preemption_times(1) == preemption_times(1)
    assert preemption_times(1) != preemption_times(2)
    assert sum(preemption_times(3)) / 200 == pytest.approx(600, rel=0.2)


def test_the_count_of_a_preemption_survives_a_restart_of_the_daemon() -> None:
    cloud = cloud_with({"after_s": 1, "nth": "2", "notice_s": 1})
    cloud.create("a", **SPOT)
    cloud.wait(20)
    cloud.restart()
    cloud.create("b", **SPOT)
    cloud.wait(20)
    assert cloud.nodes == {"a": "READY", "b": "PREEMPTED"}


def test_the_queue_suspends_what_the_schedule_preempts() -> None:
    cloud = cloud_with({"after_s": 30, "notice_s": 2})
    cloud.queue(spot={})
    cloud.wait(15 + 30)
    assert cloud.shown() == "ACTIVE"
    cloud.wait(4)
    assert (cloud.shown(), cloud.row().initiator, cloud.nodes) == ("SUSPENDED", "SERVICE", {"q-node": "PREEMPTED"})


# -- maintenance --------------------------------------------------------------------------------------------------


def test_maintenance_is_announced_then_hosts_are_powered_off_and_on_and_boot_again() -> None:
    cloud = ready()
    cloud.state.maintain(NAME, cloud.now, notice_s=30, lasts_s=60, kind="SCHEDULED")
    shown = node_json(cloud.node("n"), "v2")
    assert shown["upcomingMaintenance"] == {
        "type": "SCHEDULED",
        "canReschedule": False,
        "windowStartTime": "1970-01-01T00:17:20.000000Z",
        "windowEndTime": "1970-01-01T00:18:20.000000Z",
        "latestWindowStartTime": "1970-01-01T00:17:20.000000Z",
        "maintenanceStatus": "PENDING",
    }
    assert (shown["health"], cloud.node("n").power) == ("HEALTHY", Power.ON)
    cloud.wait(30)
    shown = node_json(cloud.node("n"), "v2alpha1")
    assert (shown["state"], shown["health"]) == ("READY", "UNHEALTHY_MAINTENANCE")
    assert shown["upcomingMaintenance"]["maintenanceStatus"] == "ONGOING"
    assert (cloud.node("n").power, cloud.node("n").boot_pending) == (Power.OFF, False)
    cloud.restart()
    cloud.wait(60)
    node = cloud.node("n")
    assert (node_json(node, "v2")["health"], node.power, node.boot_pending) == ("HEALTHY", Power.ON, True)
    assert "upcomingMaintenance" not in node_json(node, "v2")
    assert cloud.billed() == 100


def test_only_large_v6e_slices_may_begin_their_maintenance_themselves() -> None:
    cloud = ready()
    cloud.state.maintain(NAME, cloud.now, notice_s=30)
    with pytest.raises(ApiError, match="cannot be started now"):
        cloud.state.begin_maintenance(NAME, cloud.now)
    cloud.create("large", zone="us-east5-b", acceleratorType="v6e-8", runtimeVersion="v2-alpha-tpuv6e")
    cloud.wait(10)
    large = f"{PLACE.replace(ZONE, 'us-east5-b')}/nodes/large"
    with pytest.raises(ApiError, match="cannot be started now"):
        cloud.state.begin_maintenance(large, cloud.now)
    cloud.state.maintain(large, cloud.now, notice_s=3000, lasts_s=5)
    cloud.state.begin_maintenance(large, cloud.now)
    cloud.follow()
    assert cloud.state.node(large).power is Power.OFF
    cloud.wait(5)
    assert (cloud.state.node(large).power, cloud.state.node(large).maintenance) == (Power.ON, None)


def test_a_node_in_maintenance_can_be_deleted_and_preempted() -> None:
    for end in ("delete", "preempt"):
        cloud = ready()
        cloud.state.maintain(NAME, cloud.now, notice_s=0, lasts_s=60)
        cloud.follow()
        if end == "delete":
            cloud.delete("n")
        else:
            cloud.state.preempt(NAME, cloud.now)
        cloud.wait(100)
        assert cloud.nodes == ({} if end == "delete" else {"n": "PREEMPTED"})


def test_a_node_that_is_not_ready_has_no_maintenance() -> None:
    cloud = QueueCloud()
    cloud.create()
    with pytest.raises(ApiError, match="maintenance is not supported while in state CREATING"):
        cloud.state.maintain(NAME, cloud.now, notice_s=1)


def test_hosts_that_fail_may_be_repaired_after_a_while() -> None:
    cloud = ready()
    cloud.state.set_state(NAME, "REPAIRING", cloud.now, lasts_s=20)
    cloud.follow()
    cloud.wait(19)
    assert (cloud.nodes, cloud.node("n").power) == ({"n": "REPAIRING"}, Power.OFF)
    cloud.wait(1)
    assert (cloud.nodes, cloud.node("n").power, cloud.node("n").boot_pending) == ({"n": "READY"}, Power.ON, True)


# -- flex-start ---------------------------------------------------------------------------------------------------

FLEX: dict[str, Any] = {"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "3600s"}}


def test_flex_start_ends_with_its_nodes_deleted_and_the_request_suspended() -> None:
    cloud = QueueCloud()
    cloud.queue(version="v2alpha1", **FLEX)
    cloud.wait(15)
    assert (cloud.shown(), cloud.row().tier) == ("ACTIVE", "flex-start")
    shown = node_json(cloud.node(), "v2alpha1")["schedulingConfig"]
    assert shown == {"terminationTimestamp": "1970-01-01T01:16:55.000000Z"}
    assert node_json(cloud.node(), "v2")["schedulingConfig"] == {}
    cloud.wait(3599)
    assert cloud.shown() == "ACTIVE"
    cloud.wait(1)
    assert (cloud.shown(), cloud.nodes) == ("SUSPENDING", {"q-node": "DELETING"})
    cloud.wait(5)
    assert (cloud.shown(), cloud.row().initiator, cloud.nodes) == ("SUSPENDED", "SERVICE", {})


def test_flex_start_that_is_not_offered_is_refused_in_the_operation() -> None:
    cloud = QueueCloud()
    node = NODE | {"acceleratorType": "v5litepod-16"}
    operation = cloud.queue(version="v2alpha1", node=node, **FLEX)
    cloud.wait(2)
    assert operation.error == {
        "code": 3,
        "message": 'FLEX_START provisioning model is not supported for accelerator type "v5litepod-16" in location '
        f'"{ZONE}"',
    }
    assert cloud.shown() == "FAILED"


def test_data_may_say_where_flex_start_is_offered() -> None:
    cloud = QueueCloud()
    admin.rehearse(cloud.state, {"flex_start": [{"zone": "us-east5"}]}, cloud.now)
    cloud.queue(version="v2alpha1", **FLEX)
    cloud.wait(20)
    assert cloud.shown() == "FAILED"


def test_flex_start_needs_preemptible_quota() -> None:
    cloud = QueueCloud()
    admin.rehearse(cloud.state, {"quotas": [{"limit": 0, "tier": "spot"}]}, cloud.now)
    with pytest.raises(ApiError, match="Quota limit"):
        cloud.queue(version="v2alpha1", **FLEX)


@pytest.mark.parametrize("seconds", ["0s", "604801s", None])
def test_flex_start_needs_a_duration_of_up_to_seven_days(seconds: str | None) -> None:
    run: dict[str, Any] = {} if seconds is None else {"runDuration": {"maxRunDuration": seconds}}
    with pytest.raises(ApiError, match=r"max run duration|needs a max run duration"):
        QueueCloud().queue(version="v2alpha1", provisioningModel="FLEX_START", **run)


def test_a_node_without_a_queued_resource_cannot_use_flex_start() -> None:
    with pytest.raises(ApiError, match='"FLEX_START" is none of'):
        QueueCloud().create(schedulingConfig={"provisioningModel": "FLEX_START"})
