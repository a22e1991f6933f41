"""A node that runs pods as processes, and serves their logs as kubelet and containerd do: `PodApi` without a cluster.

What containerd does to a log: a line gets the time of its first byte, lines are split at 16 KiB into parts with times of their
own, and the carriage return of "\\r\\n" is dropped. What kubelet does: it joins the parts, filters them one by one by the time
that is asked for, and serves what rotation has left.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator.errors import CloudError, CloudUnavailable, Vanished
from orchestrator.hosts.ssh import agent
from orchestrator.places.gke.objects.pod_api import PodPhase, PodView
from tests.waiting import HANG_S

PART_BYTES = 16384
NO_TMP = {"TPUJOB_EMULATED_TRAINING": ""}  # its /tmp is that of this machine, to which others write, too


@dataclass(frozen=True)
class Part:
    """A record of a container's log file. `ends`: with it the line."""

    time: float
    content: bytes
    ends: bool


def archive_of(*members: tuple[str, bytes | None, str]) -> bytes:
    """An archive of files. The third is `x` for what can be run; content None: a link to the third."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, content, link in members:
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.linkname = tarfile.SYMTYPE, link
            else:
                member.size, member.mode = len(content), 0o755 if link == "x" else 0o644
            archive.addfile(member, io.BytesIO(content or b""))
    return made.getvalue()


def request(*scripts: tuple[str, str], archive: bytes | None = None, **keys: Any) -> dict[str, Any]:
    """A request of `vm/pod/pod.py`."""
    phases = [{"name": name, "script": script} for name, script in scripts]
    made = {"schema": 1, "run": "r1", "attempt": "r1-1", "phases": phases, "env": {"TPU_NAME": "tpujob-x"}}
    made.update(artifacts=[], inline_bytes=1 << 20, bucket=None, code_object=None)
    made.update(code_sha256=None if archive is None else hashlib.sha256(archive).hexdigest())
    made.update(max_duration_s=3600.0, coordinator_s=0.0, stall_s=None, max_restarts=0, hold_s=0, grace_s=10.0)
    return {**made, **keys}


def popen(
    place: Path,
    asked: Mapping[str, Any],
    archive: bytes | None,
    env: Mapping[str, str],
    *,
    python: str = sys.executable,
    stdout: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Lay out what a pod's program finds, and start it."""
    inside, run = place / "in", place / "run"
    for each in (inside, run):
        each.mkdir(parents=True, exist_ok=True)
    (inside / "agent.zip").write_bytes(agent.pod_archive())
    (inside / "request.json").write_text(json.dumps(asked))
    if archive is not None:
        (inside / "code.tar.gz").write_bytes(archive)
    own = {"TPUJOB_TERMINATION_LOG": str(place / "note"), "HOME": str(run)}
    return subprocess.Popen(
        [python, str(inside / "agent.zip"), "pod", str(inside), str(run)],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        env={**os.environ, **own, **NO_TMP, **env},
    )


def place(worker: int, *, slices: int = 1, hosts: int = 2) -> dict[str, Any]:
    """The variables of a pod as the manifest sets them."""
    return {
        "TPUJOB_SLICE": str(worker // hosts),
        "JOB_COMPLETION_INDEX": str(worker % hosts),
        "TPUJOB_SLICES": str(slices),
        "TPUJOB_HOSTS_PER_SLICE": str(hosts),
        "TPUJOB_POD_IP": f"127.0.1.{worker}",
        "TPUJOB_COORDINATOR_NAME": "tpujob-x-slice-0-0.tpujob-x",
        "TPUJOB_COORDINATOR_PORT": "23456",
    }


LEAPING = """
import os, time
def monotonic(real=time.monotonic, began=time.monotonic(), ahead={{}}):
    if not ahead and os.path.exists({now!r}):
        ahead.setdefault("s", began + {to_s!r} - real())
    return real() + sum(ahead.values())
time.monotonic = monotonic
"""


class Leap:
    """A clock of a pod's program. `now` lets it leap to so many seconds after the pod's beginning, however long it ran before.

    A pod has it with `path` as its PYTHONPATH. Supervisors, which Python isolates, keep the real clock.
    """

    def __init__(self, place: Path, to_s: float) -> None:
        place.mkdir()
        self.path, self._now = str(place), place / "now"
        (place / "sitecustomize.py").write_text(LEAPING.format(now=str(self._now), to_s=to_s))

    def now(self) -> None:
        self._now.touch()


class Stream:
    """A connection to a log. `cut_at`: it breaks after so many bytes; where it `is_quiet`, as if the log ended there."""

    def __init__(self, pod: Pod, since: float | None, cut_at: int | None, is_quiet: bool) -> None:
        self.pod, self.since, self.left, self.is_quiet = pod, since, cut_at, is_quiet
        self.closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        for line in self.pod.served(self.since, self.closed):
            sent = line[: self.left]
            yield sent
            if self.left is not None:
                self.left -= len(sent)
                if not self.left and self.is_quiet:
                    return
                if not self.left:
                    raise CloudUnavailable("the connection was cut")

    def close(self) -> None:
        self.pod.leave(self.closed)


@dataclass
class NodeLog:
    """The log of a container as a node keeps it."""

    parts: list[Part] = field(default_factory=list)
    rotated: int = 0  # so many parts are gone
    closed: bool = False  # nothing comes any more
    changed: threading.Condition = field(default_factory=threading.Condition)
    clock: Callable[[], float] = time.time

    def write(self, line: bytes) -> None:
        """A line as containerd gets it; without its end only from a container that was killed."""
        text = line[:-1] if line.endswith(b"\n") else line
        text = text[:-1] if line.endswith(b"\r\n") else text
        pieces = [text[at : at + PART_BYTES] for at in range(0, len(text), PART_BYTES)] or [b""]
        with self.changed:
            self.parts += [Part(self.clock(), piece, piece is pieces[-1]) for piece in pieces]
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def rotate(self, parts: int) -> None:
        with self.changed:
            self.rotated = max(self.rotated, parts)

    def served(
        self, since: float | None, left: threading.Event, *, follow: bool = True, timestamps: bool = True
    ) -> Iterator[bytes]:
        """The lines as kubelet sends them."""
        at, begins = 0, True
        while True:
            with self.changed:
                while follow and not (len(self.parts) > max(at, self.rotated) or self.closed or left.is_set()):
                    self.changed.wait()
                if left.is_set():
                    return
                at = max(at, self.rotated)
                new = self.parts[at:]
                if not new and (self.closed or not follow):
                    return
            for part in new:
                at += 1
                if since is not None and part.time < int(since):
                    continue
                head = stamp(part.time) + b" " if begins and timestamps else b""
                begins = part.ends
                yield head + part.content + (b"\n" if part.ends else b"")

    def leave(self, left: threading.Event) -> None:
        """Let one who reads it end."""
        left.set()
        with self.changed:
            self.changed.notify_all()


@dataclass(kw_only=True)
class Pod(NodeLog):
    """One container: its process, and its log as the node keeps it."""

    worker: int
    name: str
    place: Path
    process: subprocess.Popen[bytes] | None = None
    reason: str = ""
    rows: list[Any] = field(default_factory=list)  # of the index of its results, where it is written by hand
    contents: bytes = b""
    lines: int = 0  # control lines that were written by hand

    def start(self, asked: Mapping[str, Any], env: Mapping[str, str], archive: bytes | None) -> None:
        self.process = popen(self.place, asked, archive, {"TPUJOB_POD": self.name, **env})
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        for line in iter(process.stdout.readline, b""):
            self.write(line)
        process.wait()
        self.close()

    def says(self, **said: Any) -> None:
        """Write a control line by hand."""
        self.write(b"::tpujob " + json.dumps({"n": self.lines, "of": "main", **said}).encode() + b"\n")
        self.lines += 1

    def begins(self, phase: str = "main") -> None:
        self.says(of=None, pod={})
        self.says(of=phase, began=phase)

    def ends(self, rc: Any = 0, phase: str = "main") -> None:
        self.says(of=phase, ended=phase, rc=rc)

    def row(self, path: Any, content: bytes, packed: bytes | None = None, **more: Any) -> None:
        """Add a file to the results, and what stands for its content."""
        packed = zlib.compress(content) if packed is None else packed
        digest = hashlib.sha256(content).hexdigest()
        sizes = {"size_bytes": len(content), "packed_bytes": len(packed)}
        self.rows.append({"path": path, "sha256": digest, **sizes, **more})
        self.contents += packed

    def sends(self, line_bytes: int = 1 << 20) -> None:
        """Send the results, in lines of so many bytes, and the end."""
        whole = zlib.compress(json.dumps(self.rows).encode()) + self.contents
        for at in range(0, len(whole), line_bytes):
            self.says(results=base64.b64encode(whole[at : at + line_bytes]).decode())
        self.says(end={"rc": 0, "phase": "main", "results_bytes": len(whole)})
        self.close()

    def view(self) -> PodView:
        process = self.process
        rc = None if process is None else process.poll()
        ended = self.closed and (process is None or rc is not None)
        phase = PodPhase.RUNNING if not ended else PodPhase.SUCCEEDED if rc == 0 else PodPhase.FAILED
        place = self.place / "note"
        note = place.read_text() if ended and place.exists() else ""
        reason = (self.reason or ("Completed" if rc == 0 else "Error")) if ended else ""
        code = rc if rc is None or rc >= 0 else 128 - rc
        return PodView(self.name, self.worker, phase, node="node-1", rc=code, reason=reason, note=note)

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)


def stamp(time_s: float) -> bytes:
    """RFC 3339 with nanoseconds, as kubelet writes it."""
    whole, nanoseconds = int(time_s), int(time_s % 1 * 1e9)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z".encode()


class Node:
    """Several pods behind a `PodApi`. `cuts`: after how many bytes the next connections break; then they hold."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.all: dict[int, Pod] = {}
        self.cuts: list[int | None] = []
        self.cuts_are_quiet = False
        self.errors: list[CloudError | None] = []  # of the next connections to logs
        self.looks = 0  # how often its pods were looked at
        self.away = False  # the API does not answer
        self.streams: list[Stream] = []

    def pod(self, worker: int = 0) -> Pod:
        if worker not in self.all:
            name = f"tpujob-x-slice-0-{worker}-abcde"
            self.all[worker] = Pod(worker=worker, name=name, place=self.place / str(worker))
        return self.all[worker]

    def run(self, asked: Mapping[str, Any], worker: int = 0, archive: bytes | None = None, **env: str) -> Pod:
        pod = self.pod(worker)
        pod.start(asked, env, archive)
        return pod

    def pods(self) -> tuple[PodView, ...]:
        self.looks += 1
        if self.away:
            raise CloudUnavailable("the API server does not answer")
        return tuple(pod.view() for _, pod in sorted(self.all.items()))

    def log(self, pod: str, since: float | None = None) -> Stream:
        if self.away:
            raise CloudUnavailable("the API server does not answer")
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        found = next((each for each in self.all.values() if each.name == pod), None)
        if found is None:
            raise Vanished("the pod does not exist any more")
        stream = Stream(found, since, self.cuts.pop(0) if self.cuts else None, self.cuts_are_quiet)
        self.streams.append(stream)
        return stream

    def close(self) -> None:
        for stream in self.streams:
            stream.close()

    def end(self) -> None:
        """Kill what still runs. Their supervisors end what these have started."""
        self.close()
        for pod in self.all.values():
            if pod.process is not None:
                pod.process.kill()
                pod.process.wait(HANG_S)
