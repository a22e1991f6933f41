"""The program of a pod without its processes: when its time is over, its code, and how long one of several stays.

Others of its job find a pod by its name, which is gone with it.
"""

import importlib.util
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.vm.pod import pod, start
from orchestrator.vm.pod.start import STAYS_S, Place
from tests.fakes.clock import Clock
from tests.fakes.pods import request

PLACE = {
    "TPUJOB_SLICES": "1",
    "TPUJOB_HOSTS_PER_SLICE": "2",
    "JOB_COMPLETION_INDEX": "0",
    "TPUJOB_POD_IP": "10.0.0.1",
    "TPUJOB_COORDINATOR_NAME": "j-slice-0-0.j",
}


class Ended(pod.Program):
    """A pod whose job has ended with this code, having known the addresses of all at once."""

    def __init__(self, directory: Path, rc: int, place: Place) -> None:
        super().__init__(str(directory), str(directory / "run"))
        self.code, self.own = rc, place

    def _job(self) -> None:
        self.place, self.rc = self.own, self.code
        assert self.own.addresses(lambda: False, lambda text: None, 900.0) is not None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Clock]:
    found, before = Clock(), signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("TPUJOB_TERMINATION_LOG", str(tmp_path / "note"))
    monkeypatch.setattr(pod, "time", found)
    monkeypatch.setattr(start, "time", found)
    monkeypatch.setattr(start, "_resolve", lambda name, environ: "10.0.0.2")
    yield found
    signal.signal(signal.SIGTERM, before)


def ended(directory: Path, rc: int = 0, **changed: str) -> Ended:
    (directory / "request.json").write_text(json.dumps(request(max_duration_s=600)))
    return Ended(directory, rc, Place({**PLACE, **changed}))


def test_a_pod_that_succeeds_at_once_stays_until_the_others_have_looked(
    tmp_path: Path, clock: Clock, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ended(tmp_path).execute() == 0
    assert STAYS_S <= clock.now - 100.0 < STAYS_S + 1
    told = '"say": "the job has ended; its pods stay for 20 s, until each has found the others"'
    assert told in capfd.readouterr().out
    assert ended(tmp_path, JOB_COMPLETION_INDEX="1").execute() == 0
    assert told not in capfd.readouterr().out


def test_one_that_fails_ends_at_once_and_so_does_one_that_is_alone(tmp_path: Path, clock: Clock) -> None:
    assert ended(tmp_path, rc=3).execute() == 3
    assert ended(tmp_path, TPUJOB_HOSTS_PER_SLICE="1").execute() == 0
    assert clock.now == 100.0


def test_one_that_stays_ends_on_sigterm(tmp_path: Path, clock: Clock) -> None:
    program = ended(tmp_path)
    clock.on_sleep = program.limits.terminate
    assert program.execute() == 0
    assert clock.now - 100.0 < 1


def test_a_pod_that_never_finds_the_others_says_which_and_until_when_it_has_waited(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "_resolve", lambda name, environ: None)
    said: list[str] = []
    place = Place({**PLACE, "TPUJOB_SLICES": "3"})
    with pytest.raises(
        TimeoutError, match=r"^the DNS of the cluster has had no address of .* for 15 minutes$"
    ) as raised:
        place.addresses(lambda: False, said.append, 900.0)
    assert "j-slice-0-1.j, j-slice-1-0.j, j-slice-1-1.j and 2 more" in str(raised.value)
    assert 900.0 <= clock.now - 100.0 < 903.0 and len(said) == 14


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
    limits = own.Limits(limit_s, None)
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
