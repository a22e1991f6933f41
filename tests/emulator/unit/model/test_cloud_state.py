"""The emulated cloud as a pure state machine: every state, under virtual time."""

import json
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings

from cloud_tpu_emulator.faults.api_errors import ApiError
from cloud_tpu_emulator.model.records import HostRecord, OperationRecord, Power
from tests.emulator.unit.model.queue_fixture import PLACE, ZONE, AnyOrder, QueueCloud

NAME = f"{PLACE}/nodes/n"


@pytest.fixture
def cloud() -> QueueCloud:
    return QueueCloud()


@pytest.fixture
def ready(cloud: QueueCloud) -> QueueCloud:
    cloud.create()
    cloud.wait(10)
    return cloud


def ask(cloud: QueueCloud, verb: str) -> OperationRecord:
    return cloud.delete() if verb == "delete" else cloud.power(verb)


def test_a_node_is_creating_until_its_delay_has_passed(cloud: QueueCloud) -> None:
    operation = cloud.create()
    cloud.wait(9.99)
    assert (cloud.seen(), operation.done) == ("CREATING", False)
    cloud.wait(0.01)
    assert (cloud.seen(), operation.done, operation.error) == ("READY", True, None)
    assert operation.response.state == "READY"


def test_a_node_is_not_ready_before_its_hosts_are_on(cloud: QueueCloud) -> None:
    cloud.hosts_follow = False
    cloud.create()
    cloud.wait(100)
    assert cloud.seen() == "CREATING"
    cloud.hosts_follow = True
    cloud.wait(0)
    assert cloud.seen() == "READY"


def test_a_node_is_not_absent_before_its_hosts_are_removed(ready: QueueCloud) -> None:
    ready.hosts_follow = False
    operation = ready.delete()
    ready.wait(100)
    assert (ready.seen(), operation.done) == ("DELETING", False)
    assert ready.state.meter.read(ready.now)["totals"]["running"] == 1
    ready.hosts_follow = True
    ready.wait(0)
    assert (ready.seen(), operation.done, operation.response) == (None, True, None)


def test_stop_and_start_take_their_delays_and_power_the_hosts(ready: QueueCloud) -> None:
    stopping = ready.power("stop")
    assert ready.seen() == "STOPPING"
    ready.wait(3)
    assert (ready.seen(), stopping.done) == ("STOPPED", True)
    assert ready.node("n").power is Power.OFF
    starting = ready.power("start")
    ready.wait(4.9)
    assert ready.seen() == "STARTING"
    ready.wait(0.1)
    assert (ready.seen(), starting.done, ready.node("n").power) == ("READY", True, Power.ON)


@pytest.mark.parametrize(("steps", "verb", "state"), [
    ([], "stop", "CREATING"), ([10], "start", "READY"), ([10, "stop"], "stop", "STOPPING"),
    ([10, "stop", 3, "start"], "start", "STARTING"), ([10, "delete"], "stop", "DELETING"),
])  # fmt: skip
def test_stop_and_start_are_refused_in_other_states(cloud: QueueCloud, steps: list[Any], verb: str, state: str) -> None:
    cloud.create()
    for step in steps:
        ask(cloud, step) if isinstance(step, str) else cloud.wait(step)
    with pytest.raises(ApiError, match=f"{verb} is not supported while in state {state}") as refusal:
        ask(cloud, verb)
    assert (refusal.value.status, refusal.value.http) == ("FAILED_PRECONDITION", 400)


def test_a_slice_with_several_hosts_cannot_be_stopped(ready: QueueCloud) -> None:
    ready.node("n").workers = 2
    with pytest.raises(ApiError, match="only available with single TPU nodes"):
        ready.power("stop")
    assert ready.seen() == "READY"


@pytest.mark.parametrize("steps", [[], [10], [10, "stop"], [10, "stop", 3], [10, "stop", 3, "start"]])
def test_delete_is_possible_in_every_state_and_ends_what_was_under_way(cloud: QueueCloud, steps: list[Any]) -> None:
    operations = [cloud.create()]
    for step in steps:
        if isinstance(step, str):
            operations.append(ask(cloud, step))
        else:
            cloud.wait(step)
    deletion = cloud.delete()
    assert all(operation.done for operation in operations)
    assert operations[-1].error is None or "is being deleted" in operations[-1].error["message"]
    cloud.wait(2)
    assert (cloud.seen(), deletion.done, deletion.error) == (None, True, None)


def test_a_second_delete_is_answered_with_the_first(ready: QueueCloud) -> None:
    assert ready.delete().name == ready.delete().name
    ready.wait(2)
    with pytest.raises(ApiError, match="was not found"):
        ready.delete()


def test_a_name_is_in_use_until_its_node_is_absent(ready: QueueCloud) -> None:
    first = ready.node("n")
    with pytest.raises(ApiError, match="already exists"):
        ready.create()
    ready.delete()
    with pytest.raises(ApiError, match="already exists"):
        ready.create()
    ready.wait(2)
    ready.create()
    assert ready.node("n").uid != first.uid


@pytest.mark.parametrize("pattern", [f"{ZONE}/v5litepod-4", "*/v5litepod-4", f"{ZONE}/*", "*/*"])
def test_without_capacity_the_create_fails_after_its_delay_and_the_node_vanishes(pattern: str) -> None:
    cloud = QueueCloud(no_capacity=["us-east5-b/v5litepod-4", pattern])
    operation = cloud.create()
    cloud.wait(5)
    assert (cloud.seen(), operation.done) == ("CREATING", False)
    cloud.wait(5)
    assert (cloud.seen(), operation.done) == (None, True)
    assert operation.error["code"] == 8
    assert operation.error["message"].startswith(
        'There is no more capacity in the zone "us-central1-a"; you can try in another'
    )
    assert cloud.state.meter.read(cloud.now)["totals"]["running"] == 0


def test_capacity_elsewhere_or_for_another_type_does_not_matter() -> None:
    cloud = QueueCloud(provision_s=0, no_capacity=["us-east5-b/*", f"{ZONE}/v5litepod-8"])
    cloud.create()
    cloud.wait(0)
    assert cloud.seen() == "READY"


def test_a_patch_is_done_at_once_and_refused_while_an_operation_is_under_way(cloud: QueueCloud) -> None:
    cloud.create()
    with pytest.raises(ApiError, match="unable to queue the operation") as refusal:
        cloud.state.patch(NAME, {"labels": {"a": "b"}}, "v2", cloud.now)
    assert refusal.value.http == 409
    cloud.wait(10)
    operation = cloud.state.patch(NAME, {"labels": {"a": "b"}}, "v2", cloud.now)
    assert operation.done
    assert cloud.node("n").spec["labels"] == {"a": "b"}
    cloud.state.patch(NAME, {"labels": None}, "v2", cloud.now)
    assert "labels" not in cloud.node("n").spec


def test_an_operation_keeps_the_node_as_it_was(ready: QueueCloud) -> None:
    operation = ready.state.patch(NAME, {"labels": {"a": "1"}}, "v2", ready.now)
    ready.state.patch(NAME, {"labels": {"a": "2"}}, "v2", ready.now)
    assert operation.response.spec["labels"] == {"a": "1"}


def test_finished_operations_do_not_repeat_the_startup_script_in_the_state_file() -> None:
    cloud = QueueCloud()
    cloud.create(metadata={"startup-script": "#!" + "x" * 30_000})
    cloud.wait(10)
    for number in range(50):
        cloud.state.patch(NAME, {"labels": {"a": str(number)}}, "v2", cloud.now)
    assert cloud.node("n").spec["metadata"]
    assert len(json.dumps(cloud.state.dump())) < 2 * 30_000 + 50 * 2_000


def test_each_time_a_node_becomes_ready_it_has_to_boot(ready: QueueCloud) -> None:
    assert ready.node("n").boot_pending
    ready.node("n").boot_pending = False
    ready.power("stop")
    ready.wait(3)
    assert not ready.node("n").boot_pending
    ready.power("start")
    ready.wait(5)
    assert ready.node("n").boot_pending


def test_the_meter_counts_from_create_to_absence(cloud: QueueCloud) -> None:
    cloud.create()
    cloud.wait(10)
    cloud.wait(90)
    cloud.delete()
    cloud.wait(2)
    cloud.wait(1000)
    [row] = cloud.state.meter.read(cloud.now)["nodes"]
    assert (row["since"], row["until"], row["node_seconds"]) == (1000, 1102, 102)
    assert row["usd"] == pytest.approx(102 * cloud.state.meter.bills[0].usd_per_hour / 3600)


def test_next_due_is_the_time_of_the_next_change(cloud: QueueCloud) -> None:
    assert cloud.state.next_due() is None
    cloud.create()
    assert cloud.state.next_due() == 1010
    cloud.wait(10)
    assert cloud.state.next_due() is None


def test_a_clock_that_steps_back_undoes_nothing(ready: QueueCloud) -> None:
    ready.state.advance(0)
    assert (ready.seen(), ready.state.now) == ("READY", 1010)


def test_after_a_restart_ready_nodes_get_their_hosts_back_on_the_same_ports(ready: QueueCloud) -> None:
    ready.node("n").boot_pending = False
    for ended in ([], [ready.node("n").uid]):  # its processes may have ended meanwhile: then they boot
        ready.state.forget_power(ended)
        assert ready.node("n").boot_pending is bool(ended)
    assert (ready.node("n").state, ready.node("n").power, ready.node("n").target_power) == ("READY", "unknown", "on")
    assert ready.node("n").hosts == [HostRecord(22, 80)]


def test_after_a_restart_nothing_counts_as_off_before_the_driver_has_reported(ready: QueueCloud) -> None:
    ready.hosts_follow = False
    operation = ready.power("stop")
    ready.state.forget_power()
    ready.wait(100)
    assert (ready.seen(), operation.done) == ("STOPPING", False)


def test_the_same_seed_and_requests_give_the_same_names() -> None:
    first, second = QueueCloud(), QueueCloud()
    assert first.create().name == second.create().name


AnyOrder.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyOrder = AnyOrder.TestCase
