"""The daemon: opens the state directory, restores the hosts, and serves HTTP on loopback until it is stopped or idle."""

import asyncio
import importlib
import logging
import os
import signal
import socket
import time
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

from cloud_tpu_emulator.api import every_request
from cloud_tpu_emulator.api.admin import Admin
from cloud_tpu_emulator.api.every_request import RequestLog
from cloud_tpu_emulator.api.grpc_api import GrpcApi
from cloud_tpu_emulator.api.project_apis import ComputeApi, OpenIdApi, OsLoginApi, PermissionsApi, ServicesApi
from cloud_tpu_emulator.api.rest import QueueApi, RestApi
from cloud_tpu_emulator.api.storage import StorageApi
from cloud_tpu_emulator.model.state import ENDPOINT, ENVIRONMENT, Store, steady_clock
from cloud_tpu_emulator.relay.google_proxy import GoogleProxy
from cloud_tpu_emulator.relay.relay_api import RelayApi
from cloud_tpu_emulator.vms.driver import Driver
from cloud_tpu_emulator.wire import requests

log = logging.getLogger(__name__)
IDLE_S = 3600.0
DIRECTORY_LOOK_S = 1.0
MAX_BODY_BYTES = 4 << 20


async def serve(store: Store, host: str, port: int, ready_fd: int | None, end_fd: int | None) -> None:
    """Serve until shutdown, or until `end_fd` reads as closed. Closes `ready_fd` when every part is ready to reply."""
    shutdown = asyncio.Event()
    state = store.load()
    driver = Driver(state, store, steady_clock(store.directory, state.now))
    idle = _Idle(driver)
    requests = RequestLog()
    # From the outermost to the innermost: refused calls are in the log, and meet no fault.
    middlewares = [
        every_request.request_logging(requests, driver),
        every_request.middleware(store, driver.account, driver.state),
        idle.middleware,
        every_request.fault_injection(driver),
    ]
    app = web.Application(middlewares=middlewares, client_max_size=MAX_BODY_BYTES)
    app.on_response_prepare.append(every_request.date_header(driver))
    admin, grpc_api, relay = Admin(driver, requests, shutdown), GrpcApi(driver), RelayApi(driver)
    proxy = GoogleProxy(driver, grpc_api)
    of_project = OpenIdApi(driver), ComputeApi(driver), ServicesApi(driver), PermissionsApi(driver), StorageApi(driver)
    for api in (RestApi(driver), QueueApi(driver), OsLoginApi(driver), *of_project, admin, grpc_api, relay, proxy):
        app.add_routes(api.routes())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, shutdown.set)
    if end_fd is not None:
        asyncio.get_running_loop().add_reader(end_fd, shutdown.set)
    await driver.recover()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    relay.runner = runner
    listener = _listen(host, port, store.last_port())
    await web.SockSite(runner, listener).start()
    name = f"[{host}]" if ":" in host else host
    url = f"http://{name}:{listener.getsockname()[1]}"
    driver.account.url = url
    store.publish_endpoint(url)
    if ready_fd is not None:
        os.close(ready_fd)
    log.info("serving %s, state in %s", url, store.directory)
    driving = asyncio.create_task(driver.run())
    watching = asyncio.gather(idle.watch(shutdown), _watch_directory(store, shutdown))
    # Neither the first node nor the first reply should wait for this import (0.2 s).
    await asyncio.to_thread(importlib.import_module, "cloud_tpu_emulator.vms.ssh_server")
    stopping = asyncio.create_task(shutdown.wait())
    await asyncio.wait({driving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in (driving, watching, stopping):
        task.cancel()
    await asyncio.gather(watching, return_exceptions=True)  # else its cancellation is logged as an error
    await asyncio.wait({driving})  # else it would power on what is powered off below
    if store.is_ours():
        (store.directory / ENDPOINT).unlink(missing_ok=True)
    await proxy.close()
    await grpc_api.close()
    await relay.close()
    await runner.cleanup()
    await driver.power_off()
    store.save(driver.state)
    log.info("stopped")
    if driving.done() and not driving.cancelled():
        driving.result()


async def _watch_directory(store: Store, shutdown: asyncio.Event) -> None:
    """Set `shutdown` once the state directory was removed: no client finds this daemon any more."""
    while store.is_ours():
        await asyncio.sleep(DIRECTORY_LOOK_S)
    shutdown.set()


def _listen(host: str, port: int, before: int) -> socket.socket:
    """Listen on `port`; 0: on the port of the last daemon (`before`), which VMs that outlived it use, or on a free one."""
    if not requests.is_loopback(f"[{host}]" if ":" in host else host):
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
    """Ends the daemon after a time without requests, if there is neither a node nor a queued resource."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.limit_s = float(os.environ.get(f"{ENVIRONMENT}IDLE_S", IDLE_S))
        self.last = time.monotonic()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note the request."""
        self.last = time.monotonic()
        return await handler(request)

    async def watch(self, shutdown: asyncio.Event) -> None:
        """Set `shutdown` once the daemon has been idle for the limit."""
        while (left_s := self.last + self.limit_s - time.monotonic()) > 0 or self.driver.state.holds_anything:
            await asyncio.sleep(max(left_s, min(self.limit_s, 1.0)))
        log.info("idle for %.0f s without nodes", self.limit_s)
        shutdown.set()


def run(directory: Path, host: str, port: int, ready_fd: int | None, end_fd: int | None) -> None:
    """Serve with this state directory until shutdown. Raises AlreadyRunning, DamagedState, OSError or ValueError."""
    asyncio.run(serve(Store(directory), host, port, ready_fd, end_fd))
