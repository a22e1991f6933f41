"""The server's time in a reply: how far its clock is from ledger time, and ledger time set by it after a restart."""

import contextlib

from orchestrator.errors import CloudError
from orchestrator.promise.effects.base import IsTimeCertain, Now, Report, SetServerTime
from orchestrator.promise.effects.cloud import ListSlices
from orchestrator.promise.effects.retry import Timed
from orchestrator.promise.lease.cloud_api import Listing, SliceView
from orchestrator.promise.lease.lease import Lease
from orchestrator.text.units import format_duration

SKEW_WORTH_S = 5.0  # a smaller skew is ignored
SKEW_WARNED_S = 60.0  # a larger one is reported


async def clock_skew(listing: Listing[SliceView], *, asked_at: float, warn: bool = False) -> float:
    """Return the seconds that the cloud's clock is ahead of ledger time; 0.0 if unknown. `warn`: report a large skew.

    The listing was made between `asked_at` and now. The smallest skew that this allows is used, so that a slow reply, or
    a suspended machine, is not taken for a wrong clock.
    """
    if listing.server_now is None:
        return 0.0
    least_s, most_s = listing.server_now - await Now(), listing.server_now - asked_at
    if least_s <= SKEW_WORTH_S and most_s >= -SKEW_WORTH_S:
        return 0.0  # a Date has whole seconds, and the reply took time
    skew_s = least_s if least_s > 0 else most_s
    if warn and abs(skew_s) > SKEW_WARNED_S:
        how = f"{format_duration(abs(skew_s))} {'behind' if skew_s > 0 else 'ahead of'}"
        await Report("warning", f"the times that tpujob shows are {how} the cloud's clock")
    return skew_s


async def ask_time(lease: Lease) -> None:
    """After a restart of this machine, ask the cloud how much time has passed. Without a reply none has, for now."""
    if not await IsTimeCertain():
        await Report("clock", "asking the cloud how long this machine was off", passing=True)
        with contextlib.suppress(CloudError):
            asked_at, listing = await Timed(ListSlices(lease.name.project, lease.name.zone))
            await record_server_time(listing, asked_at=asked_at)


async def record_server_time(listing: Listing[SliceView], *, asked_at: float) -> None:
    """Adjust ledger time to the server's time in a listing, if it has one. `asked_at`: when the request left."""
    if listing.server_now is not None:
        await SetServerTime(listing.server_now, asked_at)
