"""The rate limit of a worker's guest attributes: beyond it, writes may be dropped. Pure."""

from collections import deque

QUERIES, WITHIN_S = 10, 60.0  # the limits that Google documents
BURST, BURST_S = 3, 1.0


class AttributeRate:
    """The queries of one worker. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._queries: deque[float] = deque(maxlen=QUERIES)

    def within(self, now: float, speed: float) -> bool:
        """Count a query, and return whether it is within `speed` times the documented rate; `speed` 0: no limit."""
        if not speed:
            return True
        queries = self._queries
        many = len(queries) == QUERIES and now - queries[0] < WITHIN_S / speed
        burst = len(queries) >= BURST and now - queries[-BURST] < BURST_S / speed
        queries.append(now)
        return not many and not burst
