"""The agent's verbs, as `remote` calls them over SSH: `python3 agent.pyz VERB ARGS…`. Every answer is one line of JSON."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from . import pack, stream, supervisor
from .phase import Phase, bundle_path, private
from .wire import reply


def hello() -> None:
    """Who answers here, at which address other workers reach it, and a port that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; asks the kernel which address it would use
            address = probe.getsockname()[0]
        except OSError:
            address = "127.0.0.1"
    with socket.socket() as listener:
        listener.bind(("", 0))
        port = listener.getsockname()[1]
    python = platform.python_version()
    reply({"home": str(Path.home()), "python": python, "host": socket.gethostname(), "address": address, "port": port})


def receive(sha256: str) -> None:
    """A bundle on stdin, unless it is here. Its content is checked before it gets its name; then the name is trusted."""
    path = bundle_path(sha256)
    reply({"have": path.exists()})
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{sha256}.{os.getpid()}")
    digest = hashlib.sha256()
    try:
        with open(draft, "wb", opener=private) as file:
            for piece in iter(lambda: os.read(0, 1 << 20), b""):
                digest.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        if digest.hexdigest() != sha256:
            raise ValueError("the bundle arrived cut or changed: its content is not what its name says")
        draft.replace(path)
    finally:
        if draft.exists():
            draft.unlink()
    reply({"stored": path.stat().st_size})


def status(attempt: str, name: str) -> None:
    reply(Phase(attempt, name).status())


VERBS: dict[str, Callable[..., None]] = {
    "hello": hello,
    "receive": receive,
    "start": supervisor.start,
    "status": status,
    "follow": stream.follow,
    "stop": supervisor.stop,
    "pack": pack.pack,
}


def main(argv: list[str]) -> int:
    os.umask(0o077)
    try:
        VERBS[argv[1]](*argv[2:])
    except BrokenPipeError:
        return 1  # nobody listens any more
    except Exception as error:
        reply({"error": f"{type(error).__name__}: {error}"})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
