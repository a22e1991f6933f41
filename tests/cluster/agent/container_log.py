"""The log of a container as containerd writes it and the kubelet reads it.

Each line has the time of its end in nanoseconds. A line of more than 16 KiB is stored in parts, each with its own time; it is
served as one line with the time of its first part. A file that is full is rotated away: the kubelet serves the newest file.
"""

import asyncio
import datetime
import fnmatch
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from tests.cluster.agent.kubelet import Kubelet
from tests.cluster.agent.nodes import Node
from tests.cluster.plane.processes import Authority

PART_BYTES = 16384
ROTATED_AT_BYTES = 10 * 2**20  # containerLogMaxSize of the kubelet


@dataclass(frozen=True, slots=True)
class Entry:
    at_ns: int
    data: bytes
    ends_line: bool


class ContainerLog:
    """What one container printed, stdout and stderr as they came."""

    def __init__(self, rotated_at_bytes: int = ROTATED_AT_BYTES) -> None:
        self.rotated_at_bytes = rotated_at_bytes
        self._entries: list[Entry] = []
        self._size_bytes, self._file = 0, 0
        self._ended, self._changed = False, asyncio.Event()
        self._last_ns = 0

    def write(self, data: bytes, ends_line: bool) -> None:
        """Append a line without its newline, or a part of one."""
        self._last_ns = max(time.time_ns(), self._last_ns + 1)
        self._entries.append(Entry(self._last_ns, data, ends_line))
        self._size_bytes += len(data) + 45
        if self._size_bytes > self.rotated_at_bytes:
            self.rotate()
        self._tell()

    def rotate(self) -> None:
        """Begin a new file; what was written so far cannot be read any more, except by who follows already."""
        self._entries, self._size_bytes, self._file = [], 0, self._file + 1
        self._tell()

    def end(self) -> None:
        self._ended = True
        self._tell()

    def last(self, lines: int) -> bytes:
        return b"".join(entry.data + b"\n" * entry.ends_line for entry in self._entries[-lines:])

    async def read(
        self, follow: bool = False, timestamps: bool = False, since_ns: int | None = None, tail: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yield it as the kubelet serves it; with `follow`, until the container ends."""
        entries, at_start = self._entries, True
        position = (
            0 if tail is None else max(0, len(entries) - tail)
        )  # parts of long lines count, as the kubelet counts
        while True:
            if position < len(entries):
                entry = entries[position]
                position += 1
                head = _written(entry.at_ns) + b" " if timestamps and at_start else b""
                at_start = (
                    entry.ends_line
                )  # also of what is left out: the rest of a long line then comes without a time
                if since_ns is not None and entry.at_ns < since_ns:
                    continue
                yield head + entry.data + (b"\n" if entry.ends_line else b"")
            elif entries is not self._entries:  # rotated: what follows is in the new file
                entries, position = self._entries, 0
            elif self._ended or not follow:
                return
            else:
                await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def capture(stream: asyncio.StreamReader, log: ContainerLog) -> None:
    """Write what comes on a pipe to the log, until the pipe ends. A last line without its newline counts as a line."""
    rest = b""
    while data := await stream.read(65536):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            log.write(_last_part(log, line), ends_line=True)
        rest = _last_part(log, rest)
    if rest:
        log.write(rest, ends_line=True)
    log.end()


def _last_part(log: ContainerLog, line: bytes) -> bytes:
    """Write the parts of a line but for the last one, and return that."""
    while len(line) > PART_BYTES:
        log.write(line[:PART_BYTES], ends_line=False)
        line = line[PART_BYTES:]
    return line


def _written(at_ns: int) -> bytes:
    seconds, rest = divmod(at_ns, 10**9)
    text = datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{rest:09d}Z".encode()


def parse_time(text: str) -> int:
    """Return an RFC 3339 time as nanoseconds."""
    at = datetime.datetime.fromisoformat(text)
    return int(at.timestamp()) * 10**9 + at.microsecond * 1000


PORT = 10250


@dataclass
class Cut:
    """The connections of the logs of these pods end in the middle, `times` times, after so many bytes."""

    namespace: str
    pod: str  # a pattern
    after_bytes: int
    times: int


class KubeletServer:
    """Serves the logs of all nodes."""

    kubelet: Kubelet

    def __init__(self, authority: Authority) -> None:
        self.cuts: list[Cut] = []
        self._authority = authority
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        app.router.add_route("*", "/{verb:(exec|attach|portForward|run)}/{rest:.*}", self._refuse)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    async def open(self, node: Node) -> None:
        """Listen on the address of a node."""
        pair = self._authority.issue(f"system:node:{node.name}", ["system:nodes"], [node.address], folder=node.name)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(pair.certificate, pair.key)
        tls.load_verify_locations(str(self._authority.certificate))
        tls.verify_mode = ssl.CERT_REQUIRED
        if self._runner.server is None:
            await self._runner.setup()
        site = web.TCPSite(self._runner, node.address, PORT, ssl_context=tls)
        await site.start()
        node.close = _once(site.stop)

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        namespace, name, query = request.match_info["namespace"], request.match_info["pod"], request.query
        running = self.kubelet.find(namespace, name)
        if running is None:
            return web.Response(status=404, text=f'pod "{name}" does not exist')
        if running.process is None:
            container = request.match_info["container"]
            why = f'container "{container}" in pod "{name}" is waiting to start: {running.waiting}'
            return web.Response(status=400, text=why)
        since = query.get("sinceTime")
        pieces = running.log.read(
            follow=query.get("follow") == "true",
            timestamps=query.get("timestamps") == "true",
            since_ns=parse_time(since) if since else None,
            tail=int(query["tailLines"]) if "tailLines" in query else None,
        )
        answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        cut, sent = self._next_cut(namespace, name), 0
        async for piece in pieces:
            if cut is not None and sent + len(piece) > cut.after_bytes:
                await answer.write(piece[: cut.after_bytes - sent])
                request.transport.abort()
                return answer
            await answer.write(piece)
            sent += len(piece)
        await answer.write_eof()
        return answer

    def _next_cut(self, namespace: str, pod: str) -> Cut | None:
        for cut in self.cuts:
            if cut.times > 0 and cut.namespace == namespace and fnmatch.fnmatchcase(pod, cut.pod):
                cut.times -= 1
                return cut
        return None

    async def _refuse(self, request: web.Request) -> web.Response:
        return web.Response(status=501, text=f"the node agent of the tests has no {request.match_info['verb']}")


def _once(close: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    done = False

    async def closing() -> None:
        nonlocal done
        if not done:
            done = True
            await close()

    return closing
