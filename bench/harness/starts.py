"""How many programs start below a process: counted from the kernel's own events, so that none is too short-lived to be seen.

The process connector of Linux tells every fork and every exec; only root may listen to it. A program counts if the process
that executes it descends from the watched one, detached or not.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time

CONNECTOR, PROCESSES, LISTEN = 11, 1, 1  # NETLINK_CONNECTOR, CN_IDX_PROC and CN_VAL_PROC, PROC_CN_MCAST_LISTEN
FORK, EXEC, EXIT = 1, 2, 0x80000000
AT = 16 + 20  # behind the heads of netlink and of the connector: what, cpu, time in ns, and the event's own numbers
FORCED_BUFFER, BUFFER_BYTES = 33, 16 << 20  # SO_RCVBUFFORCE: an overflow is an error
SETTLES_S = 0.2


class Starts:
    """Counts from its creation until `close`, in a thread. Raises PermissionError, or OSError where there is no such thing."""

    def __init__(self, root: int) -> None:
        self._below = {root}
        self._count = 0
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, CONNECTOR)
        self._socket.setsockopt(socket.SOL_SOCKET, FORCED_BUFFER, BUFFER_BYTES)
        self._socket.bind((0, PROCESSES))
        request = struct.pack("=IIIIHHI", PROCESSES, PROCESSES, 0, 0, 4, 0, LISTEN)
        self._socket.send(struct.pack("=IHHII", 16 + len(request), 3, 0, 0, os.getpid()) + request)
        self._socket.settimeout(SETTLES_S)
        self._open, self._failure = True, ""
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def count(self) -> int:
        """How many have started so far; raises RuntimeError if some events were lost."""
        time.sleep(SETTLES_S)
        if self._failure:
            raise RuntimeError(self._failure)
        with self._lock:
            return self._count

    def close(self) -> None:
        self._open = False
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        while self._open:
            try:
                message = self._socket.recv(4096)
            except TimeoutError:
                continue
            except OSError as error:
                self._failure = f"events of processes were lost: {error}"
                return
            self._take(message)

    def _take(self, message: bytes) -> None:
        what, _, _, pid, group, *child = struct.unpack_from("=IIQIIII", message.ljust(AT + 32, b"\0"), AT)
        with self._lock:
            if what == FORK and group in self._below:
                self._below.add(child[1])
            elif what == EXEC and group in self._below:
                self._count += 1
            elif what == EXIT and pid == group:
                self._below.discard(group)


def watch(root: int) -> Starts | None:
    """Count below this process; None where that is not allowed."""
    try:
        return Starts(root)
    except (AttributeError, OSError):
        return None
