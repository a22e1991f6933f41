"""How often a worker may use its guest attributes: beyond that what it writes may be lost. Pure."""

from __future__ import annotations

from collections import deque

QUERIES, WITHIN_S = 10, 60.0  # as Google documents it
BURST, BURST_S = 3, 1.0


class AttributeRate:
    """Of one worker. Times are seconds of any clock that never goes back."""

    def __init__(self) -> None:
        self._asked: deque[float] = deque(maxlen=QUERIES)

    def within(self, now: float, speed: float) -> bool:
        """Is this query within what is documented, everything `speed` times faster? 0: nothing is ever too often."""
        if not speed:
            return True
        asked = self._asked
        many = len(asked) == QUERIES and now - asked[0] < WITHIN_S / speed
        burst = len(asked) >= BURST and now - asked[-BURST] < BURST_S / speed
        asked.append(now)
        return not many and not burst
