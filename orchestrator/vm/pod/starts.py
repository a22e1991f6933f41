"""Which start of its job this is. A cluster may start a job again, and does not tell it: its pods count in the bucket.

Worker 0 of each start creates the first `RUN/attempts/<number>.json` that does not exist: {"pod": its name, "at": unix time},
and when it ends, "used_s", what the job had of its time. The other pods ask worker 0, on the port after that of the job: what
is in the bucket may be of a start before, whose addresses come again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ..buckets.cloud_storage import split
from ..buckets.data_objects import Changed, Failed, Source, check

ASK_S, LOOK_S = 5.0, 0.5


class Start(NamedTuple):
    """`number`: from 1. `before_s`: what the starts before have used of the time of the job, as far as they could say it."""

    number: int
    before_s: float


ONLY = Start(1, 0.0)  # of a job without a bucket


def claimed(source: Source, run: str, pod: str) -> Start:
    """Count one more start of this run (gs://BUCKET/PREFIX/RUN), by its worker 0. Raises Failed."""
    before_s = 0.0
    for number in itertools.count(1):
        bucket, name = _object(run, number)
        try:
            check(source.put(bucket, name, json.dumps({"pod": pod, "at": time.time()}).encode(), "0"))
            break
        except Changed:  # it exists
            found = _read(source, bucket, name)
        if found.get("pod") == pod:  # the answer to an earlier try was lost
            break
        before_s += float(found.get("used_s") or 0.0)
    return Start(number, before_s)


def ended(source: Source, run: str, pod: str, number: int, at: float, used_s: float) -> None:
    """Note what the start has used of the time of the job, which began `at`. A failure costs no more than that."""
    source.put(*_object(run, number), json.dumps({"pod": pod, "at": at, "used_s": used_s}).encode())


def _object(run: str, number: int) -> tuple[str, str]:
    return split(f"{run}/attempts/{number}.json")


def _read(source: Source, bucket: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(source.content(bucket, name))
    except (Changed, ValueError) as error:
        raise Failed(f"gs://{bucket}/{name} cannot be read: {error}") from None
    return found if isinstance(found, dict) else {}


def tell(start: Start, host: str, port: int, over: Callable[[], bool]) -> None:
    """Answer the other pods, in the background, until it is `over`. `host`: the address of this pod."""

    def answer() -> None:
        while not over():
            with contextlib.suppress(OSError):  # on the network of a node, the pod before may have the port still
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                with socket.create_server((host, port), family=family) as server:
                    while True:
                        asking, _ = server.accept()
                        with asking:
                            if over():
                                return
                            asking.sendall(json.dumps(start).encode())
            time.sleep(LOOK_S)

    threading.Thread(target=answer, name="start", daemon=True).start()


def asked(host: str, port: int, over: Callable[[], bool], most_s: float) -> Start | None:
    """Return what worker 0 says, by the name of its pod; None: nothing for so long, or it was `over` before that."""
    began = time.monotonic()
    while not over() and time.monotonic() - began < most_s:
        try:
            with socket.create_connection((host, port), timeout=ASK_S) as to, to.makefile("rb") as said:
                number, before_s = json.loads(said.read(200))
                return Start(int(number), float(before_s))
        except (OSError, UnicodeError, ValueError, TypeError):  # it is not there yet
            time.sleep(LOOK_S)
    return None
