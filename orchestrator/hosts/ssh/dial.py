"""The ways to the SSH port of a worker: by its address, or through the relay of IAP; through a command: see `piped`. Each
gives a socket.

Who answers there is checked afterwards, by the worker's pinned host key: no way can lead to another machine unnoticed.
"""

from __future__ import annotations

import contextlib
import shlex
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from orchestrator.errors import TunnelRefused, Unreachable
from orchestrator.hosts import iap
from orchestrator.promise.lease.cloud_api import WorkerAddress
from orchestrator.system import fork
from orchestrator.system.sockets import set_options

if TYPE_CHECKING:
    from orchestrator.hosts.iap.dialer import Relay


DIAL_S = 15.0
ALIVE_EVERY_S = 15  # between the questions of OpenSSH whether the worker is still there
RESUME_S = 15 * 60  # as gcloud: for so long the tunnel of an OpenSSH is resumed, which cannot begin anew
DOCTOR = " `tpujob doctor` looks, and prints the command that adds what is missing"
FROM_OUTSIDE = (
    "does a firewall rule of the slices' network let this machine reach tcp:22? Where nothing may come from outside: "
    "`via: iap` or `ssh_proxy_command` in `access:`."
)
FROM_INSIDE = (
    "is this machine in the slices' network, and may it reach tcp:22 there? If not: `via: iap` or `ssh_proxy_command` in "
    "`access:`."
)
THROUGH_RELAY = "does a firewall rule of the slices' network let 35.235.240.0/20 reach tcp:22?"


Took = Callable[[socket.socket], None]  # told of the socket that was dialed in a turn


class GivenUp(Exception):
    """The dial was ended for another one that waited; it is to take another turn."""


class Dialer(Protocol):
    """One way to all workers of a slice. Safe to use from several threads.

    `way`: the end of `could not be reached …`. `hint`: what usually is the cause when workers cannot be reached by it.
    `files`: how many a connection keeps open.
    """

    files: int
    way: str
    hint: str

    def turn(self, tries: int = 0) -> AbstractContextManager[Took]:
        """Return what a connection holds from `dial` until the worker's first byte. It raises GivenUp; `tries`: how often."""
        return contextlib.nullcontext(lambda _sock: None)

    def dial(self, worker: WorkerAddress) -> socket.socket:
        """Return a socket to the worker's SSH port; one try. Raises OSError, Unreachable, and TunnelRefused (final)."""

    def openssh(self, worker: WorkerAddress) -> dict[str, str]:
        """Return the options with which OpenSSH takes this way: HostName, ProxyCommand. Raises as `dial`."""


class Direct(Dialer):
    """By the worker's address. `internal`: that in the slice's network, from a machine that is in it, too."""

    files = 1

    def __init__(self, *, internal: bool = False) -> None:
        self._internal = internal
        self.way = f"by their {'internal' if internal else 'external'} addresses"
        self.hint = (FROM_INSIDE if internal else FROM_OUTSIDE) + DOCTOR

    def dial(self, worker: WorkerAddress) -> socket.socket:
        sock = socket.create_connection((self._host(worker), worker.port), timeout=DIAL_S)
        fork.close_in_child(sock)  # a child that shut it, or collected its channels, would cut this connection
        set_options(sock)
        return sock

    def openssh(self, worker: WorkerAddress) -> dict[str, str]:
        return {"HostName": self._host(worker), "ProxyCommand": "none"}

    def _host(self, worker: WorkerAddress) -> str:
        host = worker.internal if self._internal else worker.host
        if not host:
            raise Unreachable("the cloud gives no address for it in its network")
        return host


class Relayed(Dialer):
    """Through the relay of IAP, by the name of the worker's instance."""

    files = 3  # two ends of a pair of sockets, and the connection to the relay

    def __init__(
        self, relay: Relay, project: str, zone: str, *, program: Sequence[str] = (), fresh_s: float = 0.0
    ) -> None:
        """`program`: carries its stdin and stdout through the relay to the instance that is its last argument, for OpenSSH.

        `fresh_s`: for how long the relay may not know yet who has a role on these new VMs.
        """
        self._fresh_until = time.monotonic() + fresh_s
        self._relay, self._project, self._zone, self._program = relay, project, zone, program
        self._worked = False
        self.way, self.hint = "through Identity-Aware Proxy", THROUGH_RELAY + DOCTOR

    def dial(self, worker: WorkerAddress) -> socket.socket:
        target = iap.relay_session.RelayTarget(self._project, self._zone, _instance(worker))
        try:
            sock = iap.dialer.dial(self._relay, target)
        except TunnelRefused as refused:
            known_later = refused.code == iap.tunnel.NOT_AUTHORIZED and time.monotonic() < self._fresh_until
            if not (self._worked or known_later):
                raise
            # A role that is lost in the middle of a run may come back, and the run goes on meanwhile.
            raise Unreachable(refused.message, hint=refused.hint, exit_code=refused.exit_code) from None
        self._worked = True
        return sock

    def openssh(self, worker: WorkerAddress) -> dict[str, str]:
        command = shlex.join([*self._program, _instance(worker)]).replace("%", "%%")
        alive = str(RESUME_S // ALIVE_EVERY_S)  # the program resumes a tunnel for so long: ssh is to wait for it
        return {"HostName": worker.instance, "ProxyCommand": command, "ServerAliveCountMax": alive}


def _instance(worker: WorkerAddress) -> str:
    """Return the name of its VM. Raises TunnelRefused before it has published it."""
    if not worker.instance:
        raise TunnelRefused(
            "it has not published the name of its instance, which IAP needs",
            hint="does the policy constraints/compute.disableGuestAttributesAccess forbid guest attributes?",
        )
    return worker.instance


# Options of every TCP socket to a worker, or to the relay that leads to one.
