"""SHA-256 of contents: of small ones by the interpreter's own code, since that of OpenSSL takes 4 ms to load on each worker."""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself takes 5 ms to import, on each of many short calls
if TYPE_CHECKING:
    from typing import Any

SMALL_BYTES = 1 << 20


def sha256(size_bytes: int) -> Any:
    """Return a hash object for about so many bytes."""
    if size_bytes < SMALL_BYTES:
        try:
            from _sha256 import sha256 as small  # type: ignore[import-not-found,unused-ignore]  # until Python 3.11

            return small()
        except ImportError:
            pass
    import hashlib

    return hashlib.sha256()


def of(data: bytes) -> str:
    """Return the hash in hexadecimal."""
    digest = sha256(len(data))
    digest.update(data)
    return str(digest.hexdigest())
