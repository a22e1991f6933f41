"""The emulated cloud as a pure state machine: every state, under virtual time."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orchestrator.emulator.api_errors import ApiError
from orchestrator.emulator.model.cloud_state import CloudState
from orchestrator.emulator.model.records import HostRecord, Node, OperationRecord, Power, Settings
from tests.unit.emulator.model.queue_fixture import hosts_follow

SPEC = {"acceleratorType": "v5litepod-4", "runtimeVersion": "v2-alpha-tpuv5-lite"}
NAME = "projects/p/locations/z/nodes/n"
DELAYS = Settings(provision_s=10, stop_s=3, start_s=5, delete_s=2)


class Cloud:
    """The state machine with a clock; hosts reach their target power at once while `hosts_follow`."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.state = CloudState("seed", settings or replace(DELAYS, no_capacity=[]))
        self.now = 1000.0
        self.hosts_follow = True

    def create(self, node_id: str = "n", **spec: Any) -> OperationRecord:
        node = Node("", "p", "z", node_id, SPEC | spec, 1, usd_per_hour=3.6)
        operation = self.state.create(node, "v2", self.now)
        self.follow()
        return operation

    def verb(self, verb: str, name: str = NAME) -> OperationRecord:
        if verb == "delete":
            operation = self.state.delete(name, "v2", self.now)
        else:
            operation = self.state.change_power(name, verb, "v2", self.now)
        self.follow()
        return operation

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.state.advance(self.now)
        self.follow()

    def follow(self) -> None:
        if self.hosts_follow:
            hosts_follow(self.state, self.now)

    @property
    def node(self) -> Node | None:
        return self.state.nodes.get(NAME)

    @property
    def shown(self) -> str | None:
        return self.node and self.node.state


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


@pytest.fixture
def ready(cloud: Cloud) -> Cloud:
    cloud.create()
    cloud.wait(10)
    return cloud


def test_a_node_is_creating_until_its_delay_has_passed(cloud: Cloud) -> None:
    operation = cloud.create()
    cloud.wait(9.99)
    assert (cloud.shown, operation.done) == ("CREATING", False)
    cloud.wait(0.01)
    assert (cloud.shown, operation.done, operation.error) == ("READY", True, None)
    assert operation.response is not None
    assert operation.response.state == "READY"


def test_a_node_is_not_ready_before_its_hosts_are_on(cloud: Cloud) -> None:
    cloud.hosts_follow = False
    cloud.create()
    cloud.wait(100)
    assert cloud.shown == "CREATING"
    cloud.hosts_follow = True
    cloud.wait(0)
    assert cloud.shown == "READY"


def test_a_node_is_not_absent_before_its_hosts_are_removed(ready: Cloud) -> None:
    ready.hosts_follow = False
    operation = ready.verb("delete")
    ready.wait(100)
    assert (ready.shown, operation.done) == ("DELETING", False)
    assert ready.state.meter.read(ready.now)["totals"]["running"] == 1
    ready.hosts_follow = True
    ready.wait(0)
    assert (ready.shown, operation.done, operation.response) == (None, True, None)


def test_stop_and_start_take_their_delays_and_power_the_hosts(ready: Cloud) -> None:
    stopping = ready.verb("stop")
    assert ready.shown == "STOPPING"
    ready.wait(3)
    assert (ready.shown, stopping.done) == ("STOPPED", True)
    assert ready.node and ready.node.power is Power.OFF
    starting = ready.verb("start")
    ready.wait(4.9)
    assert ready.shown == "STARTING"
    ready.wait(0.1)
    assert (ready.shown, starting.done, ready.node.power) == ("READY", True, Power.ON)


@pytest.mark.parametrize(("steps", "verb", "state"), [
    ([], "stop", "CREATING"), ([10], "start", "READY"), ([10, "stop"], "stop", "STOPPING"),
    ([10, "stop", 3, "start"], "start", "STARTING"), ([10, "delete"], "stop", "DELETING"),
])  # fmt: skip
def test_stop_and_start_are_refused_in_other_states(cloud: Cloud, steps: list[Any], verb: str, state: str) -> None:
    cloud.create()
    for step in steps:
        cloud.verb(step) if isinstance(step, str) else cloud.wait(step)
    with pytest.raises(ApiError, match=f"{verb} is not supported while in state {state}") as refusal:
        cloud.verb(verb)
    assert (refusal.value.status, refusal.value.http) == ("FAILED_PRECONDITION", 400)


def test_a_slice_with_several_hosts_cannot_be_stopped(ready: Cloud) -> None:
    assert ready.node is not None
    ready.node.workers = 2
    with pytest.raises(ApiError, match="only available with single TPU nodes"):
        ready.verb("stop")
    assert ready.shown == "READY"


@pytest.mark.parametrize("steps", [[], [10], [10, "stop"], [10, "stop", 3], [10, "stop", 3, "start"]])
def test_delete_is_possible_in_every_state_and_ends_what_was_under_way(cloud: Cloud, steps: list[Any]) -> None:
    operations = [cloud.create()]
    for step in steps:
        if isinstance(step, str):
            operations.append(cloud.verb(step))
        else:
            cloud.wait(step)
    deletion = cloud.verb("delete")
    assert all(operation.done for operation in operations)
    cloud.wait(2)
    assert (cloud.shown, deletion.done, deletion.error) == (None, True, None)


def test_a_second_delete_is_answered_with_the_first(ready: Cloud) -> None:
    assert ready.verb("delete").name == ready.verb("delete").name
    ready.wait(2)
    with pytest.raises(ApiError, match="was not found"):
        ready.verb("delete")


def test_a_name_is_in_use_until_its_node_is_absent(ready: Cloud) -> None:
    first = ready.node
    with pytest.raises(ApiError, match="already exists"):
        ready.create()
    ready.verb("delete")
    with pytest.raises(ApiError, match="already exists"):
        ready.create()
    ready.wait(2)
    ready.create()
    assert first and ready.node and ready.node.uid != first.uid


@pytest.mark.parametrize("pattern", ["z/v5litepod-4", "*/v5litepod-4", "z/*", "*/*"])
def test_without_capacity_the_create_fails_after_its_delay_and_the_node_vanishes(pattern: str) -> None:
    cloud = Cloud(Settings(provision_s=10, no_capacity=["y/v5litepod-4", pattern]))
    operation = cloud.create()
    cloud.wait(5)
    assert (cloud.shown, operation.done) == ("CREATING", False)
    cloud.wait(5)
    assert (cloud.shown, operation.done) == (None, True)
    assert operation.error is not None
    assert operation.error["code"] == 8
    assert operation.error["message"].startswith('There is no more capacity in the zone "z"; you can try in another')
    assert cloud.state.meter.read(cloud.now)["totals"]["running"] == 0


def test_without_capacity_a_start_fails_and_the_node_stays_stopped(ready: Cloud) -> None:
    ready.verb("stop")
    ready.wait(3)
    ready.state.settings.no_capacity = ["z/*"]
    operation = ready.verb("start")
    ready.wait(5)
    assert (ready.shown, operation.done) == ("STOPPED", True)
    assert operation.error is not None
    ready.state.settings.no_capacity = []
    ready.verb("start")
    ready.wait(5)
    assert ready.shown == "READY"


def test_capacity_elsewhere_or_for_another_type_does_not_matter() -> None:
    cloud = Cloud(Settings(provision_s=0, no_capacity=["y/*", "z/v5litepod-8"]))
    cloud.create()
    cloud.wait(0)
    assert cloud.shown == "READY"


def test_a_patch_is_done_at_once_and_refused_while_an_operation_is_under_way(cloud: Cloud) -> None:
    cloud.create()
    with pytest.raises(ApiError, match="unable to queue the operation") as refusal:
        cloud.state.patch(NAME, {"labels": {"a": "b"}}, "v2", cloud.now)
    assert refusal.value.http == 409
    cloud.wait(10)
    operation = cloud.state.patch(NAME, {"labels": {"a": "b"}}, "v2", cloud.now)
    assert operation.done
    assert cloud.node and cloud.node.spec["labels"] == {"a": "b"}
    cloud.state.patch(NAME, {"labels": None}, "v2", cloud.now)
    assert "labels" not in cloud.node.spec


def test_an_operation_keeps_the_node_as_it_was(ready: Cloud) -> None:
    operation = ready.state.patch(NAME, {"labels": {"a": "1"}}, "v2", ready.now)
    ready.state.patch(NAME, {"labels": {"a": "2"}}, "v2", ready.now)
    assert operation.response is not None
    assert operation.response.spec["labels"] == {"a": "1"}


def test_finished_operations_do_not_repeat_the_startup_script_in_the_state_file() -> None:
    cloud = Cloud()
    cloud.create(metadata={"startup-script": "#!" + "x" * 30_000})
    cloud.wait(10)
    for number in range(50):
        cloud.state.patch(NAME, {"labels": {"a": str(number)}}, "v2", cloud.now)
    assert cloud.node and cloud.node.spec["metadata"]
    assert len(json.dumps(cloud.state.dump())) < 2 * 30_000 + 50 * 2_000


def test_every_change_is_saved_as_it_is(cloud: Cloud) -> None:
    def saved() -> list[tuple[str, bool]]:
        data = json.loads(json.dumps(cloud.state.dump()))
        again = CloudState.load(data)
        assert json.loads(json.dumps(again.dump())) == data
        return [(operation.verb, operation.done) for operation in again.operations.values()]

    cloud.create()
    assert saved() == [("create", False)]
    cloud.wait(10)
    assert saved() == [("create", True)]
    cloud.verb("delete")
    assert saved() == [("create", True), ("delete", False)]
    cloud.wait(2)
    assert saved() == [("create", True), ("delete", True)]


def test_each_time_a_node_becomes_ready_it_has_to_boot(ready: Cloud) -> None:
    assert ready.node and ready.node.boot_pending
    ready.node.boot_pending = False
    ready.verb("stop")
    ready.wait(3)
    assert not ready.node.boot_pending
    ready.verb("start")
    ready.wait(5)
    assert ready.node.boot_pending


def test_the_meter_counts_from_create_to_absence(cloud: Cloud) -> None:
    cloud.create()
    cloud.wait(10)
    cloud.wait(90)
    cloud.verb("delete")
    cloud.wait(2)
    cloud.wait(1000)
    [row] = cloud.state.meter.read(cloud.now)["nodes"]
    assert (row["since"], row["until"], row["node_seconds"]) == (1000, 1102, 102)
    assert row["usd"] == pytest.approx(102 * 3.6 / 3600)


def test_next_due_is_the_time_of_the_next_change(cloud: Cloud) -> None:
    assert cloud.state.next_due() is None
    cloud.create()
    assert cloud.state.next_due() == 1010
    cloud.wait(10)
    assert cloud.state.next_due() is None


def test_a_clock_that_steps_back_undoes_nothing(ready: Cloud) -> None:
    ready.state.advance(0)
    assert (ready.shown, ready.state.now) == ("READY", 1010)


@pytest.mark.parametrize("scheduling", [{"spot": True}, {"preemptible": True}, {"provisioningModel": "SPOT"}])
def test_every_spelling_of_spot_is_spot(cloud: Cloud, scheduling: dict[str, Any]) -> None:
    cloud.create(schedulingConfig=scheduling)
    assert cloud.node and cloud.node.spot
    assert cloud.state.meter.bills[0].spot


def test_after_a_restart_ready_nodes_get_their_hosts_back_on_the_same_ports(ready: Cloud) -> None:
    assert ready.node
    ready.node.boot_pending = False
    for ended in ([], [ready.node.uid]):  # its processes may have ended meanwhile: then they boot
        ready.state.forget_power(ended)
        assert ready.node.boot_pending is bool(ended)
    assert (ready.node.state, ready.node.power, ready.node.target_power) == ("READY", "unknown", "on")
    assert ready.node.hosts == [HostRecord(22, 80)]


def test_after_a_restart_nothing_counts_as_off_before_the_driver_has_reported(ready: Cloud) -> None:
    ready.hosts_follow = False
    operation = ready.verb("stop")
    ready.state.forget_power()
    ready.wait(100)
    assert (ready.shown, operation.done) == ("STOPPING", False)


def test_the_same_seed_and_requests_give_the_same_names() -> None:
    first, second = Cloud(), Cloud()
    assert first.create().name == second.create().name


class AnyOrder(RuleBasedStateMachine):
    """Any calls in any order: invariants that always hold."""

    def __init__(self) -> None:
        super().__init__()
        self.cloud = Cloud()

    @rule(node_id=st.sampled_from(["n", "m"]), capacity=st.booleans())
    def create(self, node_id: str, capacity: bool) -> None:
        self.cloud.state.settings.no_capacity = [] if capacity else ["*/*"]
        self._try(lambda: self.cloud.create(node_id))

    @rule(node_id=st.sampled_from(["n", "m"]), verb=st.sampled_from(["stop", "start", "delete"]))
    def call(self, node_id: str, verb: str) -> None:
        self._try(lambda: self.cloud.verb(verb, f"projects/p/locations/z/nodes/{node_id}"))

    @rule(seconds=st.sampled_from([0, 1, 5, 20]))
    def wait(self, seconds: int) -> None:
        self.cloud.wait(seconds)

    @rule(follow=st.booleans())
    def hold_hosts(self, follow: bool) -> None:
        self.cloud.hosts_follow = follow

    @precondition(lambda self: self.cloud.state.nodes)
    @rule()
    def restart(self) -> None:
        self.cloud.state = CloudState.load(json.loads(json.dumps(self.cloud.state.dump())))
        self.cloud.state.forget_power()

    @invariant()
    def the_meter_runs_for_exactly_the_nodes_that_exist(self) -> None:
        running = [bill.uid for bill in self.cloud.state.meter.bills if bill.until is None]
        assert sorted(running) == sorted(node.uid for node in self.cloud.state.nodes.values())

    @invariant()
    def an_open_operation_belongs_to_a_node_and_each_timed_state_to_an_operation(self) -> None:
        open_operations = {name for name, operation in self.cloud.state.operations.items() if not operation.done}
        assert open_operations == {node.operation for node in self.cloud.state.nodes.values() if node.operation}
        for node in self.cloud.state.nodes.values():
            assert (node.due is None) == (node.operation is None) == (node.state in ("READY", "STOPPED"))

    def teardown(self) -> None:
        """Without calls, every state settles, and a delete of everything leaves nothing."""
        self.cloud.hosts_follow = True
        self.cloud.wait(100)
        self.cloud.wait(100)
        assert {node.state for node in self.cloud.state.nodes.values()} <= {"READY", "STOPPED"}
        for name in list(self.cloud.state.nodes):
            self.cloud.verb("delete", name)
        self.cloud.wait(100)
        assert not self.cloud.state.nodes

    @staticmethod
    def _try(action: Any) -> None:
        try:
            action()
        except ApiError as refusal:
            assert refusal.status in ("ALREADY_EXISTS", "NOT_FOUND", "FAILED_PRECONDITION")


AnyOrder.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyOrder = AnyOrder.TestCase
