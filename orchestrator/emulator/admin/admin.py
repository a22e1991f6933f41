"""The daemon's own paths, /_emulator/…: status, the billing meter, settings, processes and shutdown.

The CLI's `emulator` commands and tests use them.
"""

import asyncio
import os
from dataclasses import asdict

import orchestrator
from orchestrator.emulator.admin import rehearsal
from orchestrator.emulator.api.api_call import Api, ApiCall, Json, route
from orchestrator.emulator.model.records import Node, startup_script_of
from orchestrator.emulator.vms import processes
from orchestrator.emulator.vms.driver import SCRIPT_OFF, Driver
from orchestrator.emulator.wire.node_json import timestamp


class Admin(Api):
    """The routes of status, billing, settings, processes and shutdown."""

    def __init__(self, driver: Driver, shutdown: asyncio.Event) -> None:
        super().__init__(driver)
        self.shutdown, self.started_at = shutdown, driver.clock()

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
        rehearsal.change_settings(self.state, await call.body())
        self.driver.changed()
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
