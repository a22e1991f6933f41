"""The daemon's own paths for faults, the request log, and for what happens to nodes and workers."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from orchestrator.emulator import api_errors
from orchestrator.emulator.api.request_log import RequestLog
from orchestrator.emulator.api_errors import ApiError, bad_field
from orchestrator.emulator.model.records import Node
from orchestrator.emulator.plain_data import check_list, check_value
from orchestrator.emulator.vms.driver import Driver
from orchestrator.emulator.vms.worker_faults import CONDITIONS
from orchestrator.emulator.wire.json_body import NUMBER, json_object


class FaultAdmin:
    """The routes of faults, the request log and events of nodes."""

    def __init__(self, driver: Driver, log: RequestLog) -> None:
        self.driver, self.state, self.log = driver, driver.state, log

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/_emulator/faults", self.list_faults),
            web.post("/_emulator/faults", self.add_faults),
            web.delete("/_emulator/faults", self.clear_faults),
            web.delete("/_emulator/faults/{id}", self.clear_faults),
            web.get("/_emulator/requests", self.requests),
            web.post("/_emulator/nodes/{node:[^:]+}:{action:preempt|maintain|vanish|put|worker}", self.act),
        ]

    # --- faults -------------------------------------------------------------------------------------------------------

    async def list_faults(self, request: web.Request) -> web.Response:
        return web.json_response({"faults": self.state.faults.dump()})

    async def add_faults(self, request: web.Request) -> web.Response:
        """Add one fault, or `{"faults": [...]}`: all of them or none."""
        data = await json_object(request)
        rows = check_list("faults", data["faults"]) if list(data) == ["faults"] else [data]
        added = self.state.faults.add_all(rows, self.driver.clock())
        self.driver.changed()
        return web.json_response({"faults": [fault.as_json() for fault in added]})

    async def clear_faults(self, request: web.Request) -> web.Response:
        name = request.match_info.get("id")
        count = self.state.faults.clear(None if name is None else [name])
        if name is not None and not count:
            raise ApiError("NOT_FOUND", f'There is no fault "{name}".')
        self.driver.changed()
        return web.json_response({"cleared": count})

    async def requests(self, request: web.Request) -> web.Response:
        """List the calls after `?after=NUMBER` that concern `?node=ID` (or its full name); by default all."""
        after = request.query.get("after", "0")
        if not NUMBER.fullmatch(after):
            raise bad_field(f"after must be the number of a request, not {after!r}.")
        return web.json_response({"requests": self.log.rows(int(after), request.query.get("node"))})

    # --- nodes --------------------------------------------------------------------------------------------------------

    async def act(self, request: web.Request) -> web.Response:
        """Act on a node, and reply with its state after that.

        preempt {"notice_s"}; maintain {"notice_s", "lasts_s", "kind"}; vanish; put {"state", "lasts_s"};
        worker {"worker", "condition"}.
        """
        self.driver.advance()
        node, body, now = self._find(request.match_info["node"]), await json_object(request), self.driver.clock()
        match request.match_info["action"]:
            case "preempt":
                self.state.preempt(node.name, now, _seconds(body, "notice_s") or 0.0)
            case "maintain":
                kind, notice_s, lasts_s = (body.get("kind"), _seconds(body, "notice_s"), _seconds(body, "lasts_s"))
                self.state.maintain(
                    node.name,
                    now,
                    notice_s=self.state.settings.notice_s if notice_s is None else notice_s,
                    lasts_s=lasts_s,
                    kind="SCHEDULED" if kind == "SCHEDULED" else "UNSCHEDULED",
                )
            case "vanish":
                self.state.vanish(node.name, now)
            case "put":
                self.state.set_state(node.name, str(body.get("state", "")), now, _seconds(body, "lasts_s"))
            case "worker":
                await self._worker(node, body)
        self.driver.changed()
        return web.json_response({"name": node.name, "uid": node.uid, "state": node.state})

    async def _worker(self, node: Node, body: dict[str, Any]) -> None:
        index: Any = body.get("worker")
        condition: Any = body.get("condition")
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
            raise ApiError("NOT_FOUND", f'There is no node "{name}".')
        if len(found) > 1:
            raise bad_field(f'Several nodes are called "{name}": {", ".join(node.name for node in found)}.')
        return found[0]


def _seconds(body: dict[str, Any], name: str) -> float | None:
    value = body.get(name)
    return None if value is None else float(check_value(name, value, float))
