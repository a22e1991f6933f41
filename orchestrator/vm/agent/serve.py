"""The agent of one connection: runs the verbs that its client asks for, side by side, over its own stdin and stdout.

Frames go both ways: a header of kind, stream and size, then the content. The client sends `R` (a verb and its arguments, on a
new stream), `D` (data for the verb's stdin), `F` (the end of it) and `X` (the stream is not wanted any more); the agent sends
`D` (what the verb wrote to its stdout) and `E` (its end). `C` grants credit: each side sends so much data of a stream as the
other one has room for, so that a stream that is not read stops by itself and holds up no other. `E` and `C` have no content:
their size is the exit code (256 and more: a signal), and the bytes that may follow.

A verb runs in a forked child, which takes some 2 ms; a new Python takes 25. There are no threads, so that `start` may fork its
supervisor. When this process ends, the pipes to its children close, which is to them what a cut connection is to a command of
sshd; supervisors have no such pipe, and live on. `hosts.ssh.agent_link` is the other end.

Two verbs are the client's presence. `hello` answers with the worker's home, Python and host name, its address for other
workers, and a port that is free now. `heartbeat` writes each line of stdin to the file that the watchdog reads;
`hosts.fleet.follow` keeps one such call open. The first line is answered once it is written; after that, silence means
success and the end of the call means failure.
"""

from __future__ import annotations

import gc
import os
import select
import struct
import sys
from collections.abc import Callable
from typing import NoReturn

from ..files.frames import reply, widen, write


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


HEADER = struct.Struct(">cII")
WINDOW_BYTES = 4 << 20  # of a stream, in each direction
GRANT_BYTES = WINDOW_BYTES // 4
REQUEST_BYTES = 1 << 20
READ_BYTES = 256 << 10
HEAD_BYTES = 4 << 10  # of the input at once, where a frame may begin
QUEUE_BYTES = 1 << 20  # for the client; beyond it no verb is read
BULK_BYTES = 32 << 10  # a frame of this size announces more
REAP_S = 0.005  # a verb that has closed its output is about to end
SIGNALS = 256


class Damaged(Exception):
    """The client sent what is no frame."""


class Stream:
    """A verb that runs, and this end of its pipes; -1: closed."""

    def __init__(self, pid: int, stdin: int, stdout: int) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.waiting: list[memoryview] = []  # until the verb reads it
        self.input_ended = False
        self.taken = 0  # of the input, since credit was granted last
        self.credit = WINDOW_BYTES  # for the output

    def feed(self, piece: memoryview) -> None:
        """Give the verb data, as far as it takes it now. What a verb that reads no more gets is discarded, as by sshd."""
        if not self.waiting:
            piece = piece[self._write(piece) :]
        if piece:
            self.waiting.append(piece)

    def feed_on(self) -> None:
        """Go on with what waits, and close the input after it."""
        while self.waiting:
            piece = self.waiting[0]
            written = self._write(piece)
            if written < len(piece):
                self.waiting[0] = piece[written:]
                return
            del self.waiting[0]
        if self.input_ended:
            self.close_input()

    def _write(self, piece: memoryview) -> int:
        try:
            written = len(piece) if self.stdin < 0 else os.write(self.stdin, piece)
        except BlockingIOError:
            written = 0
        except BrokenPipeError:
            self.close_input()
            written = len(piece)
        self.taken += written
        return written

    def close_input(self) -> None:
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def close_output(self) -> None:
        if self.stdout >= 0:
            os.close(self.stdout)
            self.stdout = -1


class Agent:
    """`call` runs a verb with its arguments, in a child, and returns its exit code. `prepare` comes before the fork: what it
    imports is there for all verbs."""

    def __init__(self, call: Callable[[str, list[str]], int], prepare: Callable[[str], None]) -> None:
        self.call, self.prepare = call, prepare
        self.streams: dict[int, Stream] = {}
        self.closed: list[int] = []  # processes of streams that the client closed
        self.rest = b""  # of the input: less than a frame
        self.into: Stream | None = None  # of the data frame that is being read
        self.left = 0  # bytes of that frame
        self.queue: list[memoryview] = []  # for the client
        self.queued_bytes = 0
        self.is_wide = False
        self.can_splice = hasattr(os, "splice")
        self.null = os.open(os.devnull, os.O_RDWR)
        os.set_blocking(0, False)
        os.set_blocking(1, False)

    def run(self) -> None:
        """Serve until the client is gone. Raises Damaged."""
        while True:
            readable, writable = self._wait()
            if 0 in readable and not self._receive():
                return
            for number, stream in list(self.streams.items()):
                if stream.stdin in writable:
                    stream.feed_on()
                if stream.stdout in readable:
                    self._read(number, stream)
                if stream.taken >= GRANT_BYTES:
                    self._queue(b"C", number, stream.taken)
                    stream.taken = 0
            self._reap()
            try:
                self._flush()
            except BrokenPipeError:
                return

    def _wait(self) -> tuple[list[int], list[int]]:
        streams = self.streams.values()
        reads, writes = [0], [1] if self.queue else []
        writes += [stream.stdin for stream in streams if stream.waiting]
        if self.queued_bytes < QUEUE_BYTES:
            reads += [stream.stdout for stream in streams if stream.stdout >= 0 and stream.credit > 0]
        ending = any(stream.stdout < 0 for stream in streams)
        return select.select(reads, writes, [], REAP_S if ending else None)[:2]

    # -- from the client --

    def _receive(self) -> bool:
        """Read frames; return False at the end of the connection."""
        if self.left and self._pass_on():
            return True
        try:
            data = os.read(0, min(self.left, READ_BYTES) if self.left else HEAD_BYTES)
        except BlockingIOError:
            return True
        if not data:
            return False
        if self.rest:
            data = self.rest + data
        view, at, length = memoryview(data), 0, len(data)
        while at < length:
            if self.left:
                piece = view[at : at + self.left]
                at += len(piece)
                self.left -= len(piece)
                if self.into is not None:
                    self.into.feed(piece)
            elif length - at < HEADER.size:
                break
            else:
                kind, number, size = HEADER.unpack_from(data, at)
                if kind == b"R":
                    if size > REQUEST_BYTES:
                        raise Damaged(f"a request of {size} bytes")
                    if at + HEADER.size + size > length:
                        break
                    at += HEADER.size
                    self._start(number, str(view[at : at + size], "utf-8"))
                    at += size
                else:
                    at += HEADER.size
                    self._take(kind, self.streams.get(number), number, size)
        self.rest = bytes(view[at:])
        return True

    def _pass_on(self) -> bool:
        """Move data from pipe to pipe without copying it, where that is possible (Linux, from Python 3.10 on)."""
        stream = self.into
        if not self.can_splice or stream is None or stream.waiting or stream.stdin < 0:
            return False
        try:
            moved: int = os.splice(0, stream.stdin, self.left)
        except (BlockingIOError, BrokenPipeError):
            return False
        except OSError:  # stdin is none of the kinds that can
            self.can_splice = False
            return False
        self.left -= moved
        stream.taken += moved
        return moved > 0

    def _take(self, kind: bytes, stream: Stream | None, number: int, size: int) -> None:
        """Frames of a stream that has ended may still be under way: they are dropped."""
        if kind == b"D":
            self.into, self.left = stream, size
            if size >= BULK_BYTES and not self.is_wide:
                self.is_wide = True
                widen(0)
        elif kind not in b"CFX":
            raise Damaged(f"a frame of kind {kind!r}")
        elif stream is None:
            return
        elif kind == b"C":
            stream.credit += size
        elif kind == b"F":
            stream.input_ended = True
            stream.feed_on()
        else:
            self._close(number, stream)

    def _start(self, number: int, request: str) -> None:
        verb, *arguments = request.split("\0")
        try:
            self.prepare(verb)
        except Exception:  # noqa: S110 - the child says the same, as the answer of the verb
            pass
        stdin, to_verb = os.pipe()
        from_verb, stdout = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._become(verb, arguments, stdin, stdout, (to_verb, from_verb))
        os.close(stdin)
        os.close(stdout)
        os.set_blocking(to_verb, False)
        os.set_blocking(from_verb, False)  # it may have the number of a pipe that could be read, and was closed since
        self.streams[number] = Stream(pid, to_verb, from_verb)

    def _become(self, verb: str, arguments: list[str], stdin: int, stdout: int, ours: tuple[int, int]) -> NoReturn:
        """Keep nothing that belongs to the agent: a pipe of another verb would not close while this one runs."""
        code = 1
        try:
            for fd in ours:
                os.close(fd)
            for stream in self.streams.values():
                stream.close_input()
                stream.close_output()
            for fd, target in ((stdin, 0), (stdout, 1), (self.null, 2)):
                os.dup2(fd, target)
                os.close(fd)
            gc.freeze()  # what the agent has imported need not be looked through, nor copied for that
            gc.enable()
            code = self.call(verb, arguments)
            sys.stdout.flush()
        finally:
            os._exit(code)

    def _close(self, number: int, stream: Stream) -> None:
        stream.close_input()
        stream.close_output()
        del self.streams[number]
        if self.into is stream:
            self.into = None
        self.closed.append(stream.pid)
        self._queue(b"E", number, 0)

    # -- to the client --

    def _read(self, number: int, stream: Stream) -> None:
        try:
            data = os.read(stream.stdout, min(stream.credit, READ_BYTES))
        except BlockingIOError:
            return
        if data:
            stream.credit -= len(data)
            self._queue(b"D", number, len(data), data)
        else:
            stream.close_output()

    def _reap(self) -> None:
        self.closed = [pid for pid in self.closed if os.waitpid(pid, os.WNOHANG)[0] == 0]
        for number, stream in list(self.streams.items()):
            if stream.stdout < 0:
                pid, status = os.waitpid(stream.pid, os.WNOHANG)
                if pid:
                    stream.close_input()
                    del self.streams[number]
                    code = SIGNALS + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                    self._queue(b"E", number, code)

    def _queue(self, kind: bytes, number: int, size: int, content: bytes = b"") -> None:
        self.queue.append(memoryview(HEADER.pack(kind, number, size) + content))
        self.queued_bytes += HEADER.size + len(content)

    def _flush(self) -> None:
        while self.queue:
            try:
                written = os.write(1, self.queue[0])
            except BlockingIOError:
                return
            self.queued_bytes -= written
            if written < len(self.queue[0]):
                self.queue[0] = self.queue[0][written:]
            else:
                del self.queue[0]


def serve(name: str) -> None:
    """Say `tpujob:NAME`, after whatever a login shell has said, and serve."""
    from ..__main__ import load, run  # which imports this module

    os.closerange(3, 256)  # whatever a login shell left open is not for the job
    write(b"\ntpujob:%s\n" % name.encode())
    Agent(run, load).run()
