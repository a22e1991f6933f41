"""The daemon's own paths for what the cloud has: whole rehearsals as data, and capacity by itself.

As in `admin`, no cloud has these. Bad data is answered with one line that says what is wrong with it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from aiohttp import web

from orchestrator.emulator.admin import rehearsal
from orchestrator.emulator.api_errors import ApiError
from orchestrator.emulator.model.records import Power
from orchestrator.emulator.plain_data import BadData
from orchestrator.emulator.supply.demand import RESERVED
from orchestrator.emulator.vms.driver import Driver
from orchestrator.emulator.wire.json_body import json_object


class SupplyAdmin:
    def __init__(self, driver: Driver) -> None:
        self.driver, self.state = driver, driver.state

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/_emulator/rehearsal", self.get_rehearsal),
            web.put("/_emulator/rehearsal", self.put_rehearsal),
            web.delete("/_emulator/rehearsal", self.end_rehearsal),
            web.get("/_emulator/capacity", self.get_capacity),
            web.post("/_emulator/capacity", self.add_capacity),
            web.delete("/_emulator/capacity", self.clear_capacity),
        ]

    async def get_rehearsal(self, request: web.Request) -> web.Response:
        return web.json_response(rehearsal.dump(self.state))

    async def put_rehearsal(self, request: web.Request) -> web.Response:
        """All of it, in place of the last one."""
        return await self._begin(await json_object(request))

    async def end_rehearsal(self, request: web.Request) -> web.Response:
        """Enough of everything again, and no faults. Settings stay."""
        return await self._begin({})

    async def get_capacity(self, request: web.Request) -> web.Response:
        """Each rule, whether it holds now, and how many chips are on that it counts."""
        self.driver.advance()
        now = self.driver.clock()
        on = [node.want for node in self.state.nodes.values() if node.wanted_power is Power.ON]
        rows: list[dict[str, Any]] = []
        for rule in self.state.supply.capacity:
            used = sum(want.amount("chips") for want in on if want.tier != RESERVED and rule.meets(want))
            rows.append(asdict(rule) | {"holds": rule.open_at(now), "age_s": now - rule.added_at, "used": used})
        return web.json_response({"capacity": rows, "no_capacity": self.state.settings.no_capacity})

    async def add_capacity(self, request: web.Request) -> web.Response:
        """One rule, or `{"capacity": [...]}`: then all of them or none."""
        body = await json_object(request)
        rows = body["capacity"] if list(body) == ["capacity"] else [body]
        try:
            rehearsal.add_capacity(self.state, rows, self.driver.clock())
        except BadData as error:
            raise ApiError("INVALID_ARGUMENT", str(error)) from None
        self.driver.changed()
        return await self.get_capacity(request)

    async def clear_capacity(self, request: web.Request) -> web.Response:
        self.state.supply.capacity = []
        self.driver.changed()
        return await self.get_capacity(request)

    async def _begin(self, data: dict[str, Any]) -> web.Response:
        try:
            rehearsal.rehearse(self.state, data, self.driver.clock())
        except BadData as error:
            raise ApiError("INVALID_ARGUMENT", str(error)) from None
        self.driver.changed()
        return web.json_response(rehearsal.dump(self.state))
