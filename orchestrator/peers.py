"""Whose process holds the other end of a loopback connection, asked from both ends.

A worker's metadata server, to which no client sends a secret, answers only its own user's processes. And a client of the
emulator sends its token to nobody else: whoever listens where an emulator died may be anybody.

Linux is asked for that one socket (what /proc/net/tcp and tcp6 list, in a tenth of a millisecond however many there are).
Where it does not say, as on macOS, the processes of this user are looked through: nobody sees the sockets of others.
Whatever is not found is not ours: a peer that has closed, root beside another user, a user of another namespace.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from typing import Any

Address = tuple[str, int]
ESTABLISHED = 1
POLL_S = 0.0005  # a server that is not busy takes about as long to accept
# <linux/netlink.h>, <linux/sock_diag.h> and <linux/inet_diag.h>
SOCK_DIAG, BY_FAMILY, REQUEST = 4, 20, 1
HEADER, ASKED, ENDS, REST = struct.Struct("=IHHII"), struct.Struct("=BBBBI"), "!HH16s16s", struct.Struct("=IQ")
ANY_STATE, ANY_COOKIE = (1 << 32) - 1, (1 << 64) - 1
STATE_AT, OWNER_AT, OWNER = HEADER.size + 1, HEADER.size + 64, struct.Struct("=II")  # the owner's uid, the inode


def is_ours(connection: Any) -> bool:
    """`connection` is the accepted socket. True when a process of this user holds its other end now."""
    try:
        here, there = connection.getsockname()[:2], connection.getpeername()[:2]
        held = _held_by_us(there, here)
        if held is None:
            connection.getpeername()  # raises for one that was reset meanwhile: then there is nobody to look for
            held = _held_by_a_process(there, here)
        # A reset connection frees its pair of addresses for somebody else's: what was found is the peer only while
        # the connection stands.
        connection.getpeername()
    except OSError:
        return False
    return held


def expect_ours(connection: socket.socket, timeout_s: float) -> None:
    """`connection` was opened to a server that should be this user's: returns when that one has accepted it.

    PermissionError: a process of another user did. TimeoutError: none did in time. OSError: it was cut.
    """
    give_up_at = time.monotonic() + timeout_s
    while not is_ours(connection):
        here, there = connection.getsockname()[:2], connection.getpeername()[:2]
        if _held_by_us(there, here) is not None:
            _, uid, inode = _socket(there, here) or (0, 0, 0)
            if inode != 0 and uid != os.geteuid():
                raise PermissionError(errno.EACCES, "a process of another user answers there")
            if (_socket(here, there) or (0, 0, 0))[0] != ESTABLISHED:
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        if time.monotonic() > give_up_at:
            raise TimeoutError(errno.ETIMEDOUT, "nobody accepted the connection in time")
        time.sleep(POLL_S)


def _held_by_us(local: Address, remote: Address) -> bool | None:
    """As the kernel says; None: it says nothing about loopback sockets, not even about our own end."""
    if not hasattr(socket, "AF_NETLINK"):
        return None
    found = _socket(local, remote)
    if found is None:
        return None if _socket(remote, local) is None else False
    state, uid, inode = found
    # A socket that its process has closed has no inode, and root for an owner.
    return state == ESTABLISHED and inode != 0 and uid == os.geteuid()


def _socket(local: Address, remote: Address) -> tuple[int, int, int] | None:
    """State, uid and inode of the one TCP socket with these ends."""
    family = socket.AF_INET6 if ":" in local[0] else socket.AF_INET
    packed = (socket.inet_pton(family, host) for host, _ in (local, remote))
    ends = struct.pack(ENDS, local[1], remote[1], *packed) + REST.pack(0, ANY_COOKIE)
    asked = ASKED.pack(family, socket.IPPROTO_TCP, 0, 0, ANY_STATE) + ends
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as kernel:
            kernel.send(HEADER.pack(HEADER.size + len(asked), BY_FAMILY, REQUEST, 0, 0) + asked)
            said = kernel.recv(4096)
    except OSError:  # a sandbox, or a kernel without it
        return None
    if HEADER.unpack_from(said)[1] != BY_FAMILY:  # an error
        return None
    return said[STATE_AT], *OWNER.unpack_from(said, OWNER_AT)


def _held_by_a_process(local: Address, remote: Address) -> bool:
    import psutil

    for process in psutil.process_iter():
        try:
            if process.uids().effective != os.geteuid():
                continue
            for each in process.net_connections("tcp"):
                ends = [(end.ip.removeprefix("::ffff:"), end.port) for end in (each.laddr, each.raddr) if end]
                if ends == [local, remote] and each.status == psutil.CONN_ESTABLISHED:
                    return True
        except psutil.Error:
            continue
    return False
