"""The program of a pod: `python3 IN/agent.zip pod IN RUN` runs a job as the agent of a TPU VM does, without a client.

IN has `request.json`, `agent.zip`, and `code.tar.gz` where the code fits into a ConfigMap. The keys of the request:

- `schema` 1; `run`: its id, TPUJOB_RUN of the job; TPUJOB_ATTEMPT is `<run>-<start>` (`starts`)
- `max_restarts`: how often the cluster may start the job again (`on_preemption: restart`), or 0
- `hold_s`: so long a job of several pods that fails waits, before it says so, whether the cluster took another pod away; or 0
- `grace_s`: what the job has after SIGTERM
- `phases`: [{"name": "setup" | "main", "script": bash}], one after the other; the first that fails is the last
- `env`: variables of the job, besides those of the pod, TPU_NAME and TPUJOB_TOPOLOGY among them; nothing secret
- `code_sha256`: of `code.tar.gz`, or of what `code_object` (gs://BUCKET/NAME, or null) names; null: the job has no code
- `artifacts`: patterns of results below the working directory, besides the directory TPUJOB_ARTIFACTS
- `beside`: whether what else the job writes in its directory and its home goes where they go, or else is named
- `inline_bytes`: without a bucket, how much of the results, compressed, may go into the log
- `bucket`: gs://BUCKET/PREFIX, where all results go, as PREFIX/<run>/worker<i>/…, with their index; or null
- `max_log`: how much of the log of a phase is kept, beginning and end (`stream`)
- `coordinator_s`: how long the address of the first pod is waited for
- `max_duration_s`, counted from here on; `stall_s`: the longest silence of `main`, or null
- `record`: of the run, for other machines of its owner; nothing here reads it

The phases run under the supervisor, with the files of `phases` below RUN/<attempt>/. Their log goes to stdout, between control
lines (`pod_output`), of which each has one of these keys:

- `pod`: {"schema", "run", "attempt", "worker", "workers"}, the first line; `say`: a sentence for the user
- `began`: a phase
- `left_out`: how many bytes of the log are left out before this line
- `ended`: a phase, with "rc" (null: unknown), "signal", "stopped", "why", "unreachable" (servers), "log_bytes"
- `metrics`: lines of worker 0's metrics.jsonl, compressed by zlib, in base64; "" says that the file begins anew
- `sent`: how many of `files` are in the bucket, a sign of life
- `results`: without a bucket, the next piece of the results, in base64: their index, a JSON list compressed by zlib, then the
  contents of the files that have `packed_bytes` there, each compressed by zlib (`results`)
- `end`: the last line: the termination message, below

The termination message (/dev/termination-log, or the file that TPUJOB_TERMINATION_LOG names) is JSON: {"schema": 1, "phase":
the last that began, "rc": its code, "why": null or a key of CODES, "detail": a sentence or null, "files": sent,
"results_bytes": of those in the log, null before the job begins}. It is written again at each step, so that it tells where a
pod was that was killed.

The exit code is that of the job; 124 at `max_duration_s`, 143 after SIGTERM, 71 after silence or without a job, 70 for a start
that is one too many, 65 if only its results did not reach the bucket. A JobSet that restarts does so after 71 and 143: of a job
that ends with one of these by itself it is 1.
"""

# Paths are text, as in `phases`.
# ruff: noqa: PTH100, PTH103, PTH112, PTH118, PTH119, PTH202
from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from ..agent.stream import BoundedLog, MetricsTail
from ..buckets.data_objects import Failed, Source
from ..files import phases
from ..files.frames import PREFIX
from ..files.phases import PhaseFiles
from .limits import LAST_MINUTE_S, Limits
from .output import Output
from .results import Results
from .start import CodeRefused, Place, unpack
from .starts import Starts

SCHEMA = 1
CODES = {"deadline": 124, "stopped": 143, "stalled": 71, "failed": 71, "lost": 71, "restarts": 70}
RESTART_CODES = (71, 143)  # after which a cluster may start the job again
NOT_SENT = 65
LOOK_S, LOOK_IDLE_S, IDLE_S = 0.04, 0.2, 10.0
TURN_PIECES = 16  # of log, before a look at everything else
DRAIN_S = 20.0  # for the log after the end of its phase: TPUs are billed
TAIL_BYTES = 1 << 20  # of it, where that is not enough
METRICS_BYTES = 9000  # of a control line, before base64, however badly they are compressed
DETAIL_CHARS = 300  # of 12 bytes at most: Kubernetes keeps 4096 bytes of a note
MOST_CHARS = 500
MOST_SERVERS, PLAIN_CHARS = 8, 200  # that a failed phase names: what it prints decides their length


def pod(inside: str, run: str) -> NoReturn:
    """Run the job of this pod; the exit code says how it ended."""
    os.umask(0o022)
    sys.exit(Program(inside, run).execute())


class Program:
    """One run of it. Nothing here raises but for a bug: how it ended is in the last line and in the exit code."""

    def __init__(self, inside: str, run: str) -> None:
        self.inside, self.run = os.path.abspath(inside), os.path.abspath(run)
        self.output = Output()
        request = self.request = json.loads(Path(self.inside, "request.json").read_bytes())
        self.limits = Limits(float(request["max_duration_s"]), request.get("stall_s"), request["grace_s"])
        signal.signal(signal.SIGTERM, self.limits.terminate)
        self.environ = dict(os.environ, TPUJOB_AGENT=os.path.join(self.inside, "agent.zip"))
        self.environ.setdefault("PJRT_DEVICE", "TPU")
        self.environ.update(request["env"])
        self.environ["HOME"] = _home(self.environ.get("HOME"), self.run)
        self.environ["TPUJOB_RUN"] = request["run"]
        self.storage = Source(self.environ, self.limits.left_s)
        self.starts = Starts(request, self.storage, self._over, lambda why: self.output.control(say=why[:MOST_CHARS]))
        self.phase: str | None = None
        self.rc: int | None = None
        self.why: str | None = None
        self.detail: str | None = None
        self.results: Results | None = None  # from when the job can begin

    def execute(self) -> int:
        """Run everything; return the exit code."""
        try:
            self._note()
            self._job()
        except Exception as error:  # a bug, too, is told
            self.why, self.detail = "failed", _sentence(error)
        self.limits.job_ended()
        self.why = self.why or self.limits.why
        if self.results is not None:
            try:
                self.results.send(self.storage, self.limits.left_s, self._note)
            except Exception as error:  # the end of the job must be told all the same
                self.detail, self.results.failed = f"its results could not be sent: {_sentence(error)}", True
            log = Path(self.run, self.request["attempt"], "main", "log")
            self.starts.end(self.results.worker, log, time.monotonic() - self.limits.began_at)
        self.output.control(end=self._note())
        return self._code()

    def _code(self) -> int:
        if self.why is not None:
            return CODES[self.why]
        if not self.rc and self.results is not None and self.results.failed:
            return NOT_SENT
        if self.request["max_restarts"] and self.rc in RESTART_CODES:
            return 1
        return 71 if self.rc is None else self.rc

    def _over(self) -> bool:
        return self.limits.why is not None

    def _job(self) -> None:
        request = self.request
        place = Place(self.environ)
        ids = {"schema": SCHEMA, "run": request["run"], "worker": place.worker, "workers": place.workers}
        self.output.control(pod=ids)
        if request["schema"] != SCHEMA:
            raise ValueError(f"the request has schema {request['schema']!r}, and this program knows {SCHEMA}")
        start = self.starts.begin(place)
        if start is None:
            return
        if start.number > 1 + request["max_restarts"]:
            again = "`on_preemption: restart` would let it" if start.number == 2 else "`max_restarts` ends that"
            self.why, self.detail = "restarts", f"the cluster started the job for the {start.number}. time: {again}"
            return
        request["attempt"] = f"{request['run']}-{start.number}"
        if start.number > 1:  # else it could begin anew what is saved
            self.environ["TPUJOB_SAVED_WORK"] = "again"
        self.limits.shorten(start.before_s)
        coordinator = place.coordinator(self._over, float(request["coordinator_s"]))
        if coordinator is None:
            return
        self.environ.update(place.variables(coordinator))
        files = PhaseFiles(request["attempt"], "main", self.run)
        os.makedirs(files.run, exist_ok=True)
        unpack(self.inside, request, f"{files.run}/work", self.storage)
        os.makedirs(f"{files.run}/artifacts", exist_ok=True)
        self.results = Results(files.run, request, place.worker, self.output)
        for phase in request["phases"]:
            if self.limits.why is not None:
                return
            last = phase is request["phases"][-1]
            self._run_phase(phase["name"], phase["script"], metrics=place.worker == 0, last=last)
            if self.rc != 0:
                return

    def _is_taken(self, name: str, status: dict[str, Any]) -> bool:
        """Return whether the cluster stops this pod soon after its job has failed: then it took another one away before."""
        if not (self.request["hold_s"] and name == "main" and status["state"] == "exited" and status.get("rc")):
            return False
        until = time.monotonic() + min(self.request["hold_s"], self.limits.left_s() - LAST_MINUTE_S)
        self.output.control(say=f"the job ended with {status['rc']}: waiting whether another pod of it was taken away")
        while time.monotonic() < until and not self._over():
            time.sleep(LOOK_IDLE_S)
        return self.limits.why == "stopped"

    def _run_phase(self, name: str, script: str, *, metrics: bool, last: bool) -> None:
        """Run a phase to its end, and pass on its log."""
        files = PhaseFiles(self.request["attempt"], name, self.run)
        self.phase, self.rc = name, None
        self.output.begin(name)
        self.output.control(began=name)
        self._note()
        supervisor = _Supervisor(files, script, self.environ, self.run, self.request.get("max_log"))
        self.limits.watch(supervisor.stop, files.path("log") if name == "main" else None)
        tail = MetricsTail(f"{files.run}/artifacts/metrics.jsonl", 0) if metrics and name == "main" else None
        status = self._relay(files, supervisor, tail)
        self.limits.watch(None, None)
        if status["state"] != "exited":
            self.why, self.detail = "lost", f"the supervisor of {name} {supervisor.last_words()}"
            supervisor.end_leftovers()
        self.rc = status.get("rc")
        stopped = bool(status.get("stopped")) or self._is_taken(name, status)
        if status["state"] == "exited" and not stopped and (last or self.rc != 0):
            self.limits.job_ended(by_itself=True)
        how = {"stopped": stopped, "why": self.why or self.limits.why, "signal": status.get("signal")}
        servers = [_plain(str(server)) for server in status.get("unreachable", [])[:MOST_SERVERS]]
        self.output.flush()
        self.output.control(ended=name, rc=self.rc, unreachable=servers, log_bytes=self.output.at, **how)
        self._note()

    def _relay(self, files: PhaseFiles, supervisor: _Supervisor, tail: MetricsTail | None) -> dict[str, Any]:
        """Pass on the log and the metrics of a phase; return how it ended."""
        log = BoundedLog(files.path("log"), self.request.get("max_log"))
        offset, moved_at, drain_until = 0, time.monotonic(), None
        while True:
            status = supervisor.status()  # read before the log: once final, the log is complete
            ended = status["state"] in ("exited", "lost")
            size, more = _size(files.path("log")), True
            if ended and drain_until is None:
                drain_until = time.monotonic() + max(1.0, min(DRAIN_S, self.limits.left_s() / 2))
            if drain_until is not None and time.monotonic() > drain_until and size - offset > TAIL_BYTES:
                self.output.skip(size - offset - TAIL_BYTES)
                offset = size - TAIL_BYTES
            for left_out, piece in islice(log.pieces(offset, size if ended else None), TURN_PIECES):
                if left_out:
                    self.output.skip(left_out, left_out=left_out)
                self.output.log(piece)
                offset += left_out + len(piece)
                moved_at = time.monotonic()
            more = offset < size
            if tail is not None:
                for piece in tail.pieces(last=ended and not more):
                    self._metrics(piece)
            if ended and not more:
                return status
            self.output.tick()
            if not more:
                time.sleep(LOOK_S if time.monotonic() - moved_at < IDLE_S else LOOK_IDLE_S)

    def _metrics(self, piece: bytes) -> None:
        for begin in range(0, len(piece), METRICS_BYTES):
            packed = zlib.compress(piece[begin : begin + METRICS_BYTES])
            self.output.control(metrics=base64.b64encode(packed).decode())
        if not piece:
            self.output.control(metrics="")

    def _note(self) -> dict[str, Any]:
        """Write the termination message as it is now, and return it."""
        results, why = self.results, self.why or self.limits.why
        note: dict[str, Any] = {"schema": SCHEMA, "phase": self.phase, "rc": self.rc, "why": why}
        note["detail"] = None if self.detail is None else self.detail[:DETAIL_CHARS]
        note.update(files=0 if results is None else results.files)
        note.update(results_bytes=None if results is None else results.sent_bytes)
        with contextlib.suppress(OSError):  # the last line says the same
            # In place: Kubernetes has mounted this file, and no other can take its place.
            Path(self.environ.get("TPUJOB_TERMINATION_LOG", "/dev/termination-log")).write_text(json.dumps(note))
        return note


class _Supervisor:
    """The supervisor of one phase (`local`): a process of its own, which ends the phase when this one dies."""

    def __init__(self, files: PhaseFiles, script: str, environ: dict[str, str], runs: str, max_log: int | None) -> None:
        self.files = files
        request: dict[str, Any] = {"runs": runs, "attempt": files.attempt, "phase": os.path.basename(files.dir)}
        request.update(script=script, env=environ, manifest=None, store=None, remote=True, max_log=max_log)
        argv = [sys.executable, "-IS", environ["TPUJOB_AGENT"], "local"]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, start_new_session=True
        )
        self._say(request)

    def stop(self, grace_s: float) -> None:
        """Let it end the phase: SIGTERM, and SIGKILL after `grace_s`. What runs beside the job reads the file."""
        with contextlib.suppress(OSError):  # it has not begun
            self.files.write("stop.json", {"grace_s": grace_s})
        self._say({"grace_s": grace_s})

    def _say(self, word: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended
            self.process.stdin.write(json.dumps(word).encode() + b"\n")
            self.process.stdin.flush()

    def status(self) -> dict[str, Any]:
        """Return its status, as `PhaseFiles.status`; `none` only until it has begun."""
        gone = self.process.poll() is not None  # before the look at its files
        status = self.files.status()
        if gone and status["state"] != "exited":
            return {"state": "lost"}
        return status

    def last_words(self) -> str:
        """Return how it ended without an exit.json: with the cause, if it could still say that."""
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        said = self.process.stdout.read() or b""
        with contextlib.suppress(ValueError, KeyError):
            if said.startswith(PREFIX):
                return f"ended: {json.loads(said[len(PREFIX) :])['error']}"
        return "was killed"

    def end_leftovers(self) -> None:
        """End what a supervisor that was killed has left."""
        started = self.files.read("started.json") or {}
        session = int(started.get("pid", 0))
        phases.end(lambda: phases.members(self.files.dir, session=session), 0.0)


def _home(named: str | None, run: str) -> str:
    """Return a home directory that this user may write to; the environments of jobs are there."""
    if named and os.path.isdir(named) and os.access(named, os.W_OK):
        return named
    own = os.path.join(run, "home")
    os.makedirs(own, exist_ok=True)
    return own


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _plain(text: str) -> str:
    """Return the beginning of a text in ASCII: of other characters one takes up to 12 bytes of a line."""
    return text[:PLAIN_CHARS].encode("ascii", "backslashreplace").decode()[:PLAIN_CHARS]


def _sentence(error: BaseException) -> str:
    if isinstance(error, (CodeRefused, Failed)):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
    return f"{type(error).__name__}: {error}"
