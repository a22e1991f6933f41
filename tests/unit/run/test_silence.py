"""Workers from which nothing comes are named, and named again, and so is that they are back."""

from orchestrator.remote.fleet.follow import WorkerState, WorkerStatus
from orchestrator.run.monitor import Silence


def workers(*heard_at: float, state: WorkerState = WorkerState.RUNNING) -> list[WorkerStatus]:
    return [WorkerStatus(index, state, 0.0, 0, heard_at=at) for index, at in enumerate(heard_at)]


def test_a_silent_worker_is_named_within_ten_seconds_and_again_at_30_60_and_300() -> None:
    silence = Silence()
    told = {at: text for at in range(0, 600, 2) for text in silence.news(workers(at, 0.0, at), at)}
    assert list(told) == [8, 30, 60, 300]
    assert told[8] == "waiting for worker1 (1 of 3): nothing came for 8 s; the job may go on there"


def test_workers_that_become_silent_together_are_named_together() -> None:
    assert Silence().news(workers(0.0, 1.5, 60.0), 8.0) == [
        "waiting for worker0 and worker1 (2 of 3): nothing came for 8 s; the job may go on there"
    ]


def test_a_worker_that_becomes_silent_later_is_named_with_those_before_it() -> None:
    silence = Silence()
    silence.news(workers(0.0, 20.0), 20.0)
    assert silence.news(workers(0.0, 20.0), 24.0) == []
    assert silence.news(workers(0.0, 20.0), 28.0) == [
        "waiting for worker0 and worker1 (2 of 2): nothing came for 28 s; the job may go on there"
    ]


def test_a_worker_that_is_back_is_told_and_is_named_anew_when_it_is_silent_again() -> None:
    silence = Silence()
    silence.news(workers(0.0), 8.0)
    assert silence.news(workers(9.0), 10.0) == ["worker0 answers again"]
    assert silence.news(workers(9.0), 12.0) == []
    assert silence.news(workers(9.0), 17.0) == [
        "waiting for worker0 (1 of 1): nothing came for 8 s; the job may go on there"
    ]


def test_a_worker_that_has_ended_is_not_silent() -> None:
    assert Silence().news(workers(0.0, state=WorkerState.EXITED), 100.0) == []
