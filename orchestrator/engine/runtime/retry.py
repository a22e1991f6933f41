"""One retry rule for every question to the cloud: what may pass is asked again, with backoff, until a time."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from orchestrator.engine.effects.base import Effect, Now, Sleep
from orchestrator.errors import CloudUnavailable

T = TypeVar("T")

FIRST_PAUSE_S = 0.1
GROWTH = 1.5
LONGEST_PAUSE_S = 30.0


def pauses(
    first_s: float = FIRST_PAUSE_S, longest_s: float = LONGEST_PAUSE_S, growth: float = GROWTH
) -> Iterator[float]:
    """0.1, 0.15, 0.23 … up to the longest: quick where a reply takes milliseconds, polite where it takes minutes."""
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(pause_s * growth, longest_s)


@dataclass(frozen=True, slots=True)
class Timed(Generic[T]):
    """A question that also answers when it was asked. Like an effect, it can be asked again."""

    question: Effect[T]

    def __await__(self) -> Generator[Effect[Any], Any, tuple[float, T]]:
        asked_at = yield from Now().__await__()
        answer = yield from self.question.__await__()
        return asked_at, answer


async def until(deadline: float, question: Awaitable[T]) -> T:
    """Ask until an answer comes. CloudUnavailable passes by; at the deadline, or for any other error, it is raised."""
    for pause_s in pauses(first_s=0.5):
        try:
            return await question
        except CloudUnavailable as error:
            wait_s = error.retry_after_s or pause_s
            if await Now() + wait_s > deadline:
                raise
            await Sleep(min(wait_s, 60.0))
    raise AssertionError("pauses() never ends")
