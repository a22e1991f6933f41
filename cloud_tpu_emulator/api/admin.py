"""The daemon's own paths, /_emulator/…: status, billing, settings, rehearsals, faults, the request log, events of nodes.

The `emulator` commands of the CLI and tests use them. No cloud has these paths: nothing of Google's API enters, and the client
of the cloud never uses them. A rehearsal is settings, supply and faults as one piece of data, read strictly: all or nothing.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import orchestrator
from cloud_tpu_emulator.api.api_call import Api, ApiCall, Json, route
from cloud_tpu_emulator.api.every_request import RequestLog
from cloud_tpu_emulator.faults import api_errors
from cloud_tpu_emulator.faults.api_errors import ApiError, bad_field
from cloud_tpu_emulator.faults.fault import read as read_fault
from cloud_tpu_emulator.faults.plain_data import check_list, check_object, check_value, read
from cloud_tpu_emulator.model import supply
from cloud_tpu_emulator.model.cloud_state import CloudState
from cloud_tpu_emulator.model.records import Node, Settings, startup_script_of
from cloud_tpu_emulator.model.supply import chips_used
from cloud_tpu_emulator.vms import processes
from cloud_tpu_emulator.vms.driver import SCRIPT_OFF, Driver
from cloud_tpu_emulator.vms.tpu_vm import CONDITIONS
from cloud_tpu_emulator.wire.replies import timestamp
from cloud_tpu_emulator.wire.requests import NUMBER

PARTS = ("settings", *supply.PARTS, "faults")


def rehearse(state: CloudState, data: object, now: float) -> None:
    """Replace the present rehearsal. Settings that the data omit stay. Raises BadData, and then nothing changes."""
    data = check_object("a rehearsal", data, PARTS)
    settings, faults = _read_settings(data.get("settings", {})), check_list("faults", data.get("faults", []))
    for fault in faults:
        read_fault(fault)
    found = supply.load({name: data[name] for name in supply.PARTS if name in data}, now)
    _apply(state, settings)
    state.supply = found
    state.faults.clear()
    state.faults.add_all(faults, now)
    state.advance(now)


def add_capacity(state: CloudState, rows: object, now: float) -> None:
    """Add rules; they decide before older ones. Raises BadData."""
    state.supply.capacity += supply.load({"capacity": rows}, now).capacity
    state.advance(now)


def dump(state: CloudState) -> dict[str, Any]:
    """Return the present rehearsal, all settings included."""
    return {"settings": asdict(state.settings), **state.supply.dump(), "faults": state.faults.dump()}


def _read_settings(data: object) -> dict[str, Any]:
    found = read(Settings, data, "settings", "settings.")
    return {name: getattr(found, name) for name in check_object("settings", data)}


def _apply(state: CloudState, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        setattr(state.settings, name, value)


class Admin(Api):
    """The routes. `log`: the request log; `shutdown`: what ends the daemon."""

    def __init__(self, driver: Driver, log: RequestLog, shutdown: asyncio.Event) -> None:
        super().__init__(driver)
        self.log, self.shutdown, self.started_at = log, shutdown, driver.clock()

    @route("GET", "/_emulator/status")
    async def status(self, call: ApiCall) -> Json:
        nodes = [
            {
                "name": node.name,
                "uid": node.uid,
                "state": node.state,
                "type": node.accelerator_type,
                "workers": node.workers,
                "ssh_ports": [host.ssh_port for host in node.hosts],
                "created": timestamp(node.created_at),
                # None: it has none, or one that runs on this machine, or did.
                "startup_script": SCRIPT_OFF if self._is_off(node) else None,
            }
            for node in self.state.nodes.values()
        ]
        return {
            "version": orchestrator.__version__,
            "pid": os.getpid(),
            "state_dir": str(self.driver.store.directory),
            "started": timestamp(self.started_at),
            "unsaved_because": self.driver.unsaved_because,
            "nodes": nodes,
            "queued_resources": [
                {"name": row.name, "state": row.state, "tier": row.tier, "nodes": row.node_names}
                for row in self.state.queue.rows.values()
            ],
            # Since this daemon started. A real sshd starts at least one process for each.
            "ssh_sessions": {kind: self.driver.ssh_sessions[kind] for kind in ("commands", "sftp")},
            "settings": asdict(self.state.settings),
        }

    def _is_off(self, node: Node) -> bool:
        script, file = startup_script_of(node.spec), self.driver.vms / node.uid / "worker0" / "startup-script"
        if not script or self.state.settings.runs_scripts(node.trusted):
            return False
        return not file.exists() or file.read_text() != script  # what ran before scripts were switched off did run

    @route("GET", "/_emulator/billing")
    async def billing(self, call: ApiCall) -> Json:
        return self.state.meter.read(max(self.state.now, self.driver.clock()))

    @route("GET", "/_emulator/settings")
    async def get_settings(self, call: ApiCall) -> Json:
        return asdict(self.state.settings)

    @route("PATCH", "/_emulator/settings")
    async def patch_settings(self, call: ApiCall) -> Json:
        _apply(self.state, _read_settings(await call.body()))
        return asdict(self.state.settings)

    @route("GET", "/_emulator/processes")
    async def processes(self, call: ApiCall) -> Json:
        """List for each node the processes that run on it and the ports on which its workers listen."""
        rows = []
        for node in list(self.state.nodes.values()):
            found = await asyncio.to_thread(processes.find, node.uid, self.driver.vms / node.uid)
            hosts = self.driver.hosts.get(node.uid)
            ports = hosts.ports if hosts else []
            rows.append({"name": node.name, "uid": node.uid, "pids": [p.pid for p in found], "ports": ports})
        return {"nodes": rows}

    @route("POST", "/_emulator/shutdown")
    async def shut_down(self, call: ApiCall) -> Json:
        self.shutdown.set()
        return {}

    @route("POST", "/_emulator/clock")
    async def advance(self, call: ApiCall) -> Json:
        """Let `{"advance_s": …}` seconds of the cloud's time pass at once."""
        seconds = check_value("advance_s", (await call.body()).get("advance_s"), float)
        self.driver.clock.advance(seconds)
        self.driver.advance()
        self.driver.changed()
        return {"now": timestamp(self.driver.clock())}

    # --- what the cloud has: whole rehearsals as data, and capacity alone ---------------------------------------------

    @route("GET", "/_emulator/rehearsal")
    async def get_rehearsal(self, call: ApiCall) -> Json:
        return dump(self.state)

    @route("PUT", "/_emulator/rehearsal")
    @route("DELETE", "/_emulator/rehearsal")
    async def put_rehearsal(self, call: ApiCall) -> Json:
        """Replace the present rehearsal as a whole; DELETE: make everything unlimited again, without faults. Settings stay."""
        data = await call.body() if call.request.method == "PUT" else {}
        rehearse(self.state, data, self.driver.clock())
        return dump(self.state)

    @route("GET", "/_emulator/capacity")
    async def get_capacity(self, call: ApiCall) -> Json:
        """List the rules, with whether each holds now and how many chips it counts as used."""
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
        add_capacity(self.state, rows, self.driver.clock())
        return await self.get_capacity(call)

    @route("DELETE", "/_emulator/capacity")
    async def clear_capacity(self, call: ApiCall) -> Json:
        self.state.supply.capacity = []
        return await self.get_capacity(call)

    # --- faults, and the request log ------------------------------------------------------------------------------------

    @route("GET", "/_emulator/faults")
    async def list_faults(self, call: ApiCall) -> Json:
        return {"faults": self.state.faults.dump()}

    @route("POST", "/_emulator/faults")
    async def add_faults(self, call: ApiCall) -> Json:
        """Add one fault, or `{"faults": [...]}`: all of them or none."""
        data = await call.body()
        rows = check_list("faults", data["faults"]) if list(data) == ["faults"] else [data]
        added = self.state.faults.add_all(rows, self.driver.clock())
        return {"faults": [fault.as_json() for fault in added]}

    @route("DELETE", "/_emulator/faults")
    @route("DELETE", "/_emulator/faults/{id}")
    async def clear_faults(self, call: ApiCall) -> Json:
        name = call.parts.get("id")
        count = self.state.faults.clear(None if name is None else [name])
        if name is not None and not count:
            raise ApiError("NOT_FOUND", f'There is no fault "{name}".')
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
