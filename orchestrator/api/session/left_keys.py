"""The SSH keys of slices that are gone: deleted here, and removed from the OS Login profile where they were left."""

import contextlib
import shutil
from pathlib import Path
from typing import Any, Protocol

from orchestrator.errors import CloudUnavailable, Interrupted, TpujobError, UnknownLease
from orchestrator.promise.effects.base import Program
from orchestrator.promise.effects.cloud import RevokeLogin
from orchestrator.promise.lease.access import KEY_OUTLIVES_S
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.system import private_files


class Remembers(Protocol):
    """A session, as far as it knows the keys of leases. `keys_left`: leases whose key OS Login did not remove."""

    directory: Path
    keys_left: set[str]

    @property
    def ledger(self) -> Ledger: ...

    def forget_keys(self, lease_id: str) -> None: ...

    def now(self, cloud: str | None = None) -> float: ...

    def run(self, program: Program[Any], cloud: str | None = None) -> Any: ...


def forget(session: Remembers, lease_id: str) -> None:
    """Delete the SSH keys of a slice that is gone. Its directory stays while its key is left in the OS Login profile."""
    directory = session.directory / "leases" / lease_id
    shutil.rmtree(directory, ignore_errors=True)
    if lease_id in session.keys_left:
        with contextlib.suppress(OSError):  # a full disk: then the key goes when it expires
            private_files.make_directory(directory)


def forget_gone(session: Remembers) -> None:
    """Delete what is left of the SSH keys of slices that are gone: by a process that was killed, or in OS Login."""
    answers = True
    for directory in (session.directory / "leases").glob("*"):
        with contextlib.suppress(UnknownLease):  # another process drafts it
            lease = session.ledger.lease(directory.name)
            if not lease.open:
                answers = _remove_left_key(session, lease, answers)
                session.forget_keys(lease.id)


def _remove_left_key(session: Remembers, lease: Lease, answers: bool) -> bool:
    """Try once to remove the key of a slice that is gone from the OS Login profile, unless it has expired.

    Return whether OS Login `answers`; where it does not, it is not asked for the next key.
    """
    if not lease.route.os_login or session.now(lease.cloud) > lease.deadline + KEY_OUTLIVES_S:
        return answers

    async def revoke() -> None:
        await RevokeLogin(lease)

    session.keys_left.add(lease.id)
    try:
        if answers:
            session.run(revoke(), lease.cloud)
    except Interrupted:
        raise  # Ctrl-C is for the command
    except CloudUnavailable:
        return False
    except TpujobError:
        pass  # the command that released the slice said so
    return answers
