"""The cloud as one process reaches it: a call leaves, has its effect, its reply arrives; a question may take several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cloud_tpu_emulator.faults.api_errors import ApiError
from cloud_tpu_emulator.faults.fault import NoReply
from cloud_tpu_emulator.wire import replies
from cloud_tpu_emulator.wire.replies import operation_json, queued_json
from orchestrator.errors import CloudError, CloudUnavailable, ExternalAddressRefused, OsLoginRequired, Vanished
from orchestrator.places.google.fetch import ApiReply
from orchestrator.places.tpu.api.calls import ApiCalls
from orchestrator.promise.effects.cloud import Delete, Get, ListSlices, RevokeLogin
from orchestrator.promise.lease.cloud_api import Listing, Operation, SliceRequest, SliceView, WorkerAddress, always
from orchestrator.promise.lease.lease import SliceName
from tests.simulation.model.cloud import FakeCloud, full_name, operation_of, view_of
from tests.simulation.model.faults import CallOutcome

if TYPE_CHECKING:
    from tests.simulation.model.process import Process, Token


# effect → its name in the faults
CALLS = {
    "Create": "nodes.create",
    "Get": "nodes.get",
    "ListSlices": "nodes.list",
    "Delete": "nodes.delete",
    "StartSlice": "nodes.start",
    "StopSlice": "nodes.stop",
    "GetOperation": "operations.get",
    "ListOperations": "operations.list",
    "Workers": "nodes.get",
    "SetLabels": "nodes.patch",
    "GetGuestAttributes": "nodes.getGuestAttributes",
    "ListZones": "locations.list",
    "GrantLogin": "osLogin.importSshPublicKey",
    "ExtendLogin": "osLogin.updateSshPublicKey",
    "RevokeLogin": "osLogin.deleteSshPublicKey",
}


class CloudClient:
    """`promise.lease.cloud_api.Cloud` for one process. Requests and replies travel, and may get lost."""

    __slots__ = ("_outcome", "capabilities", "cloud", "machine", "process")

    def __init__(self, cloud: FakeCloud, process: Process) -> None:
        self.cloud, self.process, self.machine = cloud, process, process.machine
        self.capabilities = process.world.capabilities
        self._outcome = CallOutcome()

    # -- one call ------------------------------------------------------------------------------------------------------

    def send(self, verb: str, effect: Any, token: Token) -> None:
        world, process = self.cloud.world, self.process
        kind = type(effect)
        if ((kind is Get or kind is Delete) and effect.name.queued) or (
            kind is ListSlices and effect.queued and world.queues
        ):
            MultiCall(self.cloud, process, effect, token).advance()
            return
        world.count_call(process)
        outcome = world.faults.outcome_of_call(verb, "client", self.machine.edge, process)
        if outcome.reaches:
            world.timeline.after(outcome.there_s, self._arrive, effect, token, outcome)
            world.passes_crash_point(process)
        else:
            world.faults.note_failed_call(process, outcome)
            self._note_removal(effect, outcome.error)
            process.answer_later(outcome.there_s + outcome.back_s, token, None, outcome.error)

    def _arrive(self, effect: Any, token: Token, outcome: CallOutcome) -> None:
        """The request arrived: it has its effect, whether or not the process still waits for the reply."""
        self._outcome = outcome
        process, world = self.process, self.cloud.world
        answer: Any = None
        error: BaseException | None = outcome.error
        try:
            result = effect.perform(process)
            if error is None:
                answer = result
        except NoReply:
            error = CloudUnavailable("connection reset")
        except ApiError as refusal:
            error = error or self.cloud.error_of(refusal)
        except CloudError as failure:
            error = error or failure
        if outcome.error is not None:
            world.faults.note_failed_call(process, outcome)
        self._note_removal(effect, error)
        self._note_refusal(effect, answer, error)
        if process.alive and world.passes_crash_point(process):
            return
        process.answer_later(outcome.back_s, token, answer, error)

    def _note_refusal(self, effect: Any, answer: Any, error: BaseException | None) -> None:
        """Tell the oracle what the process is told of policies."""
        told = answer.error if isinstance(answer, Operation) else error
        if isinstance(told, (ExternalAddressRefused, OsLoginRequired)):
            node = answer.target.rpartition("/")[2] if isinstance(answer, Operation) else effect.request.name.node
            self.cloud.world.oracle.logins.way_refused(node)

    def _note_removal(self, effect: Any, error: BaseException | None) -> None:
        if type(effect) is RevokeLogin and isinstance(error, CloudError):
            self.cloud.world.oracle.logins.removal_failed(effect.lease, error)

    # -- the Cloud protocol, at the API -------------------------------------------------------------------------------

    def create(self, request: SliceRequest, in_time: Callable[[], bool] = always) -> Operation:
        if (refusal := self.cloud.world.plan.refusing.get(request.name.zone)) is not None:
            raise refusal
        return (self.cloud.create if request.queue is None else self.cloud.ask)(request, self._outcome)

    def get(self, name: SliceName) -> SliceView | None:
        try:
            return view_of(self.cloud.node(full_name(name)))
        except ApiError:
            return None

    def list(self, project: str, zone: str, queued: bool = False) -> Listing[SliceView]:
        nodes, unreachable = self.cloud.look().listed(project, zone, self._outcome.effect)
        return Listing(tuple(view_of(node) for node in nodes), tuple(unreachable), float(int(self.cloud.now())))

    def delete(self, name: SliceName) -> Operation | None:
        try:
            return operation_of(self.cloud.delete(full_name(name), self._outcome, self.process.role, self.process))
        except ApiError as refusal:
            if refusal.status == "NOT_FOUND":
                return None
            raise

    def start(self, name: SliceName) -> Operation:
        operation = self.cloud.state.change_power(
            full_name(name), "start", "v2", self.cloud.now(), self._outcome.effect
        )
        self.cloud.settle()
        return operation_of(operation)

    def stop(self, name: SliceName) -> Operation:
        operation = self.cloud.state.change_power(full_name(name), "stop", "v2", self.cloud.now(), self._outcome.effect)
        self.cloud.settle()
        return operation_of(operation)

    def set_labels(self, name: SliceName, labels: Mapping[str, str]) -> Operation:
        try:
            changes = {"labels": dict(labels)}
            operation = self.cloud.state.patch(full_name(name), changes, "v2", self.cloud.now(), self._outcome.effect)
        except ApiError as refusal:
            if refusal.status == "NOT_FOUND":
                raise Vanished(refusal.message) from None
            raise
        self.cloud.settle()
        self.cloud.world.oracle.check_labels(self.cloud.state.nodes[full_name(name)])
        return operation_of(operation)

    def operation(self, name: str) -> Operation | None:
        try:
            return operation_of(self.cloud.settled().operation(name, self._outcome.effect))
        except ApiError:
            return None

    def operations(self, project: str, zone: str) -> Listing[Operation]:
        effect = self._outcome.effect
        if effect is not None and effect.kind == "unreachable":
            return Listing((), (zone,))
        here = f"projects/{project}/locations/{zone}/"
        known = self.cloud.settled().operations.values()
        found = (operation_of(record) for record in known if record.name.startswith(here))
        verb = self.cloud.world.plan.create_verb
        return Listing(tuple(replace(one, verb=verb) if verb and one.verb == "create" else one for one in found))

    def workers(self, name: SliceName) -> tuple[WorkerAddress, ...]:
        try:
            node = self.cloud.node(full_name(name))
        except ApiError as refusal:
            raise Vanished(refusal.message) from None
        if not node.hosts:
            raise CloudUnavailable(f"{name.node} has no addresses yet")
        return tuple(WorkerAddress(index, "127.0.0.1", 1) for index in range(node.workers))

    def guest_attributes(self, name: SliceName) -> tuple[Mapping[str, str], ...]:
        return tuple(host.attributes for host in self.cloud.node(full_name(name)).hosts)

    def zones(self, project: str) -> Listing[str]:
        return Listing(self.cloud.world.zones)

    def preview(self, request: SliceRequest) -> dict[str, Any]:
        raise AssertionError("the simulation previews no request")


VERBS = {
    "get_queued_resource": "queuedResources.get",
    "list_queued_resources": "queuedResources.list",
    "delete_queued_resource": "queuedResources.delete",
    "get_node": "nodes.get",
    "list_nodes": "nodes.list",
    "delete_node": "nodes.delete",
}
METHODS = {Get: "get", Delete: "delete", ListSlices: "list"}


class CallNeeded(Exception):
    """Raised with the next call that has to be made."""

    def __init__(self, call: str, request: Mapping[str, Any]) -> None:
        super().__init__(call)
        self.call, self.request = call, request


@dataclass(frozen=True, slots=True)
class DatedAnswer(ApiReply):
    """An answer with the time of the Date header as a number."""

    at: float = 0.0

    @property
    def server_now(self) -> float | None:
        return self.at


class Replayed:
    """A question that is asked from its beginning after each answer to one of its calls, with the answers so far."""

    _question: Callable[[], Any]
    _outcome_of: Callable[[CallNeeded], CallOutcome]
    _arrive: Callable[[CallNeeded, CallOutcome], None]

    def __init__(self, process: Process, token: Token) -> None:
        self.process, self.token = process, token
        self._answers: list[Any] = []
        self._used = 0

    def advance(self) -> None:
        process = self.process
        if not process.alive:
            return
        if process.frozen:
            process.when_thawed.append(self.advance)
            return
        self._used = 0
        try:
            answer = self._question()
        except CallNeeded as question:
            self._send(question)
        except CloudError as error:
            process.answered(self.token, None, error)
        else:
            process.answered(self.token, answer, None)

    def _ask(self, call: str, request: Mapping[str, Any]) -> Any:
        if self._used == len(self._answers):
            raise CallNeeded(call, request)
        answer = self._answers[self._used]
        self._used += 1
        if isinstance(answer, CloudError):
            raise answer
        return answer

    def _send(self, question: CallNeeded) -> None:
        process, world = self.process, self.process.world
        outcome = self._outcome_of(question)
        if outcome.reaches:
            world.timeline.after(outcome.there_s, self._arrive, question, outcome)
            world.passes_crash_point(process)
        else:
            assert outcome.error is not None
            world.faults.note_failed_call(process, outcome)
            world.timeline.after(outcome.there_s + outcome.back_s, self._heard, outcome.error)

    def _heard(self, answer: Any) -> None:
        self._answers.append(answer)
        self.advance()


class MultiCall(Replayed, ApiCalls):
    emulated = True

    def __init__(self, cloud: FakeCloud, process: Process, effect: Get | Delete | ListSlices, token: Token) -> None:
        super().__init__(process, token)
        self.cloud = cloud
        method: Callable[..., Any] = getattr(self, METHODS[type(effect)])
        self._question = partial(method, *(getattr(effect, field) for field in type(effect).__dataclass_fields__))

    # -- one call ------------------------------------------------------------------------------------------------------

    def _outcome_of(self, question: CallNeeded) -> CallOutcome:  # type: ignore[override]
        process, world = self.process, self.cloud.world
        world.count_call(process)
        return world.faults.outcome_of_call(VERBS[question.call], "client", process.machine.edge, process)

    def _arrive(self, question: CallNeeded, outcome: CallOutcome) -> None:
        process, world = self.process, self.cloud.world
        answer: ApiReply | CloudError
        try:
            said = reply_json(self.cloud, question.call, question.request, outcome, process)
            answer = DatedAnswer(said, at=float(int(self.cloud.now())))
        except NoReply:
            answer = CloudUnavailable("connection reset")
        except ApiError as refusal:
            answer = self.cloud.error_of(refusal)
        if outcome.error is not None:
            world.faults.note_failed_call(process, outcome)
            answer = outcome.error
        if not world.passes_crash_point(process):
            world.timeline.after(outcome.back_s, self._heard, answer)


def reply_json(
    cloud: FakeCloud, call: str, request: Mapping[str, Any], outcome: CallOutcome, process: Process
) -> dict[str, Any]:
    """Return the reply to one call, as JSON."""
    name = request.get("name", "")
    match call:
        case "get_node":
            return replies.node_json(cloud.node(name), "v2")
        case "get_queued_resource":
            return queued_json(cloud.look().queue.row(name), "v2")
        case "delete_node":
            return operation_json(cloud.delete(name, outcome, process.role, process), "v2")
        case "delete_queued_resource":
            force = request.get("force", False)
            return operation_json(cloud.delete_request(name, outcome, process.role, process, force=force), "v2")
    _, project, _, zone = request["parent"].split("/")
    state = cloud.look()
    if call == "list_nodes":
        nodes, silent = state.listed(project, zone, outcome.effect)
        return {"nodes": [replies.node_json(node, "v2") for node in nodes], "unreachable": silent}
    silent = state.unreachable(zone, outcome.effect)
    rows = state.queue.listed(project, zone, silent)
    return {"queuedResources": [queued_json(row, "v2") for row in rows], "unreachable": silent}
