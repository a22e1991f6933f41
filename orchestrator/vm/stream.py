"""The log and the state of a phase as a stream, from any byte of the log.

`follow` sends frames `L <n>\\n<n bytes of log>` and `S <n>\\n<status>`; an empty `L` keeps the connection alive. Where it is
asked to, also `M <n>\\n<n bytes of metrics.jsonl>`; an empty `M` says that this file begins anew. The last frame is a final
status. A stream that ends without one was cut and says nothing about the phase: `remote.fleet.follow` continues
from the next byte.
"""

from __future__ import annotations

import json
import time

from .frames import frame, reply
from .metrics import MetricsTail
from .phase import PhaseFiles

TYPE_CHECKING = False  # typing itself takes 5 ms to import, on each of many short calls
if TYPE_CHECKING:
    from collections.abc import Iterator

HEARTBEAT_S = 2.0
LOOK_S = 0.04  # between two looks at the log
LOOK_IDLE_S = 0.2  # after ten seconds of silence
PIECE_BYTES = 65536


def status(attempt: str, name: str) -> None:
    reply(PhaseFiles(attempt, name).status())


def follow(attempt: str, name: str, offset_text: str, metrics_text: str = "") -> None:
    """`metrics_text`: from which byte of metrics.jsonl on; empty: without it."""
    phase, offset = PhaseFiles(attempt, name), int(offset_text)
    metrics = MetricsTail(f"{phase.run}/artifacts/metrics.jsonl", int(metrics_text)) if metrics_text else None
    reply({"stream": "log"})
    told = ""
    spoke_at = moved_at = time.monotonic()
    while True:
        now = phase.status()  # read before the log: once final, the log is complete
        limit = now["log_size"] if now["state"] == "exited" else None
        for piece in _log_after(phase.path("log"), offset, limit):
            frame(b"L", piece)
            offset += len(piece)
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


def _log_after(path: str, offset: int, limit: int | None) -> Iterator[bytes]:
    try:
        file = open(path, "rb", buffering=0)  # noqa: PTH123, SIM115 - as in `phase`; closed below
    except FileNotFoundError:
        return
    with file:
        file.seek(offset)
        while piece := file.read(PIECE_BYTES if limit is None else max(0, min(PIECE_BYTES, limit - offset))):
            yield piece
            offset += len(piece)
