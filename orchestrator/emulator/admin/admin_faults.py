"""The daemon's own paths for rehearsing disasters: faults, the request log, and what may happen to nodes and workers.

As in `admin`, no cloud has these. Bad data is answered with one line that says what is wrong with it.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from orchestrator.emulator import api_errors
from orchestrator.emulator.api.request_log import RequestLog
from orchestrator.emulator.api_errors import ApiError, bad_field
from orchestrator.emulator.faults.fault import MAX_SECONDS, BadFault
from orchestrator.emulator.model.records import Node
from orchestrator.emulator.vms.driver import Driver
from orchestrator.emulator.vms.worker_faults import CONDITIONS
from orchestrator.emulator.wire.json_body import NUMBER, json_object


class FaultAdmin:
    def __init__(self, driver: Driver, log: RequestLog) -> None:
        self.driver, self.state, self.log = driver, driver.state, log

    def routes(self) -> list[web.RouteDef]:
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
        """One fault, or `{"faults": [...]}`: then all of them or none."""
        data = await json_object(request)
        wanted = data["faults"] if list(data) == ["faults"] else [data]
        if not isinstance(wanted, list):
            raise bad_field("faults is a list of faults.")
        try:
            added = self.state.faults.add_all(wanted, self.driver.clock())
        except BadFault as error:
            raise ApiError("INVALID_ARGUMENT", str(error)) from None
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
        """`?after=NUMBER` and `?node=ID` (or its full name) leave out the rest."""
        after = request.query.get("after", "0")
        if not NUMBER.fullmatch(after):
            raise bad_field(f"after is the number of a request, not {after!r}.")
        return web.json_response({"requests": self.log.rows(int(after), request.query.get("node"))})

    # --- nodes --------------------------------------------------------------------------------------------------------

    async def act(self, request: web.Request) -> web.Response:
        """preempt {"notice_s"}; maintain {"notice_s", "lasts_s", "kind"}; vanish; put {"state", "lasts_s"};
        worker {"worker", "condition"}. The answer is the node as it is now."""
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
                self.state.put(node.name, str(body.get("state", "")), now, _seconds(body, "lasts_s"))
            case "worker":
                await self._worker(node, body)
        self.driver.changed()
        return web.json_response({"name": node.name, "uid": node.uid, "state": node.state})

    async def _worker(self, node: Node, body: dict[str, Any]) -> None:
        index, condition = body.get("worker"), body.get("condition")
        if not isinstance(condition, str) or condition not in CONDITIONS:
            raise ApiError("INVALID_ARGUMENT", f"condition is one of {', '.join(CONDITIONS)}, not {condition!r}.")
        hosts = self.driver.hosts.get(node.uid)
        if node.state != "READY" or hosts is None:
            raise api_errors.wrong_state("worker", node.state)
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < node.workers:
            raise ApiError("INVALID_ARGUMENT", f"worker is a number from 0 to {node.workers - 1}, not {index!r}.")
        await self.driver.trouble.set(hosts, index, condition)

    def _find(self, wanted: str) -> Node:
        """By full name, or by an id that only one node has."""
        found = [node for node in self.state.nodes.values() if wanted in (node.name, node.node_id)]
        if not found:
            raise ApiError("NOT_FOUND", f'There is no node "{wanted}".')
        if len(found) > 1:
            raise bad_field(f'Several nodes are called "{wanted}": {", ".join(node.name for node in found)}.')
        return found[0]


def _seconds(body: dict[str, Any], name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SECONDS:
        raise ApiError("INVALID_ARGUMENT", f"{name} is a number of seconds, not {value!r}.")
    return float(value)
