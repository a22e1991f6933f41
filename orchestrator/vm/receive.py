"""Receives a bundle on stdin, unless the worker has it. The content is verified before the file gets its name."""

from __future__ import annotations

import hashlib
import os

from .frames import reply
from .phase import bundle_path, private


def receive(sha256: str) -> None:
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
        draft.unlink(missing_ok=True)
    reply({"stored": path.stat().st_size})
