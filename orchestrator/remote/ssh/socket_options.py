"""Options of every TCP socket to a worker, or to the relay that leads to one."""

import socket

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
