"""Any calls to the emulated cloud in any order: what always holds."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orchestrator.emulator.api_errors import ApiError
from orchestrator.emulator.faults.active_faults import NoReply
from tests.unit.emulator.model.queue_fixture import QueueCloud

NODES = st.sampled_from(["n", "m"])


class AnyTime(RuleBasedStateMachine):
    """Time passes, and daemons end and start."""

    def __init__(self) -> None:
        super().__init__()
        self.cloud = QueueCloud()

    @rule(seconds=st.sampled_from([0, 0.5, 3, 20]))
    def wait(self, seconds: float) -> None:
        self.cloud.wait(seconds)

    @rule()
    def restart(self) -> None:
        self.cloud.restart()


class AnyOrder(AnyTime):
    @rule(node=NODES, verb=st.sampled_from(["create", "delete", "stop", "start", "patch", "list"]))
    def ask(self, node: str, verb: str) -> None:
        cloud = self.cloud
        asks: dict[str, Callable[[], Any]] = {
            "create": lambda: cloud.create(node),
            "delete": lambda: cloud.delete(node),
            "patch": lambda: cloud.set_labels(node, a="1"),
            "list": lambda: cloud.listed("-"),
        }
        try:
            asks.get(verb, lambda: cloud.power(verb, node))()
        except NoReply:
            assert verb == "create"
        except ApiError as refusal:
            assert refusal.status in ("ALREADY_EXISTS", "NOT_FOUND", "FAILED_PRECONDITION", "ABORTED")

    @rule(capacity=st.booleans())
    def supply(self, capacity: bool) -> None:
        self.cloud.state.settings.no_capacity = [] if capacity else ["*/*"]

    @rule(follow=st.booleans())
    def hold_hosts(self, follow: bool) -> None:
        self.cloud.hosts_follow = follow

    @invariant()
    def the_meter_runs_for_exactly_the_nodes_that_exist(self) -> None:
        running = [bill.uid for bill in self.cloud.state.meter.bills if bill.until is None]
        assert sorted(running) == sorted(node.uid for node in self.cloud.state.nodes.values())

    @invariant()
    def each_open_operation_is_that_of_a_node(self) -> None:
        open_operations = {name for name, operation in self.cloud.state.operations.items() if not operation.done}
        assert open_operations == {node.operation for node in self.cloud.state.nodes.values() if node.operation}
        for node in self.cloud.state.nodes.values():
            assert (node.due is None) == (node.operation is None) == (node.state in ("READY", "STOPPED"))

    def settle(self) -> None:
        self.cloud.hosts_follow = True
        self.cloud.follow()
        self.cloud.wait(200)

    def delete_everything(self) -> None:
        for node in [*self.cloud.state.nodes.values()]:
            self.cloud.delete(node.node_id)
        self.cloud.wait(2)
        assert not self.cloud.state.nodes

    def teardown(self) -> None:
        """Without calls, every state settles, and a delete of everything leaves nothing."""
        self.settle()
        assert {node.state for node in self.cloud.state.nodes.values()} <= {"READY", "STOPPED"}
        self.delete_everything()
