"""One command, or one shell, of one SSH session, run as a local process.

As with a real sshd, a cut connection closes the command's pipes and nothing else: detached processes keep running. (asyncio's
own subprocesses would be killed then, and asyncssh's redirection loses the end of stdin; hence Popen and own copy loops.)
"""

import asyncio
import contextlib
import fcntl
import os
import struct
import subprocess
import termios
from collections.abc import Mapping
from pathlib import Path
from signal import Signals
from typing import IO, Any

import asyncssh

from orchestrator.emulator.vms import processes

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
        _report(session, exit_code.result())
    for task in (feed, *outputs, disconnect):
        task.cancel()
    # Wait for the process, however long it outlives its client.
    await asyncio.gather(feed, *outputs, disconnect, end, exit_code, return_exceptions=True)


def _report(session: Session, code: int) -> None:
    if code >= 0:
        session.exit(code)
    else:
        session.exit_with_signal(Signals(-code).name.removeprefix("SIG"))


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
