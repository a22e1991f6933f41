"""What faults do to the emulated cloud, and events of its nodes, under virtual time."""

from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from cloud_tpu_emulator.faults.api_errors import ApiError
from cloud_tpu_emulator.faults.fault import NoReply
from cloud_tpu_emulator.faults.kinds import KINDS, Role
from cloud_tpu_emulator.faults.plain_data import BadData
from cloud_tpu_emulator.model.records import LOST, SETTLED_POWER, OperationRecord, Power
from cloud_tpu_emulator.wire import replies
from tests.emulator.unit.model.queue_fixture import PLACE, ZONE, AnyOrder, QueueCloud


def ready(*faults: dict[str, Any]) -> QueueCloud:
    """Return a cloud with a READY node, created before any fault."""
    cloud = QueueCloud()
    cloud.create()
    cloud.wait(10)
    cloud.state.faults.add_all(faults, cloud.now)
    return cloud


def changed(fault: dict[str, Any], verb: str) -> tuple[QueueCloud, OperationRecord]:
    """Return a cloud with the fault, and the operation of a change of its node, or of the create of one."""
    cloud = QueueCloud(fault) if verb == "create" else ready(fault)
    return cloud, cloud.power(verb) if verb == "stop" else getattr(cloud, "set_labels" if verb == "patch" else verb)()


# -- creating -----------------------------------------------------------------------------------------------------


def test_a_hidden_node_exists_and_bills_but_is_not_visible_for_a_while() -> None:
    cloud = QueueCloud({"kind": "hidden", "seconds": 15})
    operation = cloud.create()
    cloud.wait(14)
    assert (operation.done, operation.error) == (True, None)
    assert (cloud.seen(), cloud.listed()[0], cloud.billed()) == (None, {}, 14)
    for refused in (cloud.delete, cloud.set_labels, lambda: cloud.power("stop")):
        with pytest.raises(ApiError, match="was not found"):
            refused()
    with pytest.raises(ApiError, match="already exists"):
        cloud.create()
    cloud.wait(1)
    assert (cloud.seen(), cloud.listed()[0]) == ("READY", {"n": "READY"})


def test_a_late_create_has_no_reply_and_takes_effect_later() -> None:
    cloud = QueueCloud({"kind": "late", "seconds": 40, "when": {"first": 1}})
    with pytest.raises(NoReply):
        cloud.create()
    assert cloud.state.next_due() == 1040
    cloud.wait(39)
    assert (cloud.seen(), cloud.billed(), cloud.state.operations) == (None, 0, {})
    with pytest.raises(ApiError, match="was not found"):
        cloud.delete()
    cloud.wait(1)
    assert (cloud.seen(), [op.verb for op in cloud.state.operations.values()]) == ("CREATING", ["create"])
    cloud.wait(10)
    assert (cloud.seen(), cloud.billed()) == ("READY", 10)


def test_a_late_create_of_a_name_that_is_in_use_by_then_has_no_effect() -> None:
    cloud = QueueCloud({"kind": "late", "seconds": 40, "when": {"first": 1}})
    with pytest.raises(NoReply):
        cloud.create()
    cloud.create()
    uid = cloud.node("n").uid
    cloud.wait(100)
    assert (cloud.node("n").uid, cloud.seen(), len(cloud.state.meter.bills)) == (uid, "READY", 1)


def test_a_stockout_by_fault_ends_as_one_by_settings() -> None:
    cloud = QueueCloud({"kind": "stockout", "when": {"first": 1}})
    operation = cloud.create()
    cloud.wait(10)
    assert (operation.error["code"], cloud.seen()) == (8, None)
    assert operation.error["message"].startswith('There is no more capacity in the zone "us-central1-a"')
    cloud.create()
    cloud.wait(10)
    assert cloud.seen() == "READY"


@pytest.mark.parametrize("state", ["CREATING", "UNKNOWN"])
def test_a_failed_create_can_leave_a_node_that_stays_until_it_is_deleted(state: str) -> None:
    cloud = QueueCloud({"kind": "create_fails_leaving_node", "state": state})
    operation = cloud.create()
    cloud.wait(1000)
    assert operation.error["code"] == 8
    assert (cloud.seen(), cloud.billed(), cloud.node("n").power) == (state, 1000, Power.OFF)
    deletion = cloud.delete()
    cloud.wait(2)
    assert (cloud.seen(), deletion.done, deletion.error, cloud.billed()) == (None, True, None, 1002)


def test_the_operation_of_a_create_can_fail_although_the_node_is_created() -> None:
    cloud = QueueCloud({"kind": "operation_fails", "operation": "nodes.create", "seconds": 4})
    operation = cloud.create()
    cloud.wait(4)
    assert operation.error == {"code": 13, "message": "an internal error has occurred"}
    assert cloud.seen() == "CREATING"
    cloud.wait(6)
    assert cloud.seen() == "READY"


@pytest.mark.parametrize(("verb", "meanwhile", "then"), [("create", "CREATING", "READY"), ("delete", "DELETING", None)])
def test_a_stuck_change_takes_as_long_as_the_fault_says_and_bills(verb: str, meanwhile: str, then: str | None) -> None:
    cloud, operation = changed({"kind": "stuck", "operation": f"nodes.{verb}", "seconds": 500}, verb)
    billed_s = cloud.billed()
    cloud.wait(499)
    assert (cloud.seen(), operation.done, cloud.billed() - billed_s) == (meanwhile, False, 499)
    cloud.wait(1)
    assert (cloud.seen(), operation.done) == (then, True)


# -- deleting -----------------------------------------------------------------------------------------------------


def test_a_delete_whose_operation_fails_leaves_a_node_that_runs_as_before() -> None:
    cloud = ready({"kind": "operation_fails", "operation": "nodes.delete", "seconds": 4, "when": {"first": 4}})
    for _ in range(2):
        operation = cloud.delete()
        cloud.wait(3)
        assert (cloud.seen(), operation.done, cloud.node("n").power) == ("DELETING", False, Power.ON)
        assert cloud.delete().name == operation.name  # the second of two deletes at once joins the first
        cloud.wait(1)
        assert operation.error == {"code": 13, "message": "an internal error has occurred"}
        assert (cloud.seen(), cloud.node("n").power, cloud.node("n").boot_pending) == ("READY", Power.ON, True)
    cloud.delete()
    cloud.wait(2)
    assert cloud.seen() is None


def test_a_failing_delete_of_a_node_that_is_being_created_does_not_stop_the_create() -> None:
    cloud = QueueCloud({"kind": "operation_fails", "operation": "nodes.delete", "seconds": 4})
    creation = cloud.create()
    cloud.wait(8)
    deletion = cloud.delete()
    assert not creation.done
    cloud.wait(4)
    assert deletion.error is not None
    cloud.wait(0)
    assert (cloud.seen(), creation.done, creation.error) == ("READY", True, None)


def test_code_and_message_of_a_failure_can_be_set() -> None:
    fault = {"kind": "operation_fails", "code": "PERMISSION_DENIED", "message": "no", "seconds": 0}
    cloud = ready(fault | {"operation": "nodes.delete"})
    operation = cloud.delete()
    cloud.wait(0)
    assert operation.error == {"code": 7, "message": "no"}


@pytest.mark.parametrize("hidden", [True, False])
def test_a_delete_dropped_while_creating_is_done_and_the_node_becomes_ready_later(hidden: bool) -> None:
    cloud = QueueCloud({"kind": "delete_dropped", "hidden": hidden, "seconds": 1})
    creation = cloud.create()
    cloud.wait(3)
    deletion = cloud.delete()
    cloud.wait(1)
    assert (deletion.done, deletion.error, creation.done) == (True, None, False)
    assert cloud.seen() == (None if hidden else "CREATING")
    cloud.wait(6)
    assert (cloud.seen(), creation.done) == ("READY", True)
    cloud.delete()  # a node that is READY is deleted as always
    cloud.wait(2)
    assert (cloud.seen(), cloud.billed()) == (None, 12)


def test_a_delete_refused_while_creating_changes_nothing() -> None:
    cloud = QueueCloud({"kind": "refuse_delete"})
    cloud.create()
    with pytest.raises(ApiError, match="delete is not supported while in state CREATING") as refusal:
        cloud.delete()
    assert (refusal.value.http, refusal.value.status) == (400, "FAILED_PRECONDITION")
    cloud.wait(10)
    assert cloud.seen() == "READY"
    cloud.delete()
    cloud.wait(2)
    assert cloud.seen() is None


@pytest.mark.parametrize("verb", ["create", "delete", "stop", "patch"])
def test_a_forgotten_change_is_done_without_error_or_result_and_nothing_happened(verb: str) -> None:
    cloud, operation = changed({"kind": "operation_forgets", "operation": f"nodes.{verb}"}, verb)
    before = (None, 0) if verb == "create" else ("READY", 1)
    assert (operation.done, operation.error, operation.response) == (True, None, None)
    assert {"error", "response"}.isdisjoint(replies.operation_json(operation, "v2"))
    cloud.wait(100)
    assert (cloud.seen(), len(cloud.state.meter.bills)) == before


# -- other changes ------------------------------------------------------------------------------------------------


def test_a_stop_whose_operation_fails_leaves_a_node_that_is_ready() -> None:
    cloud = ready({"kind": "operation_fails", "operation": "nodes.stop", "seconds": 2})
    operation, cloud.node("n").boot_pending = cloud.power("stop"), False
    assert cloud.seen() == "STOPPING"
    cloud.state.forget_power({cloud.node("n").uid})
    cloud.follow()
    cloud.wait(2)
    node = cloud.node("n")
    assert (cloud.seen(), operation.error is None, node.power, node.boot_pending) == ("READY", False, Power.ON, True)


def test_a_patch_whose_operation_fails_changes_nothing() -> None:
    cloud = ready({"kind": "operation_fails", "operation": "nodes.patch", "seconds": 2})
    operation = cloud.set_labels(a="1")
    cloud.wait(2)
    assert operation.error is not None
    assert "labels" not in cloud.node("n").spec


def test_a_stuck_patch_refuses_every_other_change_until_it_is_done() -> None:
    cloud = ready({"kind": "stuck", "operation": "nodes.patch", "seconds": 30, "when": {"first": 1}})
    operation = cloud.set_labels(a="1")
    assert cloud.node("n").spec["labels"] == {"a": "1"}
    for refused in (cloud.delete, cloud.set_labels, lambda: cloud.power("stop")):
        with pytest.raises(ApiError, match="unable to queue the operation") as refusal:
            refused()
        assert refusal.value.http == 409
    cloud.wait(30)
    assert (operation.done, operation.error) == (True, None)
    cloud.delete()
    cloud.wait(2)
    assert cloud.seen() is None


# -- reads --------------------------------------------------------------------------------------------------------


def test_an_unreachable_zone_is_left_out_and_named() -> None:
    cloud = ready({"kind": "unreachable", "when": {"first": 2}})
    assert cloud.listed() == ({}, [ZONE])
    assert cloud.listed("-") == ({}, [ZONE])
    assert cloud.listed() == ({"n": "READY"}, [])


def test_the_zones_that_are_unreachable_can_be_named() -> None:
    cloud = ready({"kind": "unreachable", "zones": ["us-east5-b"]})
    assert cloud.listed("-") == ({"n": "READY"}, ["us-east5-b"])


def test_an_unreachable_list_of_nothing_is_not_a_complete_one() -> None:
    assert QueueCloud({"kind": "unreachable"}).listed("-") == ({}, ["-"])


def test_a_stale_list_shows_what_was_there_and_how_it_looked() -> None:
    cloud = QueueCloud({"kind": "stale_list", "seconds": 5})
    cloud.create()
    assert cloud.listed()[0] == {}
    cloud.wait(6)
    assert cloud.listed()[0] == {"n": "CREATING"}
    cloud.wait(4)
    assert (cloud.listed()[0], cloud.seen()) == ({"n": "CREATING"}, "READY")
    cloud.wait(5)
    cloud.set_labels(a="1")
    cloud.delete()
    cloud.wait(2)
    [old], _ = cloud.state.listed("p", ZONE, cloud.effect("nodes.list", PLACE))
    assert (old.state, "labels" in old.spec, cloud.seen()) == ("READY", False, None)
    cloud.wait(3)
    [old], _ = cloud.state.listed("p", ZONE, cloud.effect("nodes.list", PLACE))
    assert (old.state, old.spec["labels"]) == ("DELETING", {"a": "1"})
    cloud.wait(2)
    assert cloud.listed()[0] == {}


def test_a_stale_list_does_not_show_what_was_hidden_then() -> None:
    cloud = QueueCloud({"kind": "hidden", "seconds": 8}, {"kind": "stale_list", "seconds": 5})
    cloud.create()
    cloud.wait(12)
    assert (cloud.listed()[0], cloud.seen()) == ({}, "READY")
    cloud.wait(1)
    assert cloud.listed()[0] == {"n": "CREATING"}


def test_a_forgotten_operation_is_absent_while_its_work_continues() -> None:
    cloud = QueueCloud({"kind": "operation_gone"})
    operation = cloud.create()
    effect = cloud.effect("operations.get", operation.name)
    with pytest.raises(ApiError, match="was not found"):
        cloud.state.operation(operation.name, effect)
    assert cloud.state.operation(operation.name) is operation
    cloud.wait(10)
    assert operation.done


def test_a_call_about_an_operation_counts_as_one_about_its_node() -> None:
    cloud = QueueCloud({"kind": "operation_gone", "match": {"node": "m", "state": "CREATING"}})
    others, its = cloud.create("n"), cloud.create("m")
    assert cloud.effect("operations.get", others.name) is None
    assert cloud.effect("operations.get", its.name) is not None
    cloud.wait(10)
    assert cloud.effect("operations.get", its.name) is None


# -- events of nodes ----------------------------------------------------------------------------------------------


def test_a_preempted_node_stays_listed_keeps_its_name_is_not_billed_and_can_only_be_deleted() -> None:
    cloud = ready()
    cloud.state.set_state(cloud.node("n").name, "PREEMPTED", cloud.now)
    cloud.follow()
    cloud.wait(100)
    assert (cloud.seen(), cloud.listed()[0], cloud.node("n").power, cloud.billed()) == (
        *("PREEMPTED", {"n": "PREEMPTED"}, Power.OFF, 10),
    )
    for verb in ("start", "stop"):
        with pytest.raises(ApiError, match=f"{verb} is not supported while in state PREEMPTED"):
            cloud.power(verb)
    with pytest.raises(ApiError, match="update is not supported while in state PREEMPTED"):
        cloud.set_labels(a="1")
    with pytest.raises(ApiError, match="already exists"):
        cloud.create()
    cloud.delete()
    cloud.wait(2)
    assert (cloud.seen(), cloud.billed()) == (None, 10)


def test_a_vanished_node_is_absent_at_once_and_not_billed_once_its_hosts_are_removed() -> None:
    cloud = ready()
    node = cloud.node("n")
    cloud.state.vanish(node.name, cloud.now)
    assert (cloud.seen(), cloud.listed()[0], node.target_power) == (None, {}, Power.GONE)
    cloud.follow()
    assert (cloud.state.nodes, cloud.billed()) == ({}, 10)


@pytest.mark.parametrize("state", [state for state in SETTLED_POWER if state != "READY"])
def test_a_node_keeps_a_set_state_and_boots_again_when_it_is_set_back(state: str) -> None:
    cloud = ready()
    cloud.node("n").boot_pending = False
    cloud.state.set_state(cloud.node("n").name, state, cloud.now)
    cloud.wait(1000)
    assert (cloud.seen(), cloud.node("n").power, cloud.node("n").boot_pending) == (state, SETTLED_POWER[state], False)
    cloud.state.forget_power({cloud.node("n").uid})
    assert cloud.node("n").boot_pending is (SETTLED_POWER[state] is Power.ON), (
        "what was on boots when the emulator starts"
    )
    cloud.state.set_state(cloud.node("n").name, "READY", cloud.now)
    cloud.follow()
    assert (cloud.seen(), cloud.node("n").power, cloud.node("n").boot_pending) == ("READY", Power.ON, True)


def test_some_states_cannot_be_set() -> None:
    cloud = ready()
    with pytest.raises(BadData, match=r"state must be one of READY, STOPPED, PREEMPTED, .*, not 'DELETING'"):
        cloud.state.set_state(cloud.node("n").name, "DELETING", cloud.now)
    with pytest.raises(ApiError, match="was not found"):
        cloud.state.set_state(f"{PLACE}/nodes/other", "READY", cloud.now)


# -- any order ----------------------------------------------------------------------------------------------------

CLOUD_KINDS = sorted(name for name, kind in KINDS.items() if kind.role is Role.EFFECT)


class AnyFaults(AnyOrder):
    """The same under any faults and events: the meter is right, and in the end everything can be deleted."""

    @rule(
        kind=st.sampled_from(CLOUD_KINDS),
        seconds=st.sampled_from([0, 3, 30]),
        when=st.sampled_from([{}, {"first": 1}, {"probability": 0.5}]),
    )
    def break_something(self, kind: str, seconds: float, when: dict[str, Any]) -> None:
        fault = {"kind": kind, "when": when} | ({"seconds": seconds} if "seconds" in KINDS[kind].parameters else {})
        self.cloud.state.faults.add(fault, self.cloud.now)

    @precondition(lambda self: self.cloud.state.faults)
    @rule()
    def mend_everything(self) -> None:
        self.cloud.state.faults.clear()

    @precondition(lambda self: self.cloud.state.nodes)
    @rule(data=st.data(), state=st.sampled_from([*SETTLED_POWER, "vanish"]))
    def happen(self, data: st.DataObject, state: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.cloud.state.nodes)))
        if state == "vanish":
            self.cloud.state.vanish(name, self.cloud.now)
        else:
            self.cloud.state.set_state(name, state, self.cloud.now)
        self.cloud.follow()

    @invariant()
    def the_meter_runs_for_exactly_the_nodes_that_exist(self) -> None:
        running = [bill.uid for bill in self.cloud.state.meter.bills if bill.until is None]
        nodes = self.cloud.state.nodes.values()
        taken = {node.uid for node in nodes if node.state in LOST}
        going = {node.uid for node in nodes if node.state == "DELETING"}  # possibly after a preemption
        assert len(running) == len(set(running))
        assert {node.uid for node in nodes} - taken - going <= set(running) <= {node.uid for node in nodes}

    @invariant()
    def each_open_operation_is_that_of_a_node(self) -> None:
        """Or has a time of its own; and what is under way will end."""
        state = self.cloud.state
        # a stalled delete stays until it is sent again: docs/emulator.md
        under_way = [node for node in state.nodes.values() if node.operation is not None]
        assert all(node.due is not None or node.state == "DELETING" for node in under_way)
        waiting = {op.name for op in state.operations.values() if not op.done and op.due is None}
        resumed = [node.resume.operation for node in state.nodes.values() if node.resume]
        assert waiting == {name for name in [*(n.operation for n in state.nodes.values()), *resumed] if name}

    def teardown(self) -> None:
        """Without faults, everything can be deleted, late creates too, and every operation ends."""
        cloud = self.cloud
        cloud.state.faults.clear()
        self.settle()
        self.delete_everything()
        assert (cloud.state.delayed_creates, cloud.state.next_due()) == ([], None)
        assert all(operation.done for operation in cloud.state.operations.values())


AnyFaults.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyFaults = AnyFaults.TestCase
