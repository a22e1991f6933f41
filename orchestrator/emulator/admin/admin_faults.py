"""The daemon's own paths for faults, the request log, and for what happens to nodes and workers."""

from typing import Any

from orchestrator.emulator import api_errors
from orchestrator.emulator.api.api_call import Api, ApiCall, Json, route
from orchestrator.emulator.api.request_log import RequestLog
from orchestrator.emulator.api_errors import ApiError, bad_field
from orchestrator.emulator.model.records import Node
from orchestrator.emulator.plain_data import check_list, check_value
from orchestrator.emulator.vms.driver import Driver
from orchestrator.emulator.vms.worker_faults import CONDITIONS
from orchestrator.emulator.wire.json_body import NUMBER


class FaultAdmin(Api):
    """The routes of faults, the request log and events of nodes."""

    def __init__(self, driver: Driver, log: RequestLog) -> None:
        super().__init__(driver)
        self.log = log

    # --- faults -------------------------------------------------------------------------------------------------------

    @route("GET", "/_emulator/faults")
    async def list_faults(self, call: ApiCall) -> Json:
        return {"faults": self.state.faults.dump()}

    @route("POST", "/_emulator/faults")
    async def add_faults(self, call: ApiCall) -> Json:
        """Add one fault, or `{"faults": [...]}`: all of them or none."""
        data = await call.body()
        rows = check_list("faults", data["faults"]) if list(data) == ["faults"] else [data]
        added = self.state.faults.add_all(rows, self.driver.clock())
        self.driver.changed()
        return {"faults": [fault.as_json() for fault in added]}

    @route("DELETE", "/_emulator/faults")
    @route("DELETE", "/_emulator/faults/{id}")
    async def clear_faults(self, call: ApiCall) -> Json:
        name = call.parts.get("id")
        count = self.state.faults.clear(None if name is None else [name])
        if name is not None and not count:
            raise ApiError("NOT_FOUND", f'There is no fault "{name}".')
        self.driver.changed()
        return {"cleared": count}

    @route("GET", "/_emulator/requests")
    async def requests(self, call: ApiCall) -> Json:
        """List the calls after `?after=NUMBER` that concern `?node=ID` (or its full name); by default all."""
        after = call.query.get("after", "0")
        if not NUMBER.fullmatch(after):
            raise bad_field(f"after must be the number of a request, not {after!r}.")
        return {"requests": self.log.rows(int(after), call.query.get("node"))}

    # --- nodes --------------------------------------------------------------------------------------------------------

    @route("POST", "/_emulator/nodes/{node:[^:]+}:{action:preempt|maintain|vanish|put|worker}")
    async def act(self, call: ApiCall) -> Json:
        """Act on a node, and reply with its state after that.

        preempt {"notice_s"}; maintain {"notice_s", "lasts_s", "kind"}; vanish; put {"state", "lasts_s"};
        worker {"worker", "condition"}.
        """
        node, body, now = self._find(call.parts["node"]), await call.body(), self.driver.clock()
        match call.parts["action"]:
            case "preempt":
                self.state.preempt(node.name, now, _seconds(body, "notice_s") or 0.0)
            case "maintain":
                notice_s, lasts_s = _seconds(body, "notice_s"), _seconds(body, "lasts_s")
                notice_s = self.state.settings.notice_s if notice_s is None else notice_s
                kind = "SCHEDULED" if body.get("kind") == "SCHEDULED" else "UNSCHEDULED"
                self.state.maintain(node.name, now, notice_s=notice_s, lasts_s=lasts_s, kind=kind)
            case "vanish":
                self.state.vanish(node.name, now)
            case "put":
                self.state.set_state(node.name, str(body.get("state", "")), now, _seconds(body, "lasts_s"))
            case "worker":
                await self._worker(node, body.get("worker"), body.get("condition"))
        self.driver.changed()
        return {"name": node.name, "uid": node.uid, "state": node.state}

    async def _worker(self, node: Node, index: Any, condition: Any) -> None:
        check_value("condition", condition, str, choices=tuple(CONDITIONS))
        hosts = self.driver.hosts.get(node.uid)
        if node.state != "READY" or hosts is None:
            raise api_errors.wrong_state("worker", node.state)
        check_value("worker", index, int, most=node.workers - 1)
        await self.driver.worker_faults.set(hosts, index, condition)

    def _find(self, name: str) -> Node:
        """Find a node by its full name, or by an id that only one node has. Raises ApiError."""
        found = [node for node in self.state.nodes.values() if name in (node.name, node.node_id)]
        if not found:
            nodes = ", ".join(node.node_id for node in self.state.nodes.values()) or "no nodes"
            raise ApiError("NOT_FOUND", f'There is no node "{name}"; there are {nodes}.')
        if len(found) > 1:
            raise bad_field(f'Several nodes are called "{name}": {", ".join(node.name for node in found)}.')
        return found[0]


def _seconds(body: Json, name: str) -> float | None:
    value = body.get(name)
    return None if value is None else float(check_value(name, value, float))
