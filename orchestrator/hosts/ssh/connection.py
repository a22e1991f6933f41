"""One SSH connection to one worker, reopened after every drop, the agent on it, and channels over it.

fabric opens the connection with the strictest settings: the run's own key, pinned host keys, and nothing from the user's
ssh configuration or agent. Bytes move over raw channels, because fabric's `run` sends stdin at 97 bytes a second and keeps
all output. This module translates every error of paramiko, and every wait has a timeout.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import HostKeyMismatch, RemoteError, TunnelRefused, Unreachable
from orchestrator.hosts.ssh.agent_link import AgentLink
from orchestrator.hosts.ssh.dial import Dialer, Direct, GivenUp
from orchestrator.hosts.ssh.fan_out import FanOutAbandoned, Wakeup
from orchestrator.hosts.ssh.known_hosts import KnownHosts, alias
from orchestrator.hosts.ssh.proxy_command import THROUGH_COMMAND, cannot_run, last_words
from orchestrator.promise.lease.cloud_api import WorkerAddress
from orchestrator.system.lazy import Later
from orchestrator.system.sockets import SILENCE_S

if TYPE_CHECKING:
    import fabric
    import paramiko
else:
    fabric, paramiko = Later("fabric"), Later("paramiko")

HANDSHAKE_S = 15.0
WAY_FAILED = "the way to it failed: "
PROHIBITED = 1  # SSH_OPEN_ADMINISTRATIVELY_PROHIBITED
LOOK_S = 2.0  # paramiko's thread looks so often whether it has to do anything; by itself every 0.1 s, which 256 workers add up
NO_KEY = (
    "with OS Login you need roles/compute.osLogin, or roles/compute.osAdminLogin; without it, `enable-oslogin` must not be on "
    "in the project; `tpujob doctor` looks, and prints the command that adds what is missing"
)
# What paramiko says after a handshake that took too long.
NO_SERVER = ("No existing session", "Error reading SSH protocol banner")
# Logging prints the warnings of a logger without a handler to stderr.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")  # twice as fast as paramiko's default


@dataclass(frozen=True, slots=True)
class Credentials:
    """SSH credentials and the expected host keys."""

    user: str
    key_path: Path
    known_hosts: KnownHosts


class Connection:
    """Safe to use from several threads; the first one that needs the connection opens it."""

    def __init__(
        self, worker: WorkerAddress, credentials: Credentials, wakeup: Wakeup, dialer: Dialer | None = None
    ) -> None:
        """`dialer`: the way to the worker; None: by its address."""
        self.worker, self.index, self.name = worker, worker.index, alias(worker.index)
        self._credentials = credentials
        self._wakeup = wakeup
        self._dialer = dialer or Direct()
        self._opening = threading.Lock()
        self._connection: Any = None  # fabric.Connection
        self._socket: socket.socket | None = None
        self._starting = threading.Lock()
        self._agent: AgentLink | None = None
        self._opened_at = -math.inf

    @property
    def moved_at(self) -> float:
        """When the worker last took or sent something, by the monotonic clock."""
        return self._opened_at if self._agent is None else max(self._opened_at, self._agent.moved_at)

    def connect(self) -> None:
        """Open the connection; one try. Raises Unreachable; HostKeyMismatch, TunnelRefused and other RemoteErrors are final."""
        self._transport()

    def channel(self, command: str, *, timeout_s: float | None) -> paramiko.Channel:
        """Start `command` on the worker and return its channel; its reads time out after `timeout_s`. Raises Unreachable."""
        with self.translating_errors():
            channel = self._transport().open_session(timeout=HANDSHAKE_S)
            channel.settimeout(timeout_s)
            channel.exec_command(command)
            return channel

    def open_port(self, port: int, peer: tuple[str, int]) -> paramiko.Channel:
        """Return a channel to a port of the worker's own loopback, for a connection of `peer` here.

        Raises Unreachable after a cut, and RemoteError if nothing listens there, or the worker forwards no ports.
        """
        with self.translating_errors():
            transport = self._transport()
            try:
                return transport.open_channel("direct-tcpip", ("127.0.0.1", port), peer, timeout=HANDSHAKE_S)
            except paramiko.ChannelException as error:
                forwards = error.code != PROHIBITED
                why = f"nothing listens on port {port}" if forwards else "its SSH server forwards no ports"
            except BaseException:
                self.drop(transport)
                raise
        raise RemoteError(f"{self.name}: {why}")

    def agent(self, *, timeout_s: float) -> AgentLink:
        """Return the agent of this connection, which is started if it does not run. Raises Unreachable."""
        with self._starting, self.translating_errors():
            transport = self._transport()
            if self._agent is None or not self._agent.alive or self._agent.transport is not transport:
                self._agent = AgentLink(transport.open_session(timeout=HANDSHAKE_S), self.name, timeout_s=timeout_s)
            return self._agent

    def drop(self, transport: Any = None) -> None:
        """Close the connection; the next use opens a new one. With `transport`, only if that one is still in use."""
        with self._opening:
            connection = self._connection
            if connection is None or (transport is not None and connection.transport is not transport):
                return
            self._connection = None
            self.shut_socket()
        connection.close()

    def shut_socket(self) -> None:
        """Shut the socket at once. Callable from any thread, also during a handshake."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _transport(self) -> paramiko.Transport:
        with self._opening:
            if self._wakeup.canceled.is_set():
                raise FanOutAbandoned
            if self._connection is None or not self._connection.is_connected:
                with self.translating_errors():
                    self._connection = self._open()
            return self._connection.transport

    def _open(self) -> Any:
        tries = 0
        while True:
            try:
                return self._open_in_turn(tries)
            except GivenUp:
                tries += 1

    def _open_in_turn(self, tries: int) -> Any:
        self._socket = None
        try:
            with self._dialer.turn(tries) as took:
                self._socket = self._dial()
                took(self._socket)
                _wait_for_first_byte(self._socket)
            return self._log_in(self._socket)
        except BaseException as error:
            cut = isinstance(error, (paramiko.SSHException, OSError, EOFError))
            answered = isinstance(error, (paramiko.AuthenticationException, paramiko.BadHostKeyException))
            why = last_words(self._socket) if cut and not answered else ""
            if self._socket is not None:
                self._socket.close()
            if why and cannot_run(self._socket) and self._opened_at == -math.inf:
                raise RemoteError(
                    f"{self.name}: `ssh_proxy_command` cannot run: {why}", hint=THROUGH_COMMAND
                ) from error
            if why:
                raise Unreachable(f"{self.name}: {WAY_FAILED}{why}") from error
            raise

    def _dial(self) -> socket.socket:
        if self._wakeup.canceled.is_set():  # while it waited for its turn
            raise FanOutAbandoned
        try:
            sock = self._dialer.dial(self.worker)
        except (Unreachable, TunnelRefused) as error:
            raise type(error)(f"{self.name}: {error.message}", hint=error.hint, exit_code=error.exit_code) from error
        if self._wakeup.canceled.is_set():  # canceled before there was a socket to shut
            sock.close()
            raise FanOutAbandoned
        return sock

    def _log_in(self, sock: socket.socket) -> Any:
        connection = fabric.Connection(
            self.worker.host,
            user=self._credentials.user,
            port=self.worker.port,
            forward_agent=False,
            # Neither fabric's own configuration files nor ~/.ssh/config are read.
            config=fabric.Config(lazy=True, ssh_config=paramiko.SSHConfig()),
            connect_kwargs={
                "sock": sock,
                "key_filename": str(self._credentials.key_path),
                "allow_agent": False,
                "look_for_keys": False,
                "timeout": HANDSHAKE_S,
                "banner_timeout": HANDSHAKE_S,
                "auth_timeout": HANDSHAKE_S,
                "transport_factory": _transport_with_fast_ciphers,
            },
        )
        self._expect_host_key(connection.client)
        try:
            connection.open()
        except BaseException:
            connection.client.close()
            raise
        self._opened_at = time.monotonic()
        connection.transport.set_keepalive(int(SILENCE_S))
        sock.settimeout(LOOK_S)
        return connection

    def _expect_host_key(self, client: paramiko.SSHClient) -> None:
        """Pin the host key: by default fabric accepts any key and forgets it."""
        index, known_hosts = self.index, self._credentials.known_hosts

        class HostKeyCheck(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
            def missing_host_key(self, _client: Any, _name: str, key: Any) -> None:
                known_hosts.check(index, f"{key.get_name()} {key.get_base64()}")

        client.set_missing_host_key_policy(HostKeyCheck())
        pinned = known_hosts.key(index)
        if pinned is not None:  # also makes the client ask for a key of this type
            host, port = self.worker.host, self.worker.port
            entry = paramiko.hostkeys.HostKeyEntry.from_line(f"{host if port == 22 else f'[{host}]:{port}'} {pinned}")
            client.get_host_keys().add(entry.hostnames[0], entry.key.get_name(), entry.key)

    @contextlib.contextmanager
    def translating_errors(self) -> Iterator[None]:
        """Translate errors of paramiko and the socket into HostKeyMismatch, Unreachable and FanOutAbandoned."""
        try:
            yield
        except paramiko.BadHostKeyException as error:
            raise HostKeyMismatch(
                f"{self.name} at {self.worker.host} shows another host key than the cloud published for it",
                hint="another machine may answer at its address; delete the node and run again",
            ) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            if self._wakeup.canceled.is_set():
                raise FanOutAbandoned from error
            hint = NO_KEY if isinstance(error, paramiko.AuthenticationException) else None
            words = f"{self.name} ({self.worker.host}:{self.worker.port}): {_reason(error)}"
            raise Unreachable(words, hint=hint) from error


def _wait_for_first_byte(sock: socket.socket) -> None:
    """Wait until the worker has begun to speak: sshd does so first. Raises TimeoutError, EOFError and OSError."""
    poll = select.poll()  # `select` takes no descriptor above 1023
    poll.register(sock, select.POLLIN)
    if not poll.poll(HANDSHAKE_S * 1000):
        raise TimeoutError
    if not sock.recv(1, socket.MSG_PEEK):
        raise EOFError


def _reason(error: Exception) -> str:
    if isinstance(error, paramiko.AuthenticationException):
        return "it does not accept our key (yet)"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, EOFError) or not str(error):
        return "the connection was cut"
    if str(error) in NO_SERVER:
        return "no SSH server answers"
    return getattr(error, "strerror", None) or str(error)


def _transport_with_fast_ciphers(sock: socket.socket, **options: Any) -> paramiko.Transport:
    transport = paramiko.Transport(sock, **options)
    security = transport.get_security_options()
    fast = [cipher for cipher in CIPHERS if cipher in security.ciphers]
    security.ciphers = (*fast, *(cipher for cipher in security.ciphers if cipher not in fast))
    return transport
