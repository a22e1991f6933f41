"""The retry rule of every call to the cloud: CloudUnavailable is tried again, with backoff, until a deadline."""

from collections.abc import Awaitable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Generic

from orchestrator.errors import CloudUnavailable
from orchestrator.promise.effects.base import Effect, Now, Sleep, T


def pauses(first_s: float = 0.1, longest_s: float = 30.0, growth: float = 1.5) -> Iterator[float]:
    """Yield seconds without end: 0.1, 0.15, 0.23 … up to the longest. Short at first, for replies within milliseconds."""
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(pause_s * growth, longest_s)


@dataclass(frozen=True, slots=True)
class Timed(Generic[T]):
    """An effect whose answer comes with the time at which it was asked (unix seconds, `Now`). It can be awaited again."""

    effect: Effect[T]

    def __await__(self) -> Generator[Effect[Any], Any, tuple[float, T]]:
        asked_at = yield from Now().__await__()
        answer = yield from self.effect.__await__()
        return asked_at, answer


async def until(deadline: float, call: Awaitable[T]) -> T:
    """Await until an answer comes, and return it. CloudUnavailable is tried again, and raised at the deadline (`Now`)."""
    for pause_s in pauses(first_s=0.5):
        try:
            return await call
        except CloudUnavailable as error:
            wait_s = error.retry_after_s or pause_s
            if await Now() + wait_s > deadline:
                raise
            await Sleep(min(wait_s, 60.0))
    raise AssertionError("pauses() never ends")
