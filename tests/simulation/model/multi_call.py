"""A question that takes several calls. Each is an event of its own; the production code of `places.tpu.api.calls` joins them.

A queued slice is asked about by its request and then by its node. Between the two answers anything may happen, including
the death of the caller. The method runs again after each answer, with the answers so far. `CloudClient` uses this for
queued slices; plain nodes are quicker without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from orchestrator.emulator.api_errors import ApiError
from orchestrator.emulator.faults.fault import NoReply
from orchestrator.emulator.wire import replies
from orchestrator.emulator.wire.replies import operation_json, queued_json
from orchestrator.engine.effects.cloud import Delete, Get, ListSlices
from orchestrator.errors import CloudError, CloudUnavailable
from orchestrator.places.tpu.api.calls import ApiCalls, ApiReply

if TYPE_CHECKING:
    from tests.simulation.model.cloud import FakeCloud
    from tests.simulation.model.faults import CallOutcome
    from tests.simulation.model.process import Process, Token

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
    _send: Callable[[CallNeeded], None]

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

    def _send(self, question: CallNeeded) -> None:
        process, world = self.process, self.cloud.world
        world.count_call(process)
        outcome = world.faults.outcome_of_call(VERBS[question.call], "client", process.machine.edge, process)
        if outcome.reaches:
            world.timeline.after(outcome.there_s, self._arrive, question, outcome)
            world.passes_crash_point(process)
        else:
            assert outcome.error is not None
            world.faults.note_failed_call(process, outcome)
            world.timeline.after(outcome.there_s + outcome.back_s, self._heard, outcome.error)

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
