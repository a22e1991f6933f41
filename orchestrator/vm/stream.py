"""The log and the state of a phase as a stream, from any byte of the log.

`follow` sends frames `L <n>\\n<n bytes of log>` and `S <n>\\n<status>`; an empty `L` keeps the connection alive.
`G <n>\\n<number>`: so many bytes of the log are left out before the next `L` (`bounded_log`). Where it is asked to, also
`M <n>\\n<n bytes of metrics.jsonl>`; an empty `M` says that this file begins anew. The last frame is a final status. A stream
that ends without one was cut and says nothing about the phase: `remote.fleet.follow` continues from the next byte.
"""

from __future__ import annotations

import json
import time
from itertools import islice

from .bounded_log import BoundedLog
from .frames import frame, reply
from .metrics import MetricsTail
from .phase import PhaseFiles

HEARTBEAT_S = 2.0
LOOK_S = 0.04  # between two looks at the log
LOOK_IDLE_S = 0.2  # after ten seconds of silence
TURN_PIECES = 256


def status(attempt: str, name: str) -> None:
    reply(PhaseFiles(attempt, name).status())


def follow(attempt: str, name: str, offset_text: str, metrics_text: str = "") -> None:
    """`metrics_text`: from which byte of metrics.jsonl on; empty: without it."""
    phase, offset = PhaseFiles(attempt, name), int(offset_text)
    metrics = MetricsTail(f"{phase.run}/artifacts/metrics.jsonl", int(metrics_text)) if metrics_text else None
    reply({"stream": "log"})
    told, log = "", None
    spoke_at = moved_at = time.monotonic()
    while True:
        now = phase.status()  # read before the log: once final, the log is complete
        limit = now["log_size"] if now["state"] == "exited" else None
        if log is None and (request := phase.read("request.json")) is not None:
            log = BoundedLog(phase.path("log"), request.get("max_log"))
        # What comes while the job prints faster than it is read has no end: metrics wait for a turn at most.
        pieces = iter(()) if log is None else log.pieces(offset, limit)
        for left_out, piece in islice(pieces, TURN_PIECES if limit is None else None):
            if left_out:
                frame(b"G", b"%d" % left_out)
            frame(b"L", piece)
            offset += left_out + len(piece)
            spoke_at = moved_at = time.monotonic()
        if metrics is not None:
            for piece in metrics.pieces(last=limit is not None):
                frame(b"M", piece)
                spoke_at = time.monotonic()
        if limit is not None and offset != limit:
            now = {"state": "lost", "why": f"the log on the worker ends at byte {limit}, before byte {offset}"}
        if now["state"] != told:
            frame(b"S", json.dumps(now).encode())
            told = now["state"]
        if told in ("exited", "lost", "none"):
            return
        if time.monotonic() - spoke_at >= HEARTBEAT_S:
            frame(b"L", b"")
            spoke_at = time.monotonic()
        time.sleep(LOOK_S if time.monotonic() - moved_at < 10 else LOOK_IDLE_S)
