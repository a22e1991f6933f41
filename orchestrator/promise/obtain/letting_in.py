"""A key of this machine for a slice that another one made: in the user's OS Login profile, or in the metadata of the node.

Who may change the metadata of a node may log in to it, so this gives nobody more than they had. The key stays as long as the
node; its comment names no person.
"""

from dataclasses import replace

from orchestrator.errors import CloudError, CloudUnavailable, WrongState
from orchestrator.promise.effects.base import Now, Sleep
from orchestrator.promise.effects.cloud import GrantLogin, LetIn
from orchestrator.promise.effects.retry import pauses
from orchestrator.promise.lease.access import KEY_OUTLIVES_S, LOGIN_USER
from orchestrator.promise.lease.lease import Lease

PATIENCE_S = 60.0  # while another change of the node is under way


async def let_in(lease: Lease) -> Lease:
    """Return the lease with the way in that this machine has from now on. Raises CloudError."""
    give_up_at = await Now() + PATIENCE_S
    for pause_s in pauses(first_s=0.2, longest_s=5.0):
        failure: CloudError = CloudUnavailable(f"{lease.name.node} does not take on the key of this machine")
        try:
            there = await LetIn(lease)
            if there is None:
                granted = replace(lease, route=replace(lease.route, os_login=True))
                user = await GrantLogin(granted, lease.deadline + KEY_OUTLIVES_S)
                return replace(granted, route=replace(granted.route, user=user))
            if there:
                return replace(lease, route=replace(lease.route, os_login=False, user=LOGIN_USER))
        except (CloudUnavailable, WrongState) as error:  # WrongState: another change of this slice is under way
            failure = error
        if await Now() + pause_s > give_up_at:
            raise failure
        await Sleep(pause_s)
    raise AssertionError("pauses() never ends")
