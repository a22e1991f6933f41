"""The program of a pod without its processes: how it finds the first one, when its time is over, and its code."""

import importlib.util
import json
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.vm.pod import pod, start
from orchestrator.vm.pod.start import Place
from tests.fakes.clock import Clock
from tests.fakes.pods import request

PLACE = {
    "TPUJOB_SLICES": "2",
    "TPUJOB_HOSTS_PER_SLICE": "2",
    "JOB_COMPLETION_INDEX": "1",
    "TPUJOB_POD_IP": "10.0.0.2",
    "TPUJOB_COORDINATOR_NAME": "j-slice-0-0.j",
    "TPUJOB_COORDINATOR_PORT": "23456",
}


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


@pytest.mark.parametrize(
    ("phases", "rc", "code", "why"),
    [(("main",), 3, 3, None), (("main",), 0, 0, None), (("setup", "main"), 0, 143, "stopped")],
)
def test_a_phase_that_has_ended_by_itself_keeps_its_code_whatever_ends_the_pod_while_its_log_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phases: tuple[str, ...], rc: int, code: int, why: str | None
) -> None:
    class Exited:
        """A supervisor whose phase has ended when SIGTERM arrives."""

        def __init__(self, *_: object) -> None:
            program.limits.why = "stopped"

        def status(self) -> dict[str, Any]:
            return {"state": "exited", "rc": rc, "stopped": False}

        def stop(self, grace_s: float) -> None:
            pass

    monkeypatch.setattr(pod, "_Supervisor", Exited)
    monkeypatch.setenv("TPUJOB_TERMINATION_LOG", str(tmp_path / "note"))
    (tmp_path / "request.json").write_text(json.dumps(request(*((name, "") for name in phases))))
    before = signal.getsignal(signal.SIGTERM)
    program = pod.Program(str(tmp_path), str(tmp_path / "run"))
    signal.signal(signal.SIGTERM, before)
    program.output.fd = os.open(os.devnull, os.O_WRONLY)
    assert program.execute() == code
    os.close(program.output.fd)
    assert json.loads((tmp_path / "note").read_text())["why"] == why
