"""A key of this machine for a slice that another one made: in the user's OS Login profile, or in the metadata of the node.

Who may change the metadata of a node may log in to it, so this gives nobody more than they had. The key stays as long as the
node; its comment names no person.
"""

from orchestrator.errors import CloudError, CloudUnavailable, WrongState
from orchestrator.promise.effects.base import Now, Record, Sleep
from orchestrator.promise.effects.cloud import GrantLogin, LetIn, ListSlices
from orchestrator.promise.effects.retry import Timed, pauses
from orchestrator.promise.lease.access import KEY_OUTLIVES_S
from orchestrator.promise.lease.changes import LoginGranted
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.server_time import clock_skew

PATIENCE_S = 60.0  # while another change of the node is under way


async def let_in(lease: Lease) -> None:
    """See to it that a key of this machine is there, and record whom it lets in. It may be repeated. Raises CloudError."""
    give_up_at = await Now() + PATIENCE_S
    for pause_s in pauses(first_s=0.2, longest_s=5.0):
        failure: CloudError = CloudUnavailable(f"{lease.name.node} does not take on the key of this machine")
        try:
            there = await LetIn(lease)
            if there is None and lease.route.os_login and lease.route.user:
                return  # it was granted before, and is extended with the slice
            if there is None:
                asked_at, listing = await Timed(ListSlices(lease.name.project, lease.name.zone))
                skew_s = await clock_skew(listing, asked_at=asked_at)
                user = await GrantLogin(lease, lease.deadline + skew_s + KEY_OUTLIVES_S)
                await Record(LoginGranted(lease.id, await Now(), user))
                return
            if there:
                return
        except (CloudUnavailable, WrongState) as error:  # WrongState: another change of this slice is under way
            failure = error
        if await Now() + pause_s > give_up_at:
            raise failure
        await Sleep(pause_s)
    raise AssertionError("pauses() never ends")
