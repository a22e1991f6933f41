"""The daemon's own paths, /_emulator/…: status, the billing meter, settings, processes and shutdown.

The CLI's `emulator` commands and tests use them.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict

from aiohttp import web

import orchestrator
from orchestrator.emulator.admin import rehearsal
from orchestrator.emulator.vms import processes
from orchestrator.emulator.vms.driver import Driver
from orchestrator.emulator.wire import node_json
from orchestrator.emulator.wire.json_body import json_object


class Admin:
    """The routes of status, billing, settings, processes and shutdown."""

    def __init__(self, driver: Driver, shutdown: asyncio.Event) -> None:
        self.driver, self.state, self.shutdown = driver, driver.state, shutdown
        self.started_at = driver.clock()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/_emulator/status", self.status),
            web.get("/_emulator/billing", self.billing),
            web.get("/_emulator/settings", self.get_settings),
            web.patch("/_emulator/settings", self.patch_settings),
            web.get("/_emulator/processes", self.processes),
            web.post("/_emulator/shutdown", self.shut_down),
        ]

    async def status(self, request: web.Request) -> web.Response:
        self.driver.advance()
        nodes = [
            {
                "name": node.name,
                "uid": node.uid,
                "state": node.state,
                "type": node.accelerator_type,
                "workers": node.workers,
                "ssh_ports": [host.ssh_port for host in node.hosts],
                "created": node_json.timestamp(node.created_at),
            }
            for node in self.state.nodes.values()
        ]
        return web.json_response(
            {
                "version": orchestrator.__version__,
                "pid": os.getpid(),
                "state_dir": str(self.driver.store.directory),
                "started": node_json.timestamp(self.started_at),
                "nodes": nodes,
                "queued_resources": [
                    {"name": row.name, "state": row.state, "tier": row.tier, "nodes": row.node_names}
                    for row in self.state.queue.rows.values()
                ],
                "settings": asdict(self.state.settings),
            }
        )

    async def billing(self, request: web.Request) -> web.Response:
        self.driver.advance()
        return web.json_response(self.state.meter.read(max(self.state.now, self.driver.clock())))

    async def get_settings(self, request: web.Request) -> web.Response:
        return web.json_response(asdict(self.state.settings))

    async def patch_settings(self, request: web.Request) -> web.Response:
        rehearsal.change_settings(self.state, await json_object(request))
        self.driver.changed()
        return web.json_response(asdict(self.state.settings))

    async def processes(self, request: web.Request) -> web.Response:
        """List for each node the processes that run on it and the ports on which its workers listen."""
        rows = []
        for node in list(self.state.nodes.values()):
            found = await asyncio.to_thread(processes.find, node.uid, self.driver.vms / node.uid)
            hosts = self.driver.hosts.get(node.uid)
            ports = hosts.ports if hosts else []
            rows.append({"name": node.name, "uid": node.uid, "pids": [p.pid for p in found], "ports": ports})
        return web.json_response({"nodes": rows})

    async def shut_down(self, request: web.Request) -> web.Response:
        self.shutdown.set()
        return web.json_response({})
