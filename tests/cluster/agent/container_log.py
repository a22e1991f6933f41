"""The log of a container, as a node keeps it (`tests.fakes.pods.NodeLog`), from its pipe and to those who read it."""

import asyncio
import threading
from collections.abc import AsyncIterator

from tests.fakes.pods import NodeLog


async def capture(stream: asyncio.StreamReader, log: NodeLog) -> None:
    """Write what comes on a pipe to the log, until the pipe ends."""
    async for line in stream:
        log.write(line)
    log.close()


async def pieces(log: NodeLog, since: float | None, *, follow: bool, timestamps: bool) -> AsyncIterator[bytes]:
    """Yield it as the kubelet serves it; with `follow`, until the container ends."""
    left, came, loop = threading.Event(), asyncio.Queue[bytes | None](), asyncio.get_running_loop()

    def read() -> None:
        for piece in log.served(since, left, follow=follow, timestamps=timestamps):
            loop.call_soon_threadsafe(came.put_nowait, piece)
        loop.call_soon_threadsafe(came.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    try:
        while (piece := await came.get()) is not None:
            yield piece
    finally:
        log.leave(left)
