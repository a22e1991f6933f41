"""What a client sends to `receive`: a manifest, and the contents that the worker lacks."""

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.remote.shipping.sending import BLOCK_BYTES, encoded


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Tree:
    files: Mapping[str, bytes]
    executable: Sequence[str] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    directories: Sequence[str] = ()

    @property
    def manifest(self) -> bytes:
        files = [[path, sha256(data), len(data), int(path in self.executable)] for path, data in self.files.items()]
        shape = {"files": files, "links": list(self.links.items()), "directories": list(self.directories)}
        return json.dumps(shape).encode()

    @property
    def id(self) -> str:
        return sha256(self.manifest)

    def head(self) -> bytes:
        packed = zlib.compress(self.manifest)
        return b"%d\n%s" % (len(packed), packed)

    def stream(self) -> bytes:
        """All of it, for a worker that has nothing of it yet."""
        return self.head() + blocks(b"".join({sha256(data): data for data in self.files.values()}.values()))


def blocks(content: bytes) -> bytes:
    return b"".join(encoded(content[at : at + BLOCK_BYTES]) for at in range(0, len(content), BLOCK_BYTES))
