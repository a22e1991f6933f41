"""The SSH server of one worker: public keys of the metadata or of OS Login, commands, terminals, ports, SFTP, scp.

Imported only when a worker starts, because asyncssh takes a fifth of a second to import. A command, or a shell, is a local
process. As with a real sshd, a cut connection closes the pipes of the command and nothing else: detached processes keep
running. (asyncio's own subprocesses would be killed then, and asyncssh's redirection loses the end of stdin; hence Popen and
own copy loops.)
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import functools
import logging
import os
import struct
import subprocess
import termios
from collections import Counter
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from signal import Signals
from typing import IO, Any

import asyncssh

from cloud_tpu_emulator.vms import processes

CHUNK = 1 << 16
SHELL = "/bin/bash"
NO_SUCH_COMMAND = 127
# A session leader without a terminal (`start_new_session`) gets the one that it opens as its controlling terminal.
ON_TERMINAL = 'terminal=$0; exec "$@" <"$terminal" >"$terminal" 2>&1'
Session = asyncssh.SSHServerProcess[bytes]


async def serve(session: Session, environment: Mapping[str, str], home: Path) -> None:
    """Run the client's command, or a shell, until it ends or the connection does."""
    if session.subsystem:  # sftp is handled elsewhere, and there is no other
        return session.exit(NO_SUCH_COMMAND)
    argv = [SHELL, "-c", session.command] if session.command else [SHELL, "-l"]
    if session.term_type is not None:  # "" if the client has no TERM
        return await _serve_terminal(session, argv, dict(environment) | {"TERM": session.term_type}, home)
    return await _serve_pipes(session, argv, environment, home)


async def _serve_pipes(session: Session, argv: list[str], environment: Mapping[str, str], home: Path) -> None:
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, cwd=home, env=environment, start_new_session=True
    )
    assert process.stdin and process.stdout and process.stderr
    _pass_on_signals(session, process)
    feed = asyncio.create_task(_feed(session, process.stdin))
    outputs = [
        asyncio.create_task(_drain(process.stdout, session.stdout)),
        asyncio.create_task(_drain(process.stderr, session.stderr)),
    ]
    await _conclude(session, process, feed, outputs)


async def _serve_terminal(session: Session, argv: list[str], environment: Mapping[str, str], home: Path) -> None:
    own_end, command_end = os.openpty()
    _resize(own_end, *session.term_size)
    process = subprocess.Popen(
        [SHELL, "-c", ON_TERMINAL, os.ttyname(command_end), *argv], cwd=home, env=environment, start_new_session=True
    )
    _pass_on_signals(session, process)
    input_side, output_side = os.fdopen(os.dup(own_end), "wb", 0), os.fdopen(own_end, "rb", 0)
    feed = asyncio.create_task(_feed(session, input_side))
    outputs = [asyncio.create_task(_drain(output_side, session.stdout))]
    # This end of the terminal stays open until the command ends: a terminal that no process has open reads as closed.
    await _conclude(session, process, feed, outputs, also_close=command_end)


async def _conclude(
    session: Session,
    process: subprocess.Popen[bytes],
    feed: asyncio.Task[None],
    outputs: list[asyncio.Task[None]],
    also_close: int | None = None,
) -> None:
    """Report the exit once the command and its output have ended; return at once when the connection ends."""
    exit_code = asyncio.create_task(processes.wait_for_exit(process))
    if also_close is not None:
        exit_code.add_done_callback(lambda _: os.close(also_close))
    end = asyncio.gather(exit_code, *outputs)
    disconnect = asyncio.ensure_future(session.channel.wait_closed())
    futures: set[asyncio.Future[Any]] = {end, disconnect}
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    if not disconnect.done():
        if (code := exit_code.result()) >= 0:
            session.exit(code)
        else:
            session.exit_with_signal(Signals(-code).name.removeprefix("SIG"))
    for task in (feed, *outputs, disconnect):
        task.cancel()
    # Wait for the process, however long it outlives its client.
    await asyncio.gather(feed, *outputs, disconnect, end, exit_code, return_exceptions=True)


def _pass_on_signals(session: Session, process: subprocess.Popen[bytes]) -> None:
    """Send the client's signals to the command and its children, as sshd does, also after the end of its input."""

    def signal_received(signal: str) -> None:
        with contextlib.suppress(ProcessLookupError, KeyError):
            os.killpg(process.pid, Signals[f"SIG{signal}"])

    session.signal_received = signal_received  # type: ignore[method-assign]


async def _feed(session: Session, pipe: IO[bytes]) -> None:
    """Copy from the client to the command, and pass on window sizes."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), pipe
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    try:
        while data := await _received(session, pipe):
            with contextlib.suppress(ConnectionError):  # the command has closed its stdin: discard, as sshd does
                writer.write(data)
                await writer.drain()
        transport.close()  # after the pending writes
    except asyncio.CancelledError:
        transport.abort()
        raise


async def _received(session: Session, pipe: IO[bytes]) -> bytes:
    while True:
        try:
            return await session.stdin.read(CHUNK)
        except asyncssh.TerminalSizeChanged as size:
            _resize(pipe, size.width, size.height, size.pixwidth, size.pixheight)
        except asyncssh.BreakReceived:
            continue
        except (asyncssh.Error, OSError):
            return b""


async def _drain(pipe: IO[bytes], sink: asyncssh.SSHWriter[bytes]) -> None:
    """Copy from the command to the client, no faster than the client reads."""
    reader = asyncio.StreamReader(limit=CHUNK)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        while data := await reader.read(CHUNK):
            sink.write(data)
            await sink.drain()
    except (OSError, asyncssh.Error):  # the other end of the terminal, or the connection, is closed
        return
    finally:
        transport.close()


def _resize(terminal: int | IO[bytes], width: int, height: int, pixel_width: int, pixel_height: int) -> None:
    size = struct.pack("HHHH", height, width, pixel_width, pixel_height)
    with contextlib.suppress(OSError, ValueError):  # a pipe, or a closed terminal, has no size
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


log = logging.getLogger(__name__)
CANNOT_EXECUTE = 126  # as a shell reports it
LOOPBACK = ("localhost", "127.0.0.1")  # of the worker, and so of this machine


def authorized_keys(ssh_keys: str, user: str) -> set[str]:
    """Return the keys (base64) that metadata `ssh-keys` allow for `user`: lines `user:ssh-ed25519 AAAA… comment`."""
    lines = (line.strip().partition(":") for line in ssh_keys.splitlines())
    return {parts[1] for name, _, key in lines if name == user and len(parts := key.split()) >= 2}


class SshServer:
    """One listener on loopback. It asks at every login which keys a user may use: gcloud patches them into an existing node."""

    def __init__(
        self,
        key_path: Path,
        home: Path,
        authorized: Callable[[str], set[str]],
        environment: Callable[[str], Mapping[str, str]],
        admits: Callable[[int], bool] = lambda port: True,
        sessions: Counter[str] | None = None,
    ) -> None:
        """`admits`: whether a connection from this port of the machine has a way here. `sessions`: where they are counted."""
        self.counted: Counter[str] = Counter() if sessions is None else sessions
        self.key_path, self.home, self.admits = key_path, home, admits
        self.authorized, self.environment = authorized, environment
        self.connections: set[asyncssh.SSHServerConnection] = set()
        self._sessions: set[asyncio.Task[None]] = set()
        self._listener: asyncssh.SSHAcceptor | None = None

    async def open(self, port: int) -> tuple[int, str]:
        """Listen, on `port` if it is free. Return the port and the public host key (base64)."""
        key = self._host_key()
        try:
            self._listener = await self._listen(key, port)
        except OSError:
            log.warning("port %d is in use; an SSH server moves to another one", port)
            self._listener = await self._listen(key, 0)
        return self._listener.get_port(), base64.b64encode(key.public_data).decode()

    @property
    def ports(self) -> list[int]:
        """The port on which it listens; empty if it is closed."""
        return [self._listener.get_port()] if self._listener else []

    def stop_listening(self) -> None:
        """Close the listener, and keep the connections."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def close(self) -> None:
        """Close the listener and all connections."""
        self.stop_listening()
        for connection in list(self.connections):
            connection.abort()

    async def _listen(self, key: asyncssh.SSHKey, port: int) -> asyncssh.SSHAcceptor:
        return await asyncssh.listen(
            "127.0.0.1",
            port,
            server_host_keys=[key],
            server_factory=lambda: _Login(self),
            process_factory=self._start,
            sftp_factory=self._sftp,
            allow_scp=True,
            encoding=None,
            line_editor=False,
            agent_forwarding=False,
            login_timeout=30,
        )

    def _host_key(self) -> asyncssh.SSHKey:
        """Return the host key, which is created atomically: half a key, left by a killed daemon, would disable the worker."""
        if not self.key_path.exists():
            draft = self.key_path.with_suffix(".new")
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(asyncssh.generate_private_key("ssh-ed25519").export_private_key())
            draft.replace(self.key_path)
        return asyncssh.read_private_key(self.key_path)

    def _sftp(self, channel: asyncssh.SSHServerChannel[bytes]) -> _HomeSftp:
        """Serve SFTP, or either kind of scp. A real sshd starts a process for it, as for a command."""
        self.counted["sftp"] += 1
        return _HomeSftp(channel, self.home)

    def _start(self, session: Session) -> None:
        """Serve a session in a task of its own: asyncssh cancels its own tasks with the connection."""
        self.counted["commands"] += 1
        user = str(session.get_extra_info("username"))
        ends = (*session.get_extra_info("peername")[:2], *session.get_extra_info("sockname")[:2])
        environment = {**self.environment(user), "SSH_CONNECTION": " ".join(map(str, ends))}  # as sshd sets it
        task = asyncio.create_task(serve(session, environment, self.home))
        self._sessions.add(task)
        task.add_done_callback(functools.partial(self._ended, session))

    def _ended(self, session: Session, task: asyncio.Task[None]) -> None:
        self._sessions.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("an SSH session failed", exc_info=error)
            session.exit(CANNOT_EXECUTE)


class KeyLogin(asyncssh.SSHServer):
    """One connection, which a key opens. `connections`: where it is while it is open."""

    def __init__(
        self, connections: set[asyncssh.SSHServerConnection], authorized: Callable[[str], Container[str]]
    ) -> None:
        """`authorized`: which keys (base64) a user may use."""
        self._connections, self._authorized = connections, authorized

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.connection = conn
        self._connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self.connection)

    def begin_auth(self, username: str) -> bool:
        return True  # a key is always needed

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return base64.b64encode(key.public_data).decode() in self._authorized(username)


class _Login(KeyLogin):
    def __init__(self, server: SshServer) -> None:
        super().__init__(server.connections, server.authorized)
        self._admits = server.admits

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        super().connection_made(conn)
        if not self._admits(conn.get_extra_info("peername")[1]):
            conn.abort()

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        """Forward a port (`ssh -L`) to the worker's own loopback, and nowhere else: the emulator lends no network."""
        if dest_host not in LOOPBACK:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "only to the worker's loopback")
        return True

    def server_requested(self, listen_host: str, listen_port: int) -> bool:
        """Forward a port of the worker's own loopback to the client (`ssh -R`)."""
        return listen_host in LOOPBACK


class _HomeSftp(asyncssh.SFTPServer):
    """SFTP on the local files; relative paths begin at the worker's home directory."""

    def __init__(self, channel: asyncssh.SSHServerChannel[bytes], home: Path) -> None:
        super().__init__(channel)
        self._home = os.fsencode(home)

    def map_path(self, path: bytes) -> bytes:
        return os.path.join(self._home, path)  # noqa: PTH118  bytes, as SFTP has them

    def exit(self) -> None:
        # Without an exit status, OpenSSH's scp reports a complete transfer as failed.
        self.channel.exit(0)
