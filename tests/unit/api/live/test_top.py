"""What is in the table of `tpujob top`: runs, jobs of the queue and slices, each once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.api.live import top
from orchestrator.api.live.top import Asked, Top, TopRow, Watch, table
from orchestrator.api.queue.queue import QueueEntry
from orchestrator.api.slices.status import SliceRow
from orchestrator.errors import ConfigError
from orchestrator.promise.lease.changes import Gone, ReleaseBegan
from orchestrator.promise.lease.run_and_attempt import AttemptState
from orchestrator.report.files.newest import BESIDE
from tests.unit.report.page.world import World, plain_run
from tests.waiting import until


def session(world: World) -> Any:
    locks = SimpleNamespace(is_locked=lambda _name: False)
    target = SimpleNamespace(kind=world.cloud, why="of a test")
    told: dict[str, Any] = {"target": target, "locks": locks, "unproven": {}}
    return SimpleNamespace(ledger=world.ledger, now=lambda _cloud=None: world.now, **told)


def rows(world: World, asked: Asked | None = None, **how: Any) -> list[TopRow]:
    return list(table(session(world), asked or Asked(), **how).rows)


def only(world: World, asked: Asked | None = None) -> TopRow:
    (row,) = rows(world, asked)
    return row


@pytest.fixture
def going_on(tmp_path: Path) -> World:
    world = World(tmp_path / "a")
    world.work(world.begin(), 1800.0)
    world.write("logs/worker0.metrics.jsonl", json.dumps({"step": 7, "loss": 0.5, "images_per_s": 120.0}) + "\n")
    return world


def entry(world: World, **said: Any) -> QueueEntry:
    usual = dict.fromkeys(QueueEntry.__dataclass_fields__)
    usual |= {
        "id": world.run,
        "name": "mnist",
        "state": "waiting",
        "asks": "v5litepod-8 us-central1-a",
        "why": "1 of 1",
    }
    return QueueEntry(**usual | {"metrics": {}, "added_at": world.now} | said)  # type: ignore[arg-type]


def asked_slice(world: World, **said: Any) -> SliceRow:
    usual = dict.fromkeys(SliceRow.__dataclass_fields__)
    usual |= {
        "name": "mine",
        "node": "node-1",
        "zone": "us-central1-a",
        "accelerator_type": "v5litepod-8",
        "state": "READY",
    }
    return SliceRow(**usual | {"emulated": False, "yours": True, "now": world.now} | said)  # type: ignore[arg-type]


def answered(world: World, *found: SliceRow, **said: Any) -> Asked:
    status: Any = SimpleNamespace(slices=found, projects=[SimpleNamespace(at=world.now, complete=True, running=True)])
    return Asked(status, **said)


def test_a_run_that_goes_on_says_what_it_does_and_costs(going_on: World) -> None:
    row = only(going_on)
    assert (row.kind, row.state, row.step, row.metric, row.value) == ("run", "running", 7, "loss", 0.5)
    assert (row.rate, row.rate_of) == (120.0, "images") and row.until is not None and row.has_page
    assert row.usd_so_far == pytest.approx(9.6 * 1865 / 3600) and row.usd_at_most is not None
    assert row.usd_at_most > row.usd_so_far


def test_a_run_that_ended_stays_for_an_hour_with_its_figure_and_without_a_speed(tmp_path: Path) -> None:
    world = plain_run(tmp_path / "a")
    row = only(world)
    assert (row.state, row.metric, row.rate, row.until, row.usd_at_most) == ("succeeded", "loss", None, None, None)
    world.now += 3601 + 60
    assert rows(world) == [] and [each.id for each in rows(world, ended=True)] == [world.run]


def test_a_run_that_failed_since_its_chips_were_busy_says_who_holds_them(tmp_path: Path) -> None:
    world = World(tmp_path / "a")
    attempt = world.begin()
    lease = world.work(attempt, 5.0)
    said = {"worker": 0, "workers": 1, "use": "busy", "text": "process 7 (sleep 1234) holds a chip"}
    world.write(BESIDE["chips"].collected, json.dumps({"chips": said}) + "\n")
    world.end(attempt, lease, AttemptState.FAILED, "the job failed on worker0 with code 7")
    assert only(world).remark == (
        "the job failed on worker0 with code 7; worker0 (1 of 1): process 7 (sleep 1234) holds a chip"
    )


def test_what_the_slice_says_of_its_chips_is_said_once(going_on: World) -> None:
    text = "process 7 (sleep 1234) holds a chip"
    said = {"worker": 0, "workers": 1, "use": "busy", "text": text}
    going_on.write(BESIDE["chips"].live, json.dumps({"chips": said}) + "\n")
    (lease,) = going_on.ledger.open_leases()
    row = asked_slice(going_on, lease_id=lease.id, remark=f"worker0 (1 of 1): {text}, $0.10 so far")
    assert only(going_on, answered(going_on, row)).remark == f"worker0 (1 of 1): {text}, $0.10 so far"


def test_of_a_run_that_no_process_follows_the_watchdog_says_the_newest(going_on: World) -> None:
    going_on.write(BESIDE["chips"].live, json.dumps({"duty_cycle_percent": [90]}) + "\n")
    assert only(going_on).duty_percent == 90.0
    row = only(going_on, Asked(told={f"{going_on.run}-1": {"step": 900.0, "loss": 0.25}}))
    assert (row.step, row.value, row.rate, row.duty_percent) == (900, 0.25, None, None), "the files are old"


def test_a_run_that_waits_for_its_next_slice_has_no_speed(tmp_path: Path) -> None:
    world = World(tmp_path / "a")
    first = world.begin()
    world.lose(first, world.work(first, 100.0))
    world.metrics([{"step": 5, "images_per_s": 200}])
    world.begin()
    assert (only(world).state, only(world).step, only(world).rate) == ("pending", 5, None)


def test_a_second_attempt_is_named(tmp_path: Path) -> None:
    world = World(tmp_path / "a")
    first = world.begin()
    world.lose(first, world.work(first, 100.0))
    world.work(world.begin(), 100.0)
    assert only(world).remark == "attempt 2"


def test_a_job_that_waits_is_a_row_with_why(tmp_path: Path) -> None:
    world = World(tmp_path / "a")
    asked = Asked(jobs=(entry(world, id="other"), entry(world, id="over", ended_at=world.now)))
    row = only(world, asked)
    assert (row.kind, row.state, row.accelerator_type, row.zone) == ("job", "waiting", "v5litepod-8", "us-central1-a")
    assert row.remark == "1 of 1" and not row.has_page


def test_a_job_whose_run_goes_on_here_is_one_row(going_on: World) -> None:
    row = only(going_on, Asked(jobs=(entry(going_on, state="running"),)))
    assert (row.kind, row.id) == ("run", going_on.run)


def test_a_job_that_waits_again_after_an_attempt_here_says_so(tmp_path: Path) -> None:
    world = World(tmp_path / "a")
    first = world.begin()
    world.lose(first, world.work(first, 100.0))
    row = only(world, Asked(jobs=(entry(world),)))
    assert (row.kind, row.state, row.has_page) == ("job", "waiting", True)


def test_a_job_that_runs_on_another_machine_has_the_end_of_its_slice_and_is_one_row(tmp_path: Path) -> None:
    world = World(tmp_path / "a")
    job = entry(world, id="other", state="running", node="node-1", metrics={"step": 9.0, "loss": 0.1})
    row = only(world, answered(world, asked_slice(world, ends_at=world.now + 60), jobs=(job,)))
    assert (row.kind, row.step, row.value, row.until) == ("job", 9, 0.1, world.now + 60)


def test_slices_of_this_user_are_rows_also_those_of_another_machine(tmp_path: Path) -> None:
    world = World(tmp_path / "a")
    found = answered(world, asked_slice(world), asked_slice(world, node="node-2", yours=False, name="another"))
    assert [(row.kind, row.name, row.node) for row in rows(world, found)] == [("slice", "mine", "node-1")]


def test_a_slice_that_a_run_left_is_a_row_of_its_own(tmp_path: Path) -> None:
    world = World(tmp_path / "a")
    attempt = world.begin()
    lease = world.work(attempt, 100.0)
    world.end(attempt, None)
    assert [(row.kind, row.node) for row in rows(world)] == [("slice", lease.name.node), ("run", None)]


def test_a_run_on_this_machine_has_no_price(tmp_path: Path) -> None:
    world = World(tmp_path / "a", cloud="local")
    world.begin()
    row = only(world)
    assert (row.accelerator_type, row.zone) == (None, None), "nor a TPU, whatever its file asks for elsewhere"
    assert (row.usd_so_far, row.usd_at_most, row.emulated, row.until) == (None, None, False, None)


def test_the_rows_of_what_has_ended_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = plain_run(tmp_path / "a")
    known: top.Known = {}
    first = rows(world, known=known)
    monkeypatch.setattr(top, "_run", None)
    assert rows(world, known=known) == first


def test_files_that_are_gone_leave_the_row(going_on: World) -> None:
    (going_on.directory / "logs" / "worker0.metrics.jsonl").unlink()
    (going_on.directory / "logs").rmdir()
    going_on.directory.rmdir()
    row = only(going_on)
    assert (row.state, row.step, row.metric) == ("running", None, None)


def test_json_has_every_field(going_on: World) -> None:
    found = table(session(going_on), Asked(problems=("the queue: no answer",))).as_json()
    assert found["problems"] == ("the queue: no answer",) and found["rows"][0]["usd_at_most"] > 0
    assert {*found} == {*Top.__dataclass_fields__} and {*found["rows"][0]} == {*TopRow.__dataclass_fields__}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `ask` says, one after the other: an answer, or an error."""
    left: list[Any] = []

    def ask(_session: Any) -> Asked:
        until(lambda: left, "the next question")
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(top, "ask", ask)
    monkeypatch.setattr(top, "ASKED_EVERY_S", 0.0)
    return left


@pytest.mark.parametrize("error", [ConfigError("no answer"), PermissionError(13, "no answer"), ValueError("no answer")])
def test_a_question_that_fails_is_a_problem_and_the_next_one_is_asked(
    going_on: World, answers: list[Any], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    @contextmanager
    def opened() -> Iterator[Any]:
        yield session(going_on)

    watch = Watch(opened)
    try:
        assert watch.look().asked_at is None, "the table comes before the first answer"
        answers.append(answered(going_on))
        until(lambda: watch.look().asked_at)
        answers.append(error)
        until(lambda: any("no answer" in each for each in watch.look().problems))
        assert watch.look().asked_at == going_on.now, "what was known stays"
        answers.append(answered(going_on))
        until(lambda: watch.look().problems == ())
    finally:
        watch.close()
        answers.append(Asked())


def test_what_the_recovery_cannot_prove_gone_is_a_problem_until_it_is_proven(
    going_on: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: Any = session(going_on)
    found.locks.is_locked = lambda _name: True
    (lease,) = going_on.ledger.open_leases()
    unproven = {lease.id: SimpleNamespace(lease=lease)}

    asked: list[bool] = []

    def recovered(_session: Any) -> Any:
        asked.append(bool(found.unproven))
        found.unproven |= unproven
        return answered(going_on).status

    monkeypatch.setattr(top.status, "status", recovered)
    monkeypatch.setattr(top.queues, "is_there", lambda _session: False)
    why = f"{lease.name.node} ({lease.name.zone}) is not proven gone, and may be billed: `tpujob status`"
    for _ in range(2):
        assert top.ask(found).problems == (why,) and found.unproven, "also while it is asked anew"
    going_on.ledger.record(ReleaseBegan(lease.id, going_on.now, "over"), Gone(lease.id, going_on.now, "by another"))
    unproven.clear()
    assert top.ask(found).problems == () and not found.unproven


def test_a_queue_that_does_not_answer_is_a_problem(going_on: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_session: Any) -> Any:
        raise PermissionError(13, "no answer")

    monkeypatch.setattr(top.status, "status", lambda _session: answered(going_on).status)
    monkeypatch.setattr(top.queues, "is_there", lambda _session: True)
    monkeypatch.setattr(top.queues, "report", fails)
    found: Any = session(going_on)
    found.locks.is_locked = lambda _name: True
    assert any(each.startswith("not known: the queue: ") and "no answer" in each for each in top.ask(found).problems)
