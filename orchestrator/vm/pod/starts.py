"""Which start of its job this is. A cluster may start a job again, and does not tell it: its pods count in the bucket.

Worker 0 of each start creates the first `RUN/attempts/<number>.json` that does not exist: {"pod": its name, "at": unix time},
and when it ends, "used_s", what the job had of its time. Each pod leaves its log there, as `<number>/worker<i>.log`. The other
pods ask worker 0, on the port after that of the job: what is in the bucket may be of a start before, and addresses come again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..buckets.cloud_storage import split
from ..buckets.data_objects import Changed, Failed, Source, check
from .start import LOOK_S, Place, looked_for

ASK_S = 5.0
FIRST_S = 900.0  # for worker 0 of a job that may be started again: its node may come last


class Start(NamedTuple):
    """`number`: from 1. `before_s`: what the starts before have used of the time of the job, as far as they could say it."""

    number: int
    before_s: float


ONLY = Start(1, 0.0)


class Starts:
    """The starts of one job, as one of its pods counts them. `over`: whether the job is to end; `say`: tells the user."""

    def __init__(
        self, request: Mapping[str, Any], source: Source, over: Callable[[], bool], say: Callable[[str], None]
    ) -> None:
        self.request, self.source, self.over, self.say = request, source, over, say
        self.place = f"{request['bucket']}/{request['run']}"
        self.claim: dict[str, Any] | None = None  # of this pod, if it counts
        self.number = 0  # of this start

    def begin(self, place: Place) -> Start | None:
        """Return which start of the job this is; None: it was over before that. Raises Failed where it has to be known."""
        if self.request["bucket"] is None:
            return ONLY
        restarts = self.request["max_restarts"]
        start: Start | None = ONLY
        if place.worker:
            start = self._asked(place, FIRST_S if restarts else float(self.request["coordinator_s"]))
            if start is None and restarts and not self.over():
                raise Failed("worker0 did not say which start of the job this is")
            start = start or (None if self.over() else ONLY)
        else:
            try:
                start = self._claimed({"pod": place.environ.get("TPUJOB_POD", ""), "at": time.time()})
            except Failed as error:
                why = f"the starts of the job cannot be counted in {self.place}: {error}"
                if restarts:
                    raise Failed(why) from None
                self.say(why)
            if place.workers > 1:
                threading.Thread(target=self._tell, args=(start, place), name="start", daemon=True).start()
        self.number = 0 if start is None else start.number
        return start

    def end(self, worker: int, log: Path, used_s: float) -> None:
        """Keep the log of a start that another one may follow, and what it has used of the time of the job.

        A failure costs no more than that.
        """
        if not (self.number and self.request["max_restarts"]):
            return
        if self.claim is not None:
            self.source.put(*self._object(self.number), json.dumps(dict(self.claim, used_s=used_s)).encode())
        if log.exists():
            bucket, name = split(f"{self.place}/attempts/{self.number}/worker{worker}.log")
            self.source.send(bucket, name, log)

    def _object(self, number: int) -> tuple[str, str]:
        return split(f"{self.place}/attempts/{number}.json")

    def _claimed(self, mine: dict[str, Any]) -> Start:
        before_s = 0.0
        for number in itertools.count(1):
            try:
                check(self.source.put(*self._object(number), json.dumps(mine).encode(), "0"))
                break
            except Changed:  # it exists
                found = self._read(number)
            if found.get("pod") == mine["pod"]:  # the answer to an earlier try was lost
                break
            before_s += float(found.get("used_s") or 0.0)
        self.claim = mine
        return Start(number, before_s)

    def _read(self, number: int) -> dict[str, Any]:
        try:
            found = json.loads(self.source.content(*self._object(number)))
        except (Changed, ValueError) as error:
            raise Failed(f"the count of start {number} cannot be read: {error}") from None
        return found if isinstance(found, dict) else {}

    def _tell(self, start: Start | None, place: Place) -> None:
        """Answer the other pods until it is over."""
        host = place.environ.get("TPUJOB_POD_IP", "")
        while not self.over():
            with contextlib.suppress(OSError):  # on the network of a node, the pod before may have the port still
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                with socket.create_server((host, place.port + 1), family=family) as server:
                    while True:
                        asking, _ = server.accept()
                        with asking:
                            if self.over():
                                return
                            asking.sendall(json.dumps(start).encode())
            time.sleep(LOOK_S)

    def _asked(self, place: Place, most_s: float) -> Start | None:
        """Return what worker 0 says; None: nothing for so long, or it was over before that."""
        where = place.names()[0], place.port + 1

        def answer() -> Start:
            with socket.create_connection(where, timeout=ASK_S) as to, to.makefile("rb") as said:
                number, before_s = json.loads(said.read(200))
            return Start(int(number), float(before_s))

        return looked_for(answer, self.over, most_s)
