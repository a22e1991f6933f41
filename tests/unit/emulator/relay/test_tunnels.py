"""The relay's tunnels: their end waits for no worker."""

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

from orchestrator.emulator.relay.tunnels import Tunnels
from tests.waiting import HANG_S

MORE_THAN_FITS = bytes(32 << 20)


def test_the_end_of_all_tunnels_waits_for_no_worker_that_reads_nothing() -> None:
    driver: Any = SimpleNamespace(inside=set())

    async def end(port: int) -> None:
        tunnels = Tunnels(driver)
        tunnel = await tunnels.open("node", port)
        assert len(driver.inside) == 1
        tunnel.writer.write(MORE_THAN_FITS)
        tunnels.close()
        await tunnel.writer.wait_closed()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(asyncio.wait_for(end(silent.getsockname()[1]), HANG_S))
    assert driver.inside == set()
