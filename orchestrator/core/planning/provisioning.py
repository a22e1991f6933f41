"""The ways to get capacity: on-demand, spot, reserved, flex-start, or on-demand through the queue. Pure words.

The job file, the plan and the request speak of these; what each means for the API is `cloud`'s business.
"""

from __future__ import annotations

from enum import StrEnum


class Provisioning(StrEnum):
    ON_DEMAND = "on-demand"
    SPOT = "spot"  # cheaper, and may be taken away at any time
    RESERVED = "reserved"  # out of a reservation that the project has paid for
    FLEX_START = "flex-start"  # queued; up to 7 days in one piece, ended by the cloud itself
    QUEUED = "queued"  # on-demand capacity, through a queued resource that waits for it

    @property
    def spot(self) -> bool:
        return self is Provisioning.SPOT

    @property
    def queued(self) -> bool:
        """Always through a queued resource; the others go through one when that is asked for (`queue: true`)."""
        return self in (Provisioning.FLEX_START, Provisioning.QUEUED)

    @property
    def words(self) -> str:
        """For a person, in a line that says what is asked for."""
        return "on-demand, queued" if self is Provisioning.QUEUED else str(self)
