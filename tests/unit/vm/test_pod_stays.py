"""The program of a pod without its processes: how it finds the first one, when its time is over, and its code."""

import importlib.util
import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.vm.buckets.data_objects import Changed, Failed
from orchestrator.vm.pod import pod, start, starts
from orchestrator.vm.pod.start import Place
from orchestrator.vm.pod.starts import Start, Starts
from tests.fakes.clock import Clock
from tests.fakes.pods import place, request

PLACE = {**place(1, slices=2), "TPUJOB_COORDINATOR_NAME": "j-slice-0-0.j"}


@pytest.mark.parametrize(("found_after", "address", "meets_at"), [
    (3, "10.0.0.1", "10.0.0.1:23456"), (0, "fd00::1", "[fd00::1]:23456"), (1000, "10.0.0.1", "j-slice-0-0.j:23456"),
])  # fmt: skip
def test_a_pod_waits_for_the_first_one_alone_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, found_after: int, address: str, meets_at: str
) -> None:
    clock, asked = Clock(), list[str]()

    def resolve(name: str, *_: Any, **__: Any) -> Any:
        asked.append(name)
        if len(asked) <= found_after:
            raise socket.gaierror
        return [(0, 0, 0, "", (address, 0))]

    monkeypatch.setattr(start, "time", clock)
    monkeypatch.setattr(start.socket, "getaddrinfo", resolve)
    place = Place(PLACE)
    found = place.coordinator(lambda: False, 60.0)
    assert found is not None and set(asked) == {"j-slice-0-0.j"} and clock.now - 100.0 < 61.0
    made = place.variables(found)
    assert made["TPUJOB_HOSTS"] == "j-slice-0-0.j,j-slice-0-1.j,j-slice-1-0.j,j-slice-1-1.j"
    assert made["TPUJOB_COORDINATOR"] == meets_at
    assert place.coordinator(lambda: True, 60.0) is None
    first = Place({**PLACE, "JOB_COMPLETION_INDEX": "0", "TPUJOB_POD_IP": "10.0.0.9"})
    assert first.coordinator(lambda: False, 60.0) == "10.0.0.9", "its own, which is asked of no server"


@pytest.mark.parametrize(
    ("limit_s", "after_s", "grace_s"), [(3600.0, 3540.0, 10.0), (20.0, 18.0, 1.0), (4.0, 3.6, 0.5)]
)
def test_the_time_limit_stops_a_job_early_enough_to_end_it_and_to_send_its_results(
    limit_s: float, after_s: float, grace_s: float
) -> None:
    clock, stopped = Clock(), list[tuple[float, float]]()

    def go_on() -> None:
        if stopped:
            raise InterruptedError

    clock.on_sleep = go_on
    spec = importlib.util.find_spec("orchestrator.vm.pod.limits")
    own = importlib.util.module_from_spec(spec)  # in the other, threads of earlier tests still look at the time
    spec.loader.exec_module(own)
    vars(own).update(time=clock, threading=Mock(Lock=threading.Lock))
    limits = own.Limits(limit_s, None, 10.0)
    limits.watch(lambda grace_s: stopped.append((clock.now - 100.0, grace_s)), None)
    with pytest.raises(InterruptedError):
        limits._keep()
    assert limits.why == "deadline"
    (only,) = stopped
    assert only == pytest.approx((after_s, grace_s), abs=0.15)


OWN_ENDS = [  # how a phase ended, what the pod is told while its log is sent, and the end of the pod
    (("main",), 3, "stopped", {}, (3, None)), (("main",), 0, "stopped", {}, (0, None)),
    (("setup", "main"), 0, "stopped", {}, (143, "stopped")),
    # Of several pods that may be started again, it may have failed since the cluster took another one away.
    (("main",), 3, None, {"hold_s": 0.01, "max_restarts": 1}, (3, None)),
    (("main",), 3, "stopped", {"hold_s": 1e6, "max_restarts": 1}, (143, "stopped")),
    (("main",), 0, None, {"hold_s": 1e6, "max_restarts": 1}, (0, None)),
    (("main",), 71, None, {"max_restarts": 1}, (1, None)), (("main",), 143, None, {}, (143, None)),
]  # fmt: skip


@pytest.mark.parametrize(("phases", "rc", "ends", "keys", "end"), OWN_ENDS)
def test_a_phase_that_has_ended_by_itself_keeps_its_code_whatever_ends_the_pod_while_its_log_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phases: Any, rc: int, ends: str | None, keys: Any, end: Any
) -> None:
    def exited(*_: object) -> Mock:
        """A supervisor whose phase has ended when SIGTERM arrives."""
        program.limits.why = ends
        return Mock(**{"status.return_value": {"state": "exited", "rc": rc, "stopped": False}})

    monkeypatch.setattr(pod, "_Supervisor", exited)
    monkeypatch.setattr(pod.Limits, "_keep", lambda limits: None)  # a thread that never ends
    monkeypatch.setenv("TPUJOB_TERMINATION_LOG", str(tmp_path / "note"))
    (tmp_path / "request.json").write_text(json.dumps(request(*((name, "") for name in phases), **keys)))
    before = signal.getsignal(signal.SIGTERM)
    program = pod.Program(str(tmp_path), str(tmp_path / "run"))
    signal.signal(signal.SIGTERM, before)
    program.output.fd = os.open(os.devnull, os.O_WRONLY)
    assert (program.execute(), json.loads((tmp_path / "note").read_text())["why"]) == end
    os.close(program.output.fd)


class Bucket:
    """Objects of Cloud Storage. `lost`: the answer to the next write is; `away`: why nothing can be written."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.lost, self.away, self.said = False, "", list[str]()

    def put(self, bucket: str, name: str, content: bytes, generation: str | None = None) -> str | None:
        if self.away or (generation == "0" and name in self.objects):
            return self.away or "HTTP 412 Precondition Failed"
        self.objects[name] = content
        lost, self.lost = self.lost, False
        return "HTTP 412 of the second try, as the first one has written" if lost else None

    def content(self, bucket: str, name: str) -> bytes:
        if name not in self.objects:
            raise Changed
        return self.objects[name]

    def starts(self, over: Callable[[], bool] = lambda: False, **keys: Any) -> Starts:
        return Starts(request(bucket="gs://b/p", **keys), self, over, self.said.append)  # type: ignore[arg-type]


def alone(pod: str) -> Place:
    return Place({"TPUJOB_POD": pod})


def test_the_first_pod_of_each_start_counts_it_once_with_the_time_that_the_job_has_used() -> None:
    bucket = Bucket()
    for number, before_s in enumerate((0.0, 20.0, 20.0, 40.0), 1):
        made = bucket.starts(max_restarts=3)
        bucket.lost = number == 2
        assert made.begin(alone(f"pod-{number}")) == Start(number, before_s)
        if number != 2:  # that pod is killed
            made.end(0, Path("/nowhere"), 20.0)
    assert sorted(bucket.objects) == [f"p/r1/attempts/{number}.json" for number in range(1, 5)]


def test_starts_that_cannot_be_counted_keep_only_a_job_that_may_be_restarted_from_its_begin() -> None:
    bucket = Bucket()
    bucket.away = "HTTP 403 no"
    assert bucket.starts().begin(alone("pod-1")) == Start(1, 0.0)
    assert bucket.said == ["the starts of the job cannot be counted in gs://b/p/r1: HTTP 403 no"]
    with pytest.raises(Failed, match="cannot be counted in gs://b/p/r1: HTTP 403 no"):
        bucket.starts(max_restarts=2).begin(alone("pod-1"))


def test_the_other_pods_ask_the_first_one_which_start_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1] - 1
    about = {**PLACE, "TPUJOB_COORDINATOR_NAME": "localhost-0-0", "TPUJOB_COORDINATOR_PORT": str(port)}
    first = Place({**about, "JOB_COMPLETION_INDEX": "0", "TPUJOB_POD": "pod-0", "TPUJOB_POD_IP": "127.0.0.1"})
    other = Place(about)
    monkeypatch.setattr(Place, "names", lambda place: ["127.0.0.1"])
    bucket, over = Bucket(), list[bool]()
    bucket.objects["p/r1/attempts/1.json"] = b'{"pod": "before", "used_s": 4}'
    assert bucket.starts(lambda: bool(over), max_restarts=1).begin(first) == Start(2, 4.0)
    assert bucket.starts(max_restarts=1).begin(other) == Start(2, 4.0)
    over.append(True)
    assert bucket.starts(max_restarts=0).begin(other) == Start(1, 0.0), "one that ends tells nothing any more"
    assert bucket.starts(lambda: True, max_restarts=1).begin(other) is None
    monkeypatch.setattr(starts, "FIRST_S", 0.0)
    with pytest.raises(Failed, match="worker0 did not say which start of the job this is"):
        bucket.starts(max_restarts=1).begin(other)
