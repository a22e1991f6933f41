"""The record of a queue as text: the same queue comes back, and jobs that only wait take little of it."""

import json
from dataclasses import replace

import pytest

from orchestrator.api.queue import leases
from orchestrator.api.queue.queue import _entry
from orchestrator.api.queue.shown import cells
from orchestrator.errors import ConfigError
from orchestrator.promise.lease.run_spec import SweepPart
from orchestrator.queue.record import End, Queue, QueuedJob, Stage, Turn, from_json
from orchestrator.queue.steps import add

TURN = Turn("t1", "here-1", attempt=2, stage=Stage.COLLECTING, until=9.5, leases=({"id": "l1", "usd_per_hour": None},))
JOBS = (
    QueuedJob("a", "a"),
    QueuedJob(
        "b", "b", needs=("KEY",), sweep=SweepPart("s", "rates", 1, "rate=1"), most_usd=0.0, held=True, order=-1.0
    ),
    QueuedJob("c", "c", turn=TURN, spent=([1.0, 2.5],), attempts=2, losses=1),
    QueuedJob("d", "d", turn=Turn("t2", "here-2", most_usd=None, then=End("interrupted", 3.0, 71, "gone"), runs=True)),
    QueuedJob("e", "e", end=End("removed", 4.0), removed=True),
)


def test_the_same_queue_comes_back() -> None:
    queue = Queue(JOBS, refused={"r": {"why": "full", "until": 5.0, "tries": 2}}, write="w")
    assert from_json(queue.to_json(), "here") == queue
    assert from_json(Queue().to_json(), "here") == from_json(b"", "here") == Queue()


@pytest.mark.parametrize(("job", "cost"), [
    (JOBS[0], "-"), (JOBS[1], "-"), (JOBS[2], "unknown"), (replace(JOBS[2], most_usd=5.0, turn=None), "$2.50"),
])  # fmt: skip
def test_what_has_no_price_costs_an_unknown_amount_and_not_nothing(job: QueuedJob, cost: str) -> None:
    assert cells(_entry(job))[5] == cost


def test_what_every_new_job_has_is_not_written() -> None:
    assert Queue((QueuedJob("a", "a"),)).to_json() == b'{"jobs":[{"id":"a","name":"a"}],"version":1}'


def test_a_runner_that_cannot_unpack_a_job_of_this_version_leaves_its_queue_alone() -> None:
    before = from_json(b'{"jobs":[],"version":1}', "here")
    assert b'"version":1' in before.to_json(), "a pass changes nothing for it"
    after = add(QueuedJob("a", "a"))(before, 5.0)
    assert after is not None and b'"version":2' in after.to_json() and from_json(after.to_json(), "here") == after
    with pytest.raises(ConfigError, match=r"of another tpujob \(version 3\)"):
        from_json(b'{"jobs":[],"version":3}', "here")


@pytest.mark.parametrize("damage", [
    {"end": "succeeded"}, {"turn": ["x"]}, {"turn": {"token": "t", "runner": "r", "stage": "pausing"}},
    {"spent": [5, "x"], "held": 1},
    {"turn": {"token": "t", "runner": "r", "leases": "zz"}}, {"attempts": "2"}, {"unheard": 1},
])  # fmt: skip
def test_a_job_that_does_not_read_as_it_is_written_stops_everything(damage: dict[str, object]) -> None:
    """Read as a job without an end or a turn, it would begin once more."""
    text = json.dumps({"jobs": [{"id": "a", "name": "a", **damage}], "version": 1})
    with pytest.raises(ConfigError) as refused:
        from_json(text.encode(), "here")
    assert refused.value.exit_code == 64 and "nothing of the queue is started or deleted" in str(refused.value.hint)


@pytest.mark.parametrize("job", [
    QueuedJob("..", "a"), QueuedJob("x6qn33t5b8", "a", turn=Turn("t", "r", leases=({"id": ".."},))),
])  # fmt: skip
def test_an_id_that_could_name_another_file_is_refused(job: QueuedJob) -> None:
    with pytest.raises(ConfigError, match="has a job that cannot be read"):
        leases.check(Queue((job,)), "here")
