"""The daemon: opens the state directory, brings the hosts back, serves HTTP on loopback until told to stop or long idle."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from orchestrator.emulator import access
from orchestrator.emulator.admin.admin import Admin
from orchestrator.emulator.admin.admin_faults import FaultAdmin
from orchestrator.emulator.admin.admin_supply import SupplyAdmin
from orchestrator.emulator.api import fault_middleware, rest_other
from orchestrator.emulator.api.grpc_api import GrpcDoor
from orchestrator.emulator.api.request_log import RequestLog
from orchestrator.emulator.api.rest import RestApi
from orchestrator.emulator.state.steady_clock import steady_clock
from orchestrator.emulator.state.store import ENVIRONMENT, Store
from orchestrator.emulator.vms.driver import Driver

log = logging.getLogger(__name__)
IDLE_S = 3600.0
MAX_BODY_BYTES = 4 << 20


async def serve(store: Store, host: str, port: int, announced: Callable[[], None], end_fd: int | None = None) -> None:
    """Run until shutdown, or until `end_fd` reads as closed. The endpoint is announced when everything answers."""
    shutdown = asyncio.Event()
    state = store.load()
    driver = Driver(state, store, steady_clock(store.directory, state.now))
    idle = _Idle(driver)
    requests = RequestLog()
    # From the outermost to the innermost: a refused caller is in the log, and no fault hits one whom the guard refuses.
    doors = [
        fault_middleware.logging(requests, driver),
        access.middleware(store.token, driver.account, driver.state),
        idle.middleware,
    ]
    app = web.Application(middlewares=[*doors, fault_middleware.spoiling(driver)], client_max_size=MAX_BODY_BYTES)
    app.on_response_prepare.append(fault_middleware.dating(driver))
    app.add_routes([*RestApi(driver).routes(), *rest_other.routes()])
    app.add_routes(
        [*Admin(driver, shutdown).routes(), *FaultAdmin(driver, requests).routes(), *SupplyAdmin(driver).routes()]
    )
    grpc_door = GrpcDoor(driver)
    app.add_routes(grpc_door.routes())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, shutdown.set)
    if end_fd is not None:
        asyncio.get_running_loop().add_reader(end_fd, shutdown.set)
    await driver.recover()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    listener = _listen(host, port, store.last_port())
    await web.SockSite(runner, listener).start()
    name = f"[{host}]" if ":" in host else host
    url = f"http://{name}:{listener.getsockname()[1]}"
    driver.account.url = url
    store.announce(url)
    announced()
    log.info("serving %s, state in %s", url, store.directory)
    driving = asyncio.create_task(driver.run())
    watching = asyncio.create_task(idle.watch(shutdown))
    # The first node should not wait for this import (0.2 s), nor should the first answer.
    await asyncio.to_thread(importlib.import_module, "orchestrator.emulator.vms.ssh_server")
    stopping = asyncio.create_task(shutdown.wait())
    await asyncio.wait({driving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in (driving, watching, stopping):
        task.cancel()
    store.withdraw()
    await grpc_door.close()
    await runner.cleanup()
    await driver.power_off()
    store.save(driver.state)
    log.info("stopped")
    if driving.done() and not driving.cancelled():
        driving.result()


def _listen(host: str, port: int, before: int) -> socket.socket:
    """At the port of the last daemon if it is free and no other is asked for: a VM that outlived it calls there."""
    if not access.is_loopback(f"[{host}]" if ":" in host else host):
        raise ValueError(f"The emulator serves loopback only, not {host}.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port or before))
    except OSError:
        if port:
            raise
        listener.bind((host, 0))
    return listener


class _Idle:
    """Ends a daemon that nobody has asked anything for long and that holds neither node nor queued resource."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.limit_s = float(os.environ.get(f"{ENVIRONMENT}IDLE_S", IDLE_S))
        self.last = time.monotonic()

    @property
    def middleware(self) -> Middleware:
        @web.middleware
        async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
            self.last = time.monotonic()
            return await handler(request)

        return noted

    async def watch(self, shutdown: asyncio.Event) -> None:
        while (left_s := self.last + self.limit_s - time.monotonic()) > 0 or self.driver.state.holds_anything:
            await asyncio.sleep(max(left_s, min(self.limit_s, 1.0)))
        log.info("idle for %.0f s without nodes", self.limit_s)
        shutdown.set()


def run(directory: Path, host: str, port: int, announced: Callable[[], None], end_fd: int | None = None) -> None:
    asyncio.run(serve(Store(directory), host, port, announced, end_fd))
