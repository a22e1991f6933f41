"""Download the published IDX files from a public mirror to the cache, and check them by SHA-256.

Without a network this fails within seconds: a mirror that does not answer within `OPEN_TIMEOUT_S`, including the lookup of its
name, is not used for the other files.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

OPEN_TIMEOUT_S = 4.0
FILE_TIMEOUT_S = 120.0
_CHUNK_BYTES = 1 << 18


class DownloadFailed(Exception):
    """No mirror served all files. The message has the error of each mirror."""


@dataclass(frozen=True)
class PublishedFile:
    mirrors: tuple[str, ...]
    sha256: dict[str, str]


PUBLISHED = {
    "mnist": PublishedFile(
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    "fashion-mnist": PublishedFile(
        (
            # Zalando's bucket serves plain HTTP only; the hashes below protect both downloads.
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        {
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
}


def download(name: str, published: PublishedFile, directory: Path, say: Callable[[str], None]) -> str:
    """Download the files that are missing or damaged in `directory`; return their origin. Raises DownloadFailed."""
    missing = {file: sha for file, sha in published.sha256.items() if not _is_intact(directory / file, sha, say)}
    if not missing:
        return "cache"
    mirrors, reasons = list(published.mirrors), []
    began, size_bytes = time.monotonic(), 0
    used: list[str] = []
    for file, sha in missing.items():
        while mirrors:
            host = urlsplit(mirrors[0]).netloc
            try:
                content = _fetch(mirrors[0] + file, sha)
                _keep(directory / file, content)
            except (OSError, HTTPException, ValueError) as error:
                reasons.append(f"{host}: {getattr(error, 'reason', None) or error}")
                mirrors.pop(0)
                continue
            size_bytes += len(content)
            used += [host] if host not in used else []
            break
        else:
            raise DownloadFailed(f"{name} cannot be downloaded: {'; '.join(reasons)}")
    took_s = time.monotonic() - began
    say(f"{name}: {size_bytes / 1e6:.1f} MB from {', '.join(used)} in {took_s:.1f} s, sha256 as published")
    return f"downloaded from {', '.join(used)}"


def _is_intact(path: Path, sha: str, say: Callable[[str], None]) -> bool:
    if not path.is_file():
        return False
    if hashlib.sha256(path.read_bytes()).hexdigest() == sha:
        return True
    say(f"{path}: differs from the published file; downloading it again")
    return False


def _fetch(url: str, sha: str) -> bytes:
    deadline = time.monotonic() + FILE_TIMEOUT_S
    content = bytearray()
    with _open(url) as response:
        while chunk := response.read(_CHUNK_BYTES):
            content += chunk
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url} took longer than {FILE_TIMEOUT_S:.0f} s")
    if hashlib.sha256(content).hexdigest() != sha:
        raise ValueError(f"{url} has another sha256 than the published file")
    return bytes(content)


def _open(url: str) -> HTTPResponse:
    """Open `url` in a thread that is abandoned after `OPEN_TIMEOUT_S`: the lookup of a host name has no timeout."""
    result: list[HTTPResponse | Exception] = []

    def request() -> None:
        try:
            result.append(urllib.request.urlopen(url, timeout=OPEN_TIMEOUT_S))  # noqa: S310 (constant URLs)
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(OPEN_TIMEOUT_S)
    if not result:
        raise TimeoutError(f"no answer within {OPEN_TIMEOUT_S:.0f} s")
    if isinstance(result[0], Exception):
        raise result[0]
    return result[0]


def _keep(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)
