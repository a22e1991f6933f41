"""Answers with the worker's home, Python and host name, its address for other workers, and a port that is free now."""

from __future__ import annotations

import os
import socket
import sys

from .frames import reply


def hello() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; asks the kernel which address it would use
            address = probe.getsockname()[0]
        except OSError:
            address = "127.0.0.1"
    with socket.socket() as listener:
        listener.bind(("", 0))
        port = listener.getsockname()[1]
    home, python = os.path.expanduser("~"), sys.version.split()[0]  # noqa: PTH111 (pathlib would double the start-up time)
    reply({"home": home, "python": python, "host": socket.gethostname(), "address": address, "port": port})
