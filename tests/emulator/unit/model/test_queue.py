"""Queued resources as a pure state machine: from the request to absence, with events of their nodes in between."""

from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from cloud_tpu_emulator.faults.api_errors import ApiError
from cloud_tpu_emulator.faults.fault import NoReply
from cloud_tpu_emulator.model.records import State
from cloud_tpu_emulator.wire.replies import operation_json, queued_json
from tests.emulator.unit.model.queue_fixture import NODE, PLACE, ZONE, AnyTime, QueueCloud

TWO = {"multisliceParams": {"nodeCount": 2, "nodeIdPrefix": "pair"}}


@pytest.fixture
def cloud() -> QueueCloud:
    return QueueCloud()


@pytest.fixture
def active(cloud: QueueCloud) -> QueueCloud:
    cloud.queue(spot={})
    cloud.wait(15)
    assert cloud.shown() == "ACTIVE"
    return cloud


# -- creating nodes ------------------------------------------------------------------------------------------------


def test_a_request_is_created_waits_is_provisioned_and_becomes_active(cloud: QueueCloud) -> None:
    operation = cloud.queue()
    began = cloud.now
    assert cloud.states("ACTIVE") == ["CREATING", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    assert cloud.now - began == 15
    assert (operation.done, operation.error, operation.verb, operation.ended_at) == (True, None, "create", began + 1)
    assert cloud.nodes == {"q-node": "READY"}


def test_the_create_operation_ends_when_the_request_is_accepted_and_not_when_it_is_fulfilled(cloud: QueueCloud) -> None:
    operation = cloud.queue()
    cloud.wait(1)
    assert (operation.done, cloud.shown(), cloud.nodes) == (True, "WAITING_FOR_RESOURCES", {})
    response = operation_json(operation, "v2")["response"]
    assert response["@type"] == "type.googleapis.com/google.cloud.tpu.v2.QueuedResource"
    assert response["state"] == {"state": "WAITING_FOR_RESOURCES"}


def test_its_node_names_the_request_and_is_priced_by_its_tier(active: QueueCloud) -> None:
    node = active.node()
    assert (node.queued_resource, node.multislice, node.spot) == (f"{PLACE}/queuedResources/q", False, True)
    [bill] = active.state.meter.bills
    assert (bill.uid, bill.spot, bill.since) == (node.uid, True, 1005)


@pytest.mark.parametrize("version", ["v2", "v2alpha1"])
def test_several_nodes_are_numbered_and_created_together(cloud: QueueCloud, version: str) -> None:
    name = {"v2": "multisliceParams", "v2alpha1": "multiNodeParams"}[version]
    cloud.queue(spec={name: {"nodeCount": 3, "nodeIdPrefix": "np"}}, version=version)
    cloud.wait(5)
    assert cloud.nodes == {"np-0": "CREATING", "np-1": "CREATING", "np-2": "CREATING"}
    cloud.wait(10)
    assert cloud.shown() == "ACTIVE"
    assert all(node.multislice for node in cloud.state.nodes.values())
    for other in ("v2", "v2alpha1"):
        specs = queued_json(cloud.row(), other)["tpu"]["nodeSpec"]
        assert [spec["nodeId"] for spec in specs] == ["np-0", "np-1", "np-2"]  # gcloud shows their number as NODE_COUNT


def test_without_a_prefix_nodes_are_named_after_the_request(cloud: QueueCloud) -> None:
    cloud.queue(spec={"multisliceParams": {"nodeCount": 2}})
    cloud.wait(5)
    assert set(cloud.nodes) == {"q-0", "q-1"}


def test_it_is_not_active_before_the_last_node_is_ready(cloud: QueueCloud) -> None:
    cloud.queue(spec=TWO)
    cloud.wait(5)
    cloud.state.nodes[f"{PLACE}/nodes/pair-1"].due = cloud.now + 50
    cloud.wait(30)
    assert (cloud.nodes["pair-0"], cloud.shown()) == ("READY", "PROVISIONING")
    cloud.wait(20)
    assert cloud.shown() == "ACTIVE"


# -- when nodes may be created ------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [
    {"validUntilDuration": "30s"}, {"validUntilTime": "1970-01-01T00:17:10Z"},
    {"validInterval": {"startTime": "1970-01-01T00:00:00Z", "endTime": "1970-01-01T00:17:10.000000000Z"}},
])  # fmt: skip
def test_a_request_that_is_not_fulfilled_in_time_fails_with_the_reason(
    cloud: QueueCloud, policy: dict[str, Any]
) -> None:
    cloud.state.settings.no_capacity = ["*/*"]
    cloud.queue(queueingPolicy=policy)
    cloud.wait(29)
    assert cloud.shown() == "WAITING_FOR_RESOURCES"
    cloud.wait(1)
    assert cloud.shown() == "FAILED"
    state = queued_json(cloud.row(), "v2")["state"]
    assert state["failedData"]["error"]["code"] == 4
    assert "valid until" in state["failedData"]["error"]["message"]
    cloud.state.settings.no_capacity = []
    cloud.wait(1000)
    assert (cloud.shown(), cloud.nodes) == ("FAILED", {})


@pytest.mark.parametrize("policy", [
    {"validAfterDuration": "60s"}, {"validAfterTime": "1970-01-01T00:17:40+00:00"},
    {"validInterval": {"startTime": "1970-01-01T00:17:40Z"}},
])  # fmt: skip
def test_nodes_are_not_created_too_early(cloud: QueueCloud, policy: dict[str, Any]) -> None:
    cloud.queue(queueingPolicy=policy)
    cloud.wait(59)
    assert cloud.shown() == "WAITING_FOR_RESOURCES"
    cloud.wait(1)
    assert cloud.shown() == "PROVISIONING"


# -- losing nodes -------------------------------------------------------------------------------------------------


def test_a_preempted_node_suspends_it_by_the_service_and_stays_listed(active: QueueCloud) -> None:
    active.state.set_state(active.node().name, "PREEMPTED", active.now)
    assert active.states("SUSPENDED")[-2:] == ["SUSPENDING", "SUSPENDED"]
    assert active.nodes == {"q-node": "PREEMPTED"}
    assert queued_json(active.row(), "v2")["state"] == {
        **{"state": "SUSPENDED", "suspendedData": {}, "stateInitiator": "SERVICE"}
    }
    active.wait(10_000)
    assert active.shown() == "SUSPENDED"


def test_a_node_that_is_deleted_suspends_it_by_the_user(active: QueueCloud) -> None:
    active.delete("q-node")
    assert active.states("SUSPENDED")[-2:] == ["SUSPENDING", "SUSPENDED"]
    assert (active.nodes, active.row().initiator) == ({}, "USER")


def test_the_loss_of_one_node_deletes_the_others(cloud: QueueCloud) -> None:
    cloud.queue(spec=TWO, spot={})
    cloud.wait(15)
    cloud.state.set_state(f"{PLACE}/nodes/pair-0", "PREEMPTED", cloud.now)
    cloud.wait(5)
    assert (cloud.shown(), cloud.nodes) == ("SUSPENDED", {"pair-0": "PREEMPTED"})


def test_a_node_that_is_preempted_while_it_is_created_suspends_it(cloud: QueueCloud) -> None:
    cloud.queue(spot={})
    cloud.wait(6)
    cloud.state.set_state(cloud.node().name, "PREEMPTED", cloud.now)
    cloud.wait(3)
    assert cloud.shown() == "SUSPENDED"


def test_a_node_of_the_same_name_that_was_created_separately_is_not_its_own(active: QueueCloud) -> None:
    active.delete("q-node")
    active.wait(5)
    active.create("q-node")
    active.unqueue()
    active.wait(10)
    assert (active.shown(), active.nodes) == (None, {"q-node": "READY"})


# -- deleting -----------------------------------------------------------------------------------------------------


def test_a_delete_without_force_is_refused_while_there_are_nodes(active: QueueCloud) -> None:
    with pytest.raises(ApiError, match="has nodes; delete them first, or use force") as refusal:
        active.unqueue()
    assert (refusal.value.status, active.shown()) == ("FAILED_PRECONDITION", "ACTIVE")


def test_force_deletes_its_nodes_and_then_itself(active: QueueCloud) -> None:
    operation = active.unqueue(force=True)
    assert (active.shown(), active.nodes, operation.done) == ("DELETING", {"q-node": "DELETING"}, False)
    assert active.unqueue() is operation
    active.wait(2)
    assert (active.shown(), active.nodes, operation.done, operation.error) == (None, {}, True, None)
    assert active.state.meter.read(active.now)["totals"]["running"] == 0


def test_a_delete_of_a_node_that_is_deleted_with_its_request_joins_that_delete(active: QueueCloud) -> None:
    """As a watchdog deletes its own node while the forced delete of the request is under way."""
    active.unqueue(force=True)
    active.wait(1.5)
    operation = active.delete("q-node")
    assert active.delete("q-node") is operation and not operation.done
    active.wait(0.5)
    assert (active.shown(), active.nodes, operation.done, operation.error) == (None, {}, True, None)


@pytest.mark.parametrize("seconds", [0.5, 3])
def test_a_request_without_nodes_is_deleted_without_force(cloud: QueueCloud, seconds: float) -> None:
    created = cloud.queue()
    cloud.wait(seconds)
    deleted = cloud.unqueue()
    cloud.wait(2)
    assert (cloud.shown(), created.done, deleted.done, deleted.error) == (None, True, True, None)
    assert (created.error or {}).get("code") == (1 if seconds == 0.5 else None)


def test_a_suspended_request_is_deleted_without_force_and_with_its_preempted_node(active: QueueCloud) -> None:
    active.state.set_state(active.node().name, "PREEMPTED", active.now)
    active.wait(2)
    active.unqueue()
    active.wait(2)
    assert (active.shown(), active.nodes) == (None, {})


@pytest.mark.parametrize("force", [False, True])
def test_while_provisioning_a_delete_is_accepted_and_fails_later(cloud: QueueCloud, force: bool) -> None:
    cloud.queue()
    cloud.wait(6)
    operation = cloud.unqueue(force=force)
    assert not operation.done
    cloud.wait(1.5)
    assert operation.error["code"] == 9
    assert "delete is not supported while in state PROVISIONING" in operation.error["message"]
    assert cloud.shown() == "PROVISIONING"
    cloud.wait(10)
    cloud.unqueue(force=True)
    cloud.wait(3)
    assert (cloud.shown(), cloud.nodes) == (None, {})


# -- reset --------------------------------------------------------------------------------------------------------


def test_a_reset_restarts_the_nodes_and_ends_when_they_are_ready_again(active: QueueCloud) -> None:
    uid = active.node().uid
    active.node().boot_pending = False
    operation = active.reset()
    assert (active.shown(), active.nodes) == ("PROVISIONING", {"q-node": "RESTARTING"})
    active.wait(3)
    assert active.nodes == {"q-node": "STARTING"}
    active.wait(5)
    assert (active.shown(), operation.done, operation.error) == ("ACTIVE", True, None)
    assert (active.node().uid, active.node().boot_pending) == (uid, True)


def test_a_request_that_is_not_active_cannot_be_reset(cloud: QueueCloud) -> None:
    cloud.queue()
    with pytest.raises(ApiError, match="reset is not supported while in state CREATING"):
        cloud.reset()


# -- requests -----------------------------------------------------------------------------------------------------


def test_the_same_request_id_gets_the_same_operation_and_creates_nothing_twice(cloud: QueueCloud) -> None:
    first = cloud.queue(request_id="r1")
    assert cloud.queue(request_id="r1") is first
    with pytest.raises(ApiError, match="already exists"):
        cloud.queue(request_id="r2")
    cloud.wait(100)
    gone = cloud.unqueue(force=True, request_id="r3")
    cloud.wait(100)
    assert cloud.unqueue(request_id="r3") is gone
    cloud.restart()
    assert cloud.queue(request_id="r1").name == first.name
    assert cloud.shown() is None


def test_the_names_of_nodes_must_be_free_at_the_request_and_when_they_are_created(cloud: QueueCloud) -> None:
    cloud.create("q-node")
    with pytest.raises(ApiError, match=r"nodes/q-node' already exists"):
        cloud.queue()
    cloud.queue("r")
    cloud.create("r-node")
    cloud.wait(5)
    assert cloud.shown("r") == "FAILED"
    assert "nodes/r-node' already exists" in str(cloud.row("r").failure)


@pytest.mark.parametrize(("queue_id", "fields", "message"), [
    ("", {}, "Invalid queued resource ID"), ("a b", {}, "Invalid queued resource ID"),
    ("q", {"tpu": {}}, "At least one node spec"),
    ("q", {"spot": {}, "guaranteed": {}}, "Only one tier is possible, not spot and guaranteed"),
    ("q", {"queueingPolicy": {"validUntilDuration": "5"}}, "a duration is expected"),
    ("q", {"queueingPolicy": {"validUntilTime": "tomorrow"}}, "a time is expected"),
    ("q", {"queueingPolicy": {"validUntilDuration": "5s", "validAfterDuration": "1s"}}, "Only one timing"),
    ("q", {"provisioningModel": "SPOT"}, 'Unknown name "provisioningModel"'),
    ("q", {"spec": {"nodeId": "Big"}}, 'Invalid node ID "Big"'), ("q", {"spec": {}}, 'Invalid node ID ""'),
    ("q", {"spec": {"multisliceParams": {"nodeCount": 1}}}, "must be greater than 1"),
    ("q", {"spec": {"multisliceParams": {"nodeCount": 1000}}}, "at most 256 nodes"),
    ("q", {"spec": {"nodeId": "n", "multisliceParams": {"nodeCount": 2}}}, "exclude each other"),
    ("q", {"spec": {"nodeId": "n", "parent": "projects/p/locations/us-east5-b"}}, "The parent of a node spec"),
    ("q", {"node": NODE | {"acceleratorType": "v2-8"}}, "the accelerator v2-8 was not found in zone"),
])  # fmt: skip
def test_a_wrong_request_is_refused_and_creates_nothing(
    cloud: QueueCloud, queue_id: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ApiError) as refusal:
        cloud.queue(queue_id, **fields)
    assert (refusal.value.status, cloud.state.queue.rows) == ("INVALID_ARGUMENT", {})
    assert message in refusal.value.message


@pytest.mark.parametrize(("fields", "tier"), [
    ({"spot": {}}, "spot"), ({"bestEffort": {}}, "spot"), ({"provisioningModel": "SPOT"}, "spot"),
    ({"provisioningModel": "STANDARD", "spot": {}}, "spot"),  # what gcloud alpha sends for --spot
    ({"provisioningModel": "STANDARD"}, "on-demand"), ({"guaranteed": {}}, "on-demand"),
    ({"reservationName": "projects/p/locations/z/reservations/r"}, "reserved"),
    ({"provisioningModel": 3}, "reserved"),
    ({"node": NODE | {"schedulingConfig": {"preemptible": True}}}, "spot"),
    ({"node": NODE | {"schedulingConfig": {"provisioningModel": "SPOT", "spot": False}}}, "spot"),
])  # fmt: skip
def test_every_spelling_of_a_tier_is_understood(cloud: QueueCloud, fields: dict[str, Any], tier: str) -> None:
    cloud.queue(version="v2alpha1", **fields)
    assert cloud.row().tier == tier
    [spec] = cloud.row().node_specs
    assert bool(spec.node["schedulingConfig"].get("reserved")) == (tier == "reserved")


# -- faults -------------------------------------------------------------------------------------------------------


def test_a_hidden_request_still_creates_its_node(cloud: QueueCloud) -> None:
    cloud.state.faults.add({"kind": "hidden", "operation": "queuedResources.create", "seconds": 8}, cloud.now)
    cloud.queue()
    cloud.wait(7)
    assert (cloud.shown(), cloud.state.queue.listed("p", ZONE, []), cloud.nodes) == (None, [], {"q-node": "CREATING"})
    cloud.wait(1)
    assert cloud.shown() == "PROVISIONING"


def test_a_late_request_is_created_without_a_reply(cloud: QueueCloud) -> None:
    cloud.state.faults.add({"kind": "late", "operation": "queuedResources.*", "seconds": 50}, cloud.now)
    with pytest.raises(NoReply):
        cloud.queue()
    cloud.restart()
    cloud.wait(49)
    assert cloud.shown() is None
    cloud.wait(2)
    assert cloud.shown() == "WAITING_FOR_RESOURCES"


def test_an_operation_that_fails_leaves_the_request_as_it_was(active: QueueCloud) -> None:
    fault = {"kind": "operation_fails", "operation": "queuedResources.delete", "when": {"first": 1}}
    active.state.faults.add(fault, active.now)
    operation = active.unqueue(force=True)
    active.wait(1.5)
    assert (operation.error or {}).get("code") == 13
    assert (active.shown(), active.nodes) == ("ACTIVE", {"q-node": "READY"})


def test_after_a_dropped_delete_the_request_is_absent_only_for_a_while(cloud: QueueCloud) -> None:
    cloud.state.faults.add({"kind": "delete_dropped", "operation": "queuedResources.delete"}, cloud.now)
    cloud.queue()
    operation = cloud.unqueue()
    cloud.wait(0.5)
    assert (operation.done, operation.error, cloud.shown()) == (True, None, None)
    cloud.wait(15)
    assert cloud.shown() == "ACTIVE"


def test_faults_may_match_the_state_of_a_request(active: QueueCloud) -> None:
    active.state.faults.add({"kind": "refuse_delete", "match": {"state": "ACTIVE", "node": "q"}}, active.now)
    with pytest.raises(ApiError, match="delete is not supported while in state ACTIVE"):
        active.unqueue(force=True)


# -- any order ----------------------------------------------------------------------------------------------------


class AnyQueue(AnyTime):
    """Any calls and any events: meter and queue agree with the nodes, and in the end everything can be deleted."""

    @rule(queue_id=st.sampled_from("ab"), several=st.booleans(), capacity=st.booleans())
    def ask(self, queue_id: str, several: bool, capacity: bool) -> None:
        self.cloud.state.settings.no_capacity = [] if capacity else ["*/*"]
        spec = {"multisliceParams": {"nodeCount": 2}} if several else None
        try:
            self.cloud.queue(queue_id, spec=spec, spot={}, queueingPolicy={"validUntilDuration": "25s"})
        except ApiError as refusal:
            assert refusal.status == "ALREADY_EXISTS"

    @rule(queue_id=st.sampled_from("ab"), verb=st.sampled_from(["delete", "force", "reset"]))
    def change(self, queue_id: str, verb: str) -> None:
        try:
            self.cloud.reset(queue_id) if verb == "reset" else self.cloud.unqueue(queue_id, force=verb == "force")
        except ApiError as refusal:
            assert refusal.status in ("NOT_FOUND", "FAILED_PRECONDITION")

    @precondition(lambda self: self.cloud.state.nodes)
    @rule(data=st.data(), what=st.sampled_from(["PREEMPTED", "REPAIRING", "READY", "delete", "vanish"]))
    def happen(self, data: st.DataObject, what: str) -> None:
        cloud = self.cloud
        name = data.draw(st.sampled_from(sorted(cloud.state.nodes)))
        match what:
            case "delete":
                try:
                    cloud.state.delete(name, "v2", cloud.now)
                except ApiError as refusal:  # it is hidden
                    assert refusal.status == "NOT_FOUND"
            case "vanish":
                cloud.state.vanish(name, cloud.now)
            case _ if cloud.state.nodes[name].state not in ("PREEMPTED", "DELETING"):  # no state follows these
                cloud.state.set_state(name, what, cloud.now)
        cloud.follow()

    @invariant()
    def an_active_request_has_all_its_nodes_and_one_that_is_over_has_none_that_lives(self) -> None:
        self.cloud.wait(0)
        for row in self.cloud.state.queue.rows.values():
            states = [node.state for node in self.cloud.state.queue.nodes_of(row)]
            if row.state is State.ACTIVE:
                assert len(states) == len(row.node_names)
            if row.state in (State.SUSPENDED, State.FAILED, State.WAITING, State.CREATING):
                assert set(states) <= {"PREEMPTED", "DELETING"}  # preempted, and possibly being deleted

    @invariant()
    def every_operation_that_is_not_done_is_waited_for(self) -> None:
        state = self.cloud.state
        waiting = {op.name for op in state.operations.values() if not op.done and op.due is None}
        things = [*state.nodes.values(), *state.queue.rows.values()]
        assert waiting == {thing.operation for thing in things if thing.operation}

    def teardown(self) -> None:
        cloud = self.cloud
        cloud.state.settings.no_capacity = []
        cloud.wait(100)
        for node in list(cloud.state.nodes.values()):
            if node.state == "REPAIRING":
                cloud.state.set_state(node.name, "READY", cloud.now)
        cloud.wait(100)
        for row in list(cloud.state.queue.rows.values()):
            cloud.unqueue(row.queue_id, force=True)
        cloud.wait(10)
        for node in list(cloud.state.nodes.values()):
            cloud.delete(node.node_id)
        cloud.wait(10)
        assert (cloud.state.queue.rows, cloud.state.nodes, cloud.state.next_due()) == ({}, {}, None)
        assert all(operation.done for operation in cloud.state.operations.values())
        assert cloud.state.meter.read(cloud.now)["totals"]["running"] == 0


AnyQueue.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyQueue = AnyQueue.TestCase
