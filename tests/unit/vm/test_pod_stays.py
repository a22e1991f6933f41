"""How long a pod of several stays, so that the others find it: its name is gone with it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.vm import pod, pod_peers
from orchestrator.vm.pod_peers import STAYS_S, Place

PLACE = {
    "TPUJOB_SLICES": "1",
    "TPUJOB_HOSTS_PER_SLICE": "2",
    "JOB_COMPLETION_INDEX": "0",
    "TPUJOB_POD_IP": "10.0.0.1",
    "TPUJOB_COORDINATOR_NAME": "j-slice-0-0.j",
}


class Clock:
    """Time that passes only where something sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.on_sleep = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()


class Ended(pod.Program):
    """A pod whose job has ended with this code, having known the addresses of all at once."""

    def __init__(self, directory: Path, rc: int, place: Place) -> None:
        super().__init__(str(directory), str(directory / "run"))
        self.code, self.own = rc, place

    def _job(self) -> None:
        self.place, self.rc = self.own, self.code
        assert self.own.addresses(lambda: False, lambda text: None, 900.0) is not None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    found, before = Clock(), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(pod, "time", found)
    monkeypatch.setattr(pod_peers, "time", found)
    monkeypatch.setattr(pod_peers, "_resolve", lambda name, environ: "10.0.0.2")
    yield found
    signal.signal(signal.SIGTERM, before)


def ended(directory: Path, rc: int = 0, **changed: str) -> Ended:
    request = {"schema": 1, "run": "r", "attempt": "r-1", "env": {}, "max_duration_s": 600}
    (directory / "request.json").write_text(json.dumps(request))
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
    clock.on_sleep = program.limits.terminate  # type: ignore[assignment]
    assert program.execute() == 0
    assert clock.now - 100.0 < 1


def test_a_pod_that_never_finds_the_others_says_which_and_until_when_it_has_waited(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_peers, "_resolve", lambda name, environ: None)
    said: list[str] = []
    place = Place({**PLACE, "TPUJOB_SLICES": "3"})
    with pytest.raises(
        TimeoutError, match=r"^the DNS of the cluster has had no address of .* for 15 minutes$"
    ) as raised:
        place.addresses(lambda: False, said.append, 900.0)
    assert "j-slice-0-1.j, j-slice-1-0.j, j-slice-1-1.j and 2 more" in str(raised.value)
    assert 900.0 <= clock.now - 100.0 < 903.0 and len(said) == 14
