"""A bastion: an SSH server in the slices' network, which forwards connections to their workers (`ssh -W`, ProxyJump).

Like sshd's MaxStartups, it drops a connection that comes while too many others are not logged in yet.
"""

import base64
import contextlib
import errno
import os
from typing import Any

import asyncssh
from asyncssh.stream import SSHTCPStreamSession

from cloud_tpu_emulator.relay.tunnels import carry, first_of, forget, open_connection
from cloud_tpu_emulator.vms.driver import Driver
from cloud_tpu_emulator.vms.ssh_server import KeyLogin


class Bastion:
    """One bastion on loopback. `keys`: public keys (base64) that open it, for any user."""

    def __init__(self, driver: Driver, keys: set[str], max_startups: int) -> None:
        self.driver, self.keys, self.max_startups = driver, keys, max_startups
        self.starting: set[asyncssh.SSHServerConnection] = set()  # not logged in yet
        self.connections: set[asyncssh.SSHServerConnection] = set()
        self.dropped = self.most = 0
        self._key = asyncssh.generate_private_key("ssh-ed25519")
        self._listener: asyncssh.SSHAcceptor | None = None

    async def open(self) -> None:
        """Listen on a free port."""
        self._listener = await asyncssh.listen(
            "127.0.0.1", 0, server_host_keys=[self._key], server_factory=lambda: _Login(self), encoding=None
        )

    async def close(self) -> None:
        """Close the listener and all connections."""
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            connection.abort()

    def as_json(self) -> dict[str, Any]:
        """Return where it is, and the logins that it dropped and has seen under way at once."""
        assert self._listener is not None, "it is open"
        key = f"ssh-ed25519 {base64.b64encode(self._key.public_data).decode()}"
        counts = {"dropped": self.dropped, "most_starting": self.most}
        return {"port": self._listener.get_port(), "host_key": key} | counts


class _Login(KeyLogin):
    def __init__(self, bastion: Bastion) -> None:
        super().__init__(bastion.connections, lambda user: bastion.keys)
        self._bastion = bastion

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        super().connection_made(conn)
        bastion = self._bastion
        if len(bastion.starting) >= bastion.max_startups:
            bastion.dropped += 1
            conn.abort()
            return
        bastion.starting.add(conn)
        bastion.most = max(bastion.most, len(bastion.starting))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.auth_completed()

    def auth_completed(self) -> None:
        self._bastion.starting.discard(self.connection)

    async def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> Any:
        """Return the session of a connection to the worker's port. Raises ChannelOpenError if nothing listens there."""
        driver = self._bastion.driver
        try:
            far, out = await open_connection(driver, dest_port)
        except OSError as error:
            why = os.strerror(error.errno or errno.ECONNREFUSED)
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, why) from None

        async def forward(near: asyncssh.SSHReader[bytes], back: asyncssh.SSHWriter[bytes]) -> None:
            try:
                with contextlib.suppress(ConnectionError, asyncssh.Error):
                    await first_of(carry(near, out), carry(far, back))
            finally:
                forget(driver, out)
            back.close()

        return SSHTCPStreamSession[bytes](forward)
