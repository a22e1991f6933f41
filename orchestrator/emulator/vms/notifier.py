"""Wakes tasks at every change of the cloud: metadata requests with `wait_for_change`."""

import asyncio


class Notifier:
    """One event for any number of waiting tasks."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wake all tasks that wait now."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the next `notify`. Return whether it came within `timeout_s` seconds (None: no limit)."""
        try:
            await asyncio.wait_for(self._next.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
