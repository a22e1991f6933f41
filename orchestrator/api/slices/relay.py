"""`python -m orchestrator.api.slices.relay [--emulator URL TOKEN_FILE] PROJECT ZONE INSTANCE`: the ProxyCommand through IAP.

It carries its stdin and stdout through the relay to the SSH port of an instance. OpenSSH starts one for each connection, so it
asks neither ledger nor API. It ends with OpenSSH, however that ends, also while it opens a tunnel or resumes one that was cut.
"""

import contextlib
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import TpujobError
from orchestrator.hosts import iap
from orchestrator.hosts.ssh.dial import RESUME_S
from orchestrator.places.desk import Emulator
from orchestrator.places.vms.reach import EMULATOR, relay_of
from orchestrator.text.terminal import printable

PIECE_BYTES = 1 << 16
DRAIN_S = 2.0  # for what is under way, once stdin has ended


def main(words: Sequence[str]) -> int:
    """Carry stdin and stdout until either ends; return the exit code."""
    stdin, stdout = sys.stdin.fileno(), sys.stdout.fileno()
    threading.Thread(target=_end_with_reader, args=(stdout,), daemon=True).start()
    try:
        with _dial(words) as tunnel:
            carry(tunnel, stdin, stdout)
    except TpujobError as error:
        lines = [error.message, *([f"hint: {error.hint}"] if error.hint else [])]
        print(*map(printable, lines), sep="\n", file=sys.stderr, flush=True)
        return error.exit_code
    except (BrokenPipeError, KeyboardInterrupt):
        return 1
    return 0


def _dial(words: Sequence[str]) -> socket.socket:
    emulator = None
    if words[0] == EMULATOR:
        emulator, words = Emulator(words[1], Path(words[2])), words[3:]
    project, zone, instance = words
    target = iap.relay_session.RelayTarget(project, zone, instance)
    return iap.dialer.dial(relay_of(emulator), target, reconnect_s=RESUME_S)


def _end_with_reader(stdout: int) -> None:
    """End this process once nothing can read its stdout any more. A killed OpenSSH tells nothing else."""
    poll = select.poll()
    poll.register(stdout, 0)  # errors and hang-ups are always told
    poll.poll()
    os._exit(1)


def carry(tunnel: socket.socket, stdin: int, stdout: int) -> None:
    """Copy stdin to the tunnel and the tunnel to stdout, until the tunnel ends, or soon after stdin has ended.

    Raises BrokenPipeError when nothing reads stdout.
    """
    tunnel.setblocking(False)
    up = down = b""
    end_at: float | None = None  # set by the end of stdin
    while end_at is None or time.monotonic() < end_at:
        poll = select.poll()
        if end_at is None and not up:
            poll.register(stdin, select.POLLIN)
        if up or not down:
            poll.register(tunnel, (select.POLLOUT if up else 0) | (0 if down else select.POLLIN))
        if down:
            poll.register(stdout, select.POLLOUT)
        ready = {number for number, _ in poll.poll(None if end_at is None else DRAIN_S * 1000)}
        if stdout in ready:
            down = down[os.write(stdout, down[: select.PIPE_BUF]) :]  # more could block
        if tunnel.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                up = up[_sent(tunnel, up) :]
            if not down:
                with contextlib.suppress(BlockingIOError):
                    down = _received(tunnel)
                    if not down:
                        return
        if stdin in ready:
            up = os.read(stdin, PIECE_BYTES)
            if not up:
                end_at = time.monotonic() + DRAIN_S
                tunnel.shutdown(socket.SHUT_WR)


def _sent(tunnel: socket.socket, data: bytes) -> int:
    """Return how many bytes went into the tunnel. One that has ended takes all: what it left is still to be read."""
    try:
        return tunnel.send(data) if data else 0
    except (BrokenPipeError, ConnectionResetError):
        return len(data)


def _received(tunnel: socket.socket) -> bytes:
    """Return the next bytes; empty at the end, also of a tunnel that left bytes unread. Raises BlockingIOError."""
    try:
        return tunnel.recv(PIECE_BYTES)
    except ConnectionResetError:
        return b""


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # the thread of the tunnels has nothing to finish
