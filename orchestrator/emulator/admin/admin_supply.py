"""The daemon's own paths for what the cloud has: whole rehearsals as data, and capacity alone."""

from __future__ import annotations

from dataclasses import asdict

from aiohttp import web

from orchestrator.emulator.admin import rehearsal
from orchestrator.emulator.supply.supply import chips_used
from orchestrator.emulator.vms.driver import Driver
from orchestrator.emulator.wire.json_body import json_object


class SupplyAdmin:
    """The routes of rehearsals and capacity."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.state = driver, driver.state

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
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
        """Replace the present rehearsal as a whole."""
        return self._begin(await json_object(request))

    async def end_rehearsal(self, request: web.Request) -> web.Response:
        """Make everything unlimited again, without faults. Settings stay."""
        return self._begin({})

    async def get_capacity(self, request: web.Request) -> web.Response:
        """List the rules, with whether each holds now and how many chips it counts as used."""
        self.driver.advance()
        now = self.driver.clock()
        on = self.state.demands_on()
        rows = [
            asdict(rule) | {"holds": rule.open_at(now), "age_s": now - rule.added_at, "used": chips_used(rule, on)}
            for rule in self.state.supply.capacity
        ]
        return web.json_response({"capacity": rows, "no_capacity": self.state.settings.no_capacity})

    async def add_capacity(self, request: web.Request) -> web.Response:
        """Add one rule, or `{"capacity": [...]}`: all of them or none."""
        body = await json_object(request)
        rows = body["capacity"] if list(body) == ["capacity"] else [body]
        rehearsal.add_capacity(self.state, rows, self.driver.clock())
        self.driver.changed()
        return await self.get_capacity(request)

    async def clear_capacity(self, request: web.Request) -> web.Response:
        self.state.supply.capacity = []
        self.driver.changed()
        return await self.get_capacity(request)

    def _begin(self, data: dict[str, object]) -> web.Response:
        rehearsal.rehearse(self.state, data, self.driver.clock())
        self.driver.changed()
        return web.json_response(rehearsal.dump(self.state))
