"""The daemon's own paths for what the cloud has: whole rehearsals as data, and capacity alone."""

from dataclasses import asdict

from orchestrator.emulator.admin import rehearsal
from orchestrator.emulator.api.api_call import Api, ApiCall, Json, route
from orchestrator.emulator.supply.supply import chips_used


class SupplyAdmin(Api):
    """The routes of rehearsals and capacity."""

    @route("GET", "/_emulator/rehearsal")
    async def get_rehearsal(self, call: ApiCall) -> Json:
        return rehearsal.dump(self.state)

    @route("PUT", "/_emulator/rehearsal")
    async def put_rehearsal(self, call: ApiCall) -> Json:
        """Replace the present rehearsal as a whole."""
        return self._begin(await call.body())

    @route("DELETE", "/_emulator/rehearsal")
    async def end_rehearsal(self, call: ApiCall) -> Json:
        """Make everything unlimited again, without faults. Settings stay."""
        return self._begin({})

    @route("GET", "/_emulator/capacity")
    async def get_capacity(self, call: ApiCall) -> Json:
        """List the rules, with whether each holds now and how many chips it counts as used."""
        self.driver.advance()
        now = self.driver.clock()
        on = self.state.demands_on()
        rows = [
            asdict(rule) | {"holds": rule.open_at(now), "age_s": now - rule.added_at, "used": chips_used(rule, on)}
            for rule in self.state.supply.capacity
        ]
        return {"capacity": rows, "no_capacity": self.state.settings.no_capacity}

    @route("POST", "/_emulator/capacity")
    async def add_capacity(self, call: ApiCall) -> Json:
        """Add one rule, or `{"capacity": [...]}`: all of them or none."""
        body = await call.body()
        rows = body["capacity"] if list(body) == ["capacity"] else [body]
        rehearsal.add_capacity(self.state, rows, self.driver.clock())
        self.driver.changed()
        return await self.get_capacity(call)

    @route("DELETE", "/_emulator/capacity")
    async def clear_capacity(self, call: ApiCall) -> Json:
        self.state.supply.capacity = []
        self.driver.changed()
        return await self.get_capacity(call)

    def _begin(self, data: Json) -> Json:
        rehearsal.rehearse(self.state, data, self.driver.clock())
        self.driver.changed()
        return rehearsal.dump(self.state)
