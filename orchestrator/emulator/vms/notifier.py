"""A beat at every change of the cloud, for those who wait for one: a metadata server asked with `wait_for_change`."""

from __future__ import annotations

import asyncio


class Notifier:
    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wake everybody who waits now."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Until the next beat; False: there was none in time."""
        try:
            await asyncio.wait_for(self._next.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
