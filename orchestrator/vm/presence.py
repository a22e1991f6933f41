"""What the client asks before and while it is attached: `hello` and `heartbeat`.

`hello` answers with the worker's home, Python and host name, its address for other workers, and a port that is free now.

Heartbeats of an attached client: each line of stdin becomes the content of the file that the watchdog reads.

`remote.fleet.heartbeats` keeps one such call open. The first line is answered once it is written; after that, silence means
success and the end of the call means failure.
"""

from __future__ import annotations

import os
import sys

from .frames import reply


def heartbeat() -> None:
    directory = os.environ.get("TPUJOB_WATCHDOG_DIR", "/run/tpujob")
    os.makedirs(directory, exist_ok=True)  # noqa: PTH103 (pathlib would double the start-up time)
    draft = f"{directory}/.heartbeat.{os.getpid()}"
    answered = False
    for line in iter(sys.stdin.buffer.readline, b""):
        word = line.strip()[:200]
        try:
            with open(draft, "wb") as file:  # noqa: PTH123
                file.write(word)
            os.chmod(draft, 0o644)  # noqa: PTH101
            os.replace(draft, f"{directory}/heartbeat")  # noqa: PTH105
        except OSError:  # a full disk: over the last one
            with open(f"{directory}/heartbeat", "r+b") as file:  # noqa: PTH123
                file.write(word)
        if not answered:
            reply({"heartbeat": directory})
            answered = True


def hello() -> None:
    import socket  # heartbeats need none of it

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
