"""How capacity is obtained: the word of a job file, an option and a lease. Pure."""

from enum import StrEnum


class Provisioning(StrEnum):
    """How capacity is obtained. What each value means for the API is decided in `clouds`."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"  # cheaper, and may be preempted at any time
    RESERVED = "reserved"  # from a reservation that the project has paid for
    FLEX_START = "flex-start"  # queued; up to 7 days in one piece, ended by the cloud itself
    QUEUED = "queued"  # on-demand capacity, through a queued resource that waits for it

    @property
    def spot(self) -> bool:
        return self is Provisioning.SPOT

    @property
    def queued(self) -> bool:
        """Whether it always uses a queued resource; the others use one if `queue: true` is set."""
        return self in (Provisioning.FLEX_START, Provisioning.QUEUED)

    @property
    def label(self) -> str:
        """For display in a line that describes a request."""
        return "on-demand, queued" if self is Provisioning.QUEUED else str(self)
