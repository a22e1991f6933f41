"""The ways to the SSH port of a worker: by its address, through a command, or through the relay of IAP. Each gives a socket.

Who answers there is checked afterwards, by the worker's pinned host key: no way can lead to another machine unnoticed.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import socket
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from orchestrator import fork
from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.core.text.terminal import printable
from orchestrator.errors import ConfigError, TunnelRefused, Unreachable
from orchestrator.remote.ssh.socket_options import set_options

if TYPE_CHECKING:
    from subprocess import Popen

    from orchestrator.remote.iap.dialer import Relay

DIAL_S = 15.0
BASTION_AT_ONCE = 8  # logins under way: from the 10th on, sshd refuses some (its MaxStartups is 10:30:100)
ALIVE_EVERY_S = 15  # between the questions of OpenSSH whether the worker is still there
RESUME_S = 15 * 60  # as gcloud: for so long the tunnel of an OpenSSH is resumed, which cannot begin anew
LAST_WORDS_S, LAST_WORDS_BYTES = 1.0, 2000
DOCTOR = "; `tpujob doctor` looks, and prints the command that adds what is missing"
FROM_OUTSIDE = (
    "does a firewall rule of the slices' network let this machine reach tcp:22? Where nothing may come from outside: "
    "`via: iap` or `ssh_proxy_command` in `access:`"
)
FROM_INSIDE = (
    "is this machine in the slices' network, and may it reach tcp:22 there? If not: `via: iap` or `ssh_proxy_command` in "
    "`access:`"
)
THROUGH_COMMAND = "does `ssh_proxy_command` work by hand, and may the bastion reach tcp:22 of the workers?"
THROUGH_RELAY = "does a firewall rule of the slices' network let 35.235.240.0/20 reach tcp:22?"
TOKENS = re.compile(r"%(.?)")
# Runs the command on the socket that is its stdout, and ends it with stdin, which is open as long as this process wants it: the
# command by itself might never notice that its other end is gone.
KEEPER = """\
exec 3<&0
sh -c "exec $1" <&1 3<&- &
command=$!
exec >&-
trap 'exit 1' HUP
{ read -r _ <&3; kill -HUP 0; } &
exec 3<&- <&-
wait $command
kill -HUP 0
"""


class Dialer(Protocol):
    """One way to all workers of a slice. Safe to use from several threads.

    `way`: the end of `could not be reached …`. `hint`: what usually is the cause when workers cannot be reached by it.
    """

    @property
    def way(self) -> str: ...

    @property
    def hint(self) -> str: ...

    def turn(self) -> AbstractContextManager[object]:
        """Return what a connection holds from `dial` until it is logged in."""

    def dial(self, worker: WorkerAddress) -> socket.socket:
        """Return a socket to the worker's SSH port; one try. Raises OSError, Unreachable, and TunnelRefused (final)."""

    def openssh(self, worker: WorkerAddress) -> dict[str, str]:
        """Return the options with which OpenSSH takes this way: HostName, ProxyCommand. Raises as `dial`."""


class Direct:
    """By the worker's address. `internal`: that in the slice's network, from a machine that is in it, too."""

    def __init__(self, *, internal: bool = False) -> None:
        self._internal = internal
        self.way = f"by their {'internal' if internal else 'external'} addresses"
        self.hint = (FROM_INSIDE if internal else FROM_OUTSIDE) + DOCTOR

    def turn(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

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


class Piped:
    """Through a command that carries its stdin and stdout to the worker's internal address: OpenSSH's ProxyCommand."""

    def __init__(self, command: str, user: str) -> None:
        """Raises ConfigError for a command with a %-token that is not %h, %p, %r, %n or %%."""
        unknown = next((token for token in TOKENS.findall(command) if token not in tuple("hprn%")), None)
        if not command.strip() or unknown is not None:
            what = "is empty" if unknown is None else f"has %{unknown}, which means nothing there"
            raise ConfigError(
                f"ssh_proxy_command {what}", hint="%h is the host, %p the port, %r the user, %% a percent sign"
            )
        self._command, self._user = command, user
        self.way, self.hint = "through `ssh_proxy_command`", THROUGH_COMMAND + DOCTOR
        self._turns = threading.BoundedSemaphore(BASTION_AT_ONCE)

    def turn(self) -> AbstractContextManager[object]:
        return self._turns

    def dial(self, worker: WorkerAddress) -> socket.socket:
        host = worker.internal or worker.host
        values = {"h": host, "n": host, "p": str(worker.port), "r": self._user}
        line = TOKENS.sub(lambda found: "%" if found[1] == "%" else shlex.quote(values[found[1]]), self._command)
        theirs, ours = socket.socketpair()
        fork.close_in_child(theirs)
        with ours:
            return _PipedSocket(theirs, ours, line)

    def openssh(self, worker: WorkerAddress) -> dict[str, str]:
        command = TOKENS.sub(lambda found: "%h" if found[1] == "n" else found[0], self._command)
        return {"HostName": worker.internal or worker.host, "ProxyCommand": command}


class _PipedSocket(socket.socket):
    """The socket to a command. Whatever shuts or closes it ends the command; so does the end of this process."""

    def __init__(self, theirs: socket.socket, ours: socket.socket, line: str) -> None:
        import subprocess

        super().__init__(fileno=theirs.detach())
        fork.close_in_child(self)
        self._errors = b""
        argv = ["sh", "-c", KEEPER, "tpujob-proxy", line]
        try:
            process, self._lifeline = fork.start(argv, stdout=ours, stderr=subprocess.PIPE, start_new_session=True)
        except OSError:
            super().close()
            raise
        self._reader = threading.Thread(target=self._read_errors, args=(process,), name="ssh-proxy", daemon=True)
        self._reader.start()

    def shutdown(self, how: int) -> None:
        self._lifeline.close()
        super().shutdown(how)

    def close(self) -> None:
        self._lifeline.close()
        super().close()

    def last_words(self) -> str:
        """Return the last line that the command wrote to stderr; empty without one."""
        self._reader.join(LAST_WORDS_S)
        text = self._errors.decode(errors="replace").strip()
        return printable(text.rpartition("\n")[2])[:200]

    def _read_errors(self, process: Popen[bytes]) -> None:
        with process:
            assert process.stderr is not None, "it is a pipe"
            while piece := process.stderr.read1():  # type: ignore[attr-defined]
                self._errors = (self._errors + piece)[-LAST_WORDS_BYTES:]


class Relayed:
    """Through the relay of IAP, by the name of the worker's instance."""

    def __init__(
        self, relay: Relay, project: str, zone: str, *, program: Sequence[str] = (), reconnect_s: float | None = None
    ) -> None:
        """`program`: carries its stdin and stdout through the relay to the instance that is its last argument, for OpenSSH.

        `reconnect_s`: for how long a cut tunnel is resumed; None: for less than the log's followers wait.
        """
        self._relay, self._project, self._zone, self._reconnect_s = relay, project, zone, reconnect_s
        self._program = program
        self._worked = False
        self.way, self.hint = "through Identity-Aware Proxy", THROUGH_RELAY + DOCTOR

    def turn(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    def dial(self, worker: WorkerAddress) -> socket.socket:
        from orchestrator.remote.iap import dialer
        from orchestrator.remote.iap.relay_session import RelayTarget

        target = RelayTarget(self._project, self._zone, _instance(worker))
        reconnect_s = dialer.RECONNECT_S if self._reconnect_s is None else self._reconnect_s
        try:
            sock = dialer.dial(self._relay, target, reconnect_s=reconnect_s)
        except TunnelRefused as refused:
            if not self._worked:
                raise
            # A role that is lost in the middle of a run may come back, and the run goes on meanwhile.
            raise Unreachable(refused.message, hint=refused.hint) from None
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


def last_words(sock: socket.socket) -> str:
    """Return what a failed way said of its failure; empty if nothing."""
    return sock.last_words() if isinstance(sock, _PipedSocket) else ""
