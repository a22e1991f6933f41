"""Sockets: options that notice a dead peer, and which user's process holds the other end of a loopback connection, checked
from either end.

An emulated worker's metadata server, to which no client sends a secret, replies only to processes of its own user. A client of
the emulator sends its token only to a process of its own user: after the end of an emulator any user may listen on its port.

Linux is asked for that one socket (as in /proc/net/tcp and tcp6; a tenth of a millisecond, however many there are). Where
the system does not answer, as on macOS, the sockets of this user's processes are searched; other sockets are not visible.
A peer that is not found is not ours: it has closed, or is root beside another user, or a user of another namespace."""

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
    """Return whether a process of this user holds the other end of this accepted socket now."""
    try:
        here, there = connection.getsockname()[:2], connection.getpeername()[:2]
        held = _held_by_us(there, here)
        if held is None:
            connection.getpeername()  # raises for one that was reset meanwhile: then there is no peer to search for
            held = _held_by_a_process(there, here)
        # A reset connection frees its pair of addresses for another one: what was found is the peer only while the
        # connection is open.
        connection.getpeername()
    except OSError:
        return False
    return held


def expect_ours(connection: socket.socket, timeout_s: float) -> None:
    """Return once a process of this user has accepted `connection`, which was opened to it.

    Raises PermissionError if a process of another user accepts it, TimeoutError if none does in time, OSError if it is cut.
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
            raise TimeoutError(errno.ETIMEDOUT, "no process accepted the connection in time")
        time.sleep(POLL_S)


def _held_by_us(local: Address, remote: Address) -> bool | None:
    """Return it by the kernel's answer; None where the kernel does not even know this process's own end."""
    if not hasattr(socket, "AF_NETLINK"):
        return None
    found = _socket(local, remote)
    if found is None:
        return None if _socket(remote, local) is None else False
    state, uid, inode = found
    # A socket that its process has closed has no inode, and root for an owner.
    return state == ESTABLISHED and inode != 0 and uid == os.geteuid()


def _socket(local: Address, remote: Address) -> tuple[int, int, int] | None:
    """Return state, uid and inode of the one TCP socket with these ends; None: the kernel does not answer, or knows none."""
    family = socket.AF_INET6 if ":" in local[0] else socket.AF_INET
    packed = (socket.inet_pton(family, host) for host, _ in (local, remote))
    ends = struct.pack(ENDS, local[1], remote[1], *packed) + REST.pack(0, ANY_COOKIE)
    asked = ASKED.pack(family, socket.IPPROTO_TCP, 0, 0, ANY_STATE) + ends
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as kernel:
            kernel.send(HEADER.pack(HEADER.size + len(asked), BY_FAMILY, REQUEST, 0, 0) + asked)
            reply = kernel.recv(4096)
    except OSError:  # a sandbox, or a kernel without it
        return None
    if HEADER.unpack_from(reply)[1] != BY_FAMILY:  # an error
        return None
    return reply[STATE_AT], *OWNER.unpack_from(reply, OWNER_AT)


def _held_by_a_process(local: Address, remote: Address) -> bool:
    import psutil  # only on macOS, and where the kernel does not tell

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


SILENCE_S = 20.0  # a connection on which sent data stays unacknowledged for so long is dead


def set_options(sock: socket.socket) -> None:
    """Set what paramiko leaves out: NODELAY (a small command would wait 40 ms) and keepalive (to notice a dead peer)."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wanted = {
        "TCP_KEEPIDLE": 5,
        "TCP_KEEPALIVE": 5,  # macOS
        "TCP_KEEPINTVL": 5,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": int(SILENCE_S * 1000),
    }
    for name, value in wanted.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
