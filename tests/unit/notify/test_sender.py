"""The sender: what the ledger has, told once, to the right one, as one message in a storm; and lost by no death."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import PayloadFailed, Preempted, SliceLost
from orchestrator.notify import sender
from orchestrator.notify.delivery import Delivery
from orchestrator.notify.messages import Message
from orchestrator.notify.notifier import Notifier
from orchestrator.notify.outbox import Outbox
from orchestrator.notify.receivers import Receiver
from orchestrator.notify.sender import MOST_S, QUIET_S, Pass
from orchestrator.promise.effects.base import MoneyNear, Report
from orchestrator.promise.effects.locks import FileLocks
from orchestrator.promise.lease.absence import unchecked
from orchestrator.promise.lease.changes import (
    AttemptEnded,
    Began,
    Continued,
    Created,
    HeldUntil,
    Intent,
    Leased,
    Moved,
    Ready,
)
from orchestrator.promise.lease.lease import HeldFor
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.promise.lease.run_spec import NotifyWish, RunSpec
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.text.redaction import Redactor
from tests.fakes.api import StubApi, StubReply
from tests.fakes.leases import lease_and_request
from tests.waiting import ran, until

URL = "https://hooks.example.com/services/s3cr3t-s3cr3t"
OWN, OK = NotifyWish(URL), Delivery(True, "hooks.example.com answered 200")


@dataclass
class Post:
    """A state directory with a receiver of its settings; what is delivered is recorded."""

    directory: Path
    environ: dict[str, str]
    now: float = 1_000_000.0
    told: list[tuple[Receiver, tuple[Message, ...]]] = field(default_factory=list)
    answer: Delivery = OK
    own: NotifyWish | None = OWN
    woken: int = 0

    def __post_init__(self) -> None:
        self.notifier = Notifier(self.directory, self.own, Redactor())
        self.notifier.wake = self.wake  # type: ignore[method-assign]
        self.ledger = self.notifier.open_ledger()

    def wake(self) -> None:
        self.woken += 1

    def settings(self, text: str) -> None:
        path = Path(self.environ["XDG_CONFIG_HOME"]) / "tpujob" / "settings.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    @property
    def made(self) -> Pass:
        return Pass(self.directory, Ledger(self.ledger.path), self.environ, lambda: self.now, self._deliver)

    def _deliver(self, receiver: Receiver, messages: tuple[Message, ...], _: Redactor) -> Delivery:
        self.told.append((receiver, messages))
        return self.answer

    def passes(self, after_s: float = QUIET_S) -> list[str]:
        """Read the ledger, wait, send what is due; the ids that were delivered by now."""
        self.made.read()
        self.now += after_s
        self.made.send()
        return self.ids

    @property
    def ids(self) -> list[str]:
        return [each.id for _, messages in self.told for each in messages]

    def begin(self, run: str = "r1", notify: Any = None, **spec: Any) -> Attempt:
        values = {"train": {}, **({} if notify is None else {"notify": notify}), **spec}
        attempt = Attempt(f"{run}-1", run)
        record = RunRecord(run, "mnist", "jobs/mnist.yaml", "emulated", 1.0, f"runs/{run}", RunSpec.of(values))
        self.ledger.record(Began(record, attempt))
        self.ledger.record(Moved(attempt.id, 2.0, AttemptState.RUNNING))
        return attempt

    def end(self, attempt: Attempt, error: Any = None, **more: Any) -> None:
        state = AttemptState.SUCCEEDED if error is None else AttemptState.FAILED
        self.ledger.record(AttemptEnded.by(attempt.id, 9.0, state, error, **more))

    def lease(self, run: str) -> str:
        lease, _ = lease_and_request(now=1.0)
        self.ledger.record(Intent(lease.__class__(**{**vars(lease), "run": run})))
        self.ledger.record(
            Created(lease.id, 2.0, "operation-1"), Ready(lease.id, 3.0), Leased(f"{run}-1", 3.0, lease.id)
        )
        return lease.id


@pytest.fixture
def post(tmp_path: Path) -> Post:
    made = Post(tmp_path, {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path)})
    made.settings(f"notify: {URL}\n")
    return made


def test_a_run_is_told_from_its_start_to_its_end_in_one_message_if_it_was_short(post: Post) -> None:
    attempt = post.begin()
    post.lease("r1")
    post.end(attempt, PayloadFailed("the job failed on worker0 with code 7", rc=7, workers=()), rc=7)
    assert post.woken == 2, "at its start and its end, not when it only began"
    assert post.passes(QUIET_S - 1) == [], "something else may come"
    assert post.passes(1.0) == ["r1-1/started", "r1-1/ended"]
    ((receiver, (_, ended)),) = post.told
    assert receiver == Receiver(URL)
    assert ended.text.startswith("mnist (r1) failed: the job failed on worker0 with code 7 (after 8 s")
    assert {"state": "failed", "exit_code": 7, "zone": "us-central1-a"}.items() <= ended.fields.items()
    assert post.passes() == ["r1-1/started", "r1-1/ended"], "once"


def test_a_lost_slice_and_the_attempt_that_follows_are_told_together(post: Post) -> None:
    first = post.begin()
    run, _ = post.ledger.run("r1")
    lost = AttemptEnded.by(first.id, 5.0, AttemptState.INTERRUPTED, Preempted("node is PREEMPTED"), cause="preempted")
    second = Attempt("r1-2", "r1")
    post.ledger.record(lost, Began(run, second, 5.0), Continued(second.id, 5.0, "goes on at step 80", 1, 1, 80, 4.0))
    assert post.passes() == ["r1-1/started", "r1-1/preempted", "r1-2/restarted"]
    texts = [each.text for each in post.told[0][1]]
    assert texts[1:] == [
        "mnist (r1) lost its TPU: preempted: node is PREEMPTED",
        "mnist (r1) gets another TPU: attempt 2 goes on at step 80",
    ]
    post.ledger.record(Moved(second.id, 6.0, AttemptState.RUNNING))
    post.end(second)
    assert post.passes()[3:] == ["r1-2/started", "r1-2/ended"]
    assert "runs (attempt 2)" in post.told[1][1][0].text


def test_results_that_wait_are_told_once_however_often_the_slice_is_held(post: Post) -> None:
    post.begin()
    lease = post.lease("r1")
    for until_s in (100.0, 200.0):
        post.ledger.record(HeldUntil(lease, 5.0, until_s, HeldFor.RESULTS))
    assert post.passes() == ["r1-1/started", f"{lease}/results-waiting"]
    assert "`tpujob collect r1` collects them" in post.told[0][1][1].text


def test_a_slice_that_the_user_holds_is_no_news(post: Post) -> None:
    post.begin()
    post.ledger.record(HeldUntil(post.lease("r1"), 5.0, 100.0, HeldFor.USER))
    assert post.passes() == ["r1-1/started"]


def test_what_is_not_proven_gone_and_money_that_is_near_are_told_once(post: Post) -> None:
    post.now = time.time()
    post.begin()
    lease = post.ledger.lease(post.lease("r1"))
    told = post.notifier.reporting(lambda report: None, post.ledger)
    for _ in range(2):
        post.notifier.unproven(post.ledger, unchecked(lease, SliceLost("no answer")), 7.0)
        told(Report("limit", "x", about=MoneyNear("r1", 300.0, 8.0)))
        post.notifier.left(post.ledger, lease.name.node, "!! NOT VERIFIED GONE: as gc says it", 8.0)
    assert sorted(post.passes(60.0)) == ["r1-1/started", "r1/cost-near", f"{lease.name.node}/teardown-unproven"]
    texts = " ".join(each.text for _, messages in post.told for each in messages)
    assert "NOT VERIFIED GONE: tpujob-owner0-" in texts
    assert "will be stopped by limits.max_cost in 5 m, after $8.00 emulated" in texts


@pytest.mark.parametrize(("notify", "ids"), [
    ({"on": []}, []), ({"on": ["ended"]}, ["r1-1/ended"]), ({"command": "cat"}, ["r1-1/started", "r1-1/ended"]),
    ({"command": "cat", "on": ["started"]}, ["r1-1/started"]), ({"url": "${env:HOOK}"}, ["r1-1/started", "r1-1/ended"]),
])  # fmt: skip
def test_a_job_says_who_is_told_and_of_what(post: Post, notify: Any, ids: list[str]) -> None:
    post.environ["HOOK"] = "https://example.com/of-the-job"
    post.end(post.begin(notify=notify))
    assert post.passes() == ids
    if ids and len(notify) == 1 and "on" not in notify:
        wanted = Receiver(command="cat") if "command" in notify else Receiver("https://example.com/of-the-job")
        assert post.told[0][0] == wanted


def test_without_a_receiver_there_is_not_even_an_outbox(tmp_path: Path) -> None:
    post = Post(tmp_path, {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}, own=None)
    post.end(post.begin())
    post.notifier.attend(post.ledger)
    assert not post.notifier.has_outbox and post.woken == 0
    post.end(post.begin("r2", notify={"command": "cat"}))
    assert post.woken == 2 and post.passes() == ["r2-1/started", "r2-1/ended"], "and what was before is not told now"


def test_twelve_runs_that_end_within_a_minute_are_one_message(post: Post) -> None:
    attempts = [post.begin(f"r{number}") for number in range(12)]
    post.passes(MOST_S)
    post.told.clear()
    for attempt in attempts:
        post.end(attempt)
        post.made.read()
        post.made.send()
        post.now += 5.0
    assert post.told == []
    post.made.send()
    ((_, messages),) = post.told
    assert len(messages) == 12


def test_a_receiver_that_does_not_answer_delays_no_other_and_is_tried_again(post: Post) -> None:
    post.end(post.begin())
    post.answer = Delivery(False, "hooks.example.com answered 503", again_s=100.0)
    post.passes()
    assert post.made.send() == pytest.approx(100.0)
    post.end(post.begin("r2", notify={"command": "cat"}))
    post.answer = Delivery(True, "fine")
    assert post.passes()[2:] == ["r2-1/started", "r2-1/ended"]
    post.now += 100.0
    post.made.send()
    assert post.told[-1][0] == Receiver(URL) and post.ids[-2:] == ["r1-1/started", "r1-1/ended"]
    assert post.made.send() is None


def test_a_wall_clock_that_was_set_back_delays_nothing(post: Post) -> None:
    post.end(post.begin())
    post.made.read()
    post.now -= 365 * 86400.0
    assert post.made.send() == 0.0 and len(post.ids) == 2


def test_a_variable_that_is_missing_here_waits_for_a_pass_that_has_it(post: Post) -> None:
    post.end(post.begin(notify={"url": "${env:HOOK}"}))
    assert post.passes() == []
    (problem,) = Outbox(post.directory).problems(0.0)
    assert problem.why == "the variable HOOK, which has the address, is not set here" and not problem.final
    post.environ["HOOK"] = URL
    assert post.passes(60.0) == ["r1-1/started", "r1-1/ended"]


def test_settings_that_cannot_be_read_lose_nothing(post: Post) -> None:
    post.end(post.begin())
    post.settings("notify: ftp://x\n")
    with pytest.raises(Exception, match="notify"):
        post.made.read()
    post.settings(f"notify: {URL}\n")
    assert post.passes() == ["r1-1/started", "r1-1/ended"]


def test_another_command_wakes_a_sender_for_what_a_killed_one_left(post: Post) -> None:
    post.begin()
    post.woken = 0
    post.notifier.attend(post.ledger)
    assert post.woken == 1, "the ledger has what nobody has read"
    post.passes()
    post.notifier.attend(post.ledger)
    assert post.woken == 1, "nothing is left"
    Outbox(post.directory).put([("settings", Message("x", "ended", 1.0, "x"))], 0.0)
    post.notifier.attend(post.ledger)
    assert post.woken == 2, "something waits"


def test_nothing_of_the_outbox_disturbs_a_run(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = post.begin()
    (post.directory / "notify.sqlite3").write_bytes(b"this is no database" * 100)
    post.end(attempt)
    post.notifier.attend(post.ledger)
    post.notifier.unproven(post.ledger, unchecked(lease_and_request()[0], SliceLost("x")), 7.0)
    post.notifier.hurry()
    assert post.ledger.attempt(attempt.id).state is AttemptState.SUCCEEDED
    monkeypatch.setattr(sys, "executable", "/does/not/exist")
    Notifier(post.directory, None, Redactor()).wake()
    with pytest.raises(sqlite3.Error):
        post.made.read()


# -- as a process ------------------------------------------------------------------------------------------------------


def test_one_process_sends_at_a_time_and_another_one_ends_at_once(post: Post) -> None:
    post.end(post.begin())
    held = FileLocks(post.directory / "locks")
    assert held.lock("notify")
    sender.work(post.made, quiet_s=0.0)
    assert post.told == []
    held.unlock("notify")
    sender.work(Pass(post.directory, Ledger(post.ledger.path), post.environ, deliver=post._deliver), quiet_s=0.0)
    assert post.ids == ["r1-1/started", "r1-1/ended"]


DIES = """
import os, signal, sys
from pathlib import Path
from orchestrator.notify import sender
from orchestrator.notify.delivery import deliver
from orchestrator.promise.ledger.ledger import Ledger

def dying(*told):
    if sys.argv[2] == "after":
        deliver(*told)
    os.kill(os.getpid(), signal.SIGKILL)

directory = Path(sys.argv[1])
made = sender.Pass(directory, Ledger(directory / "ledger.sqlite3"), os.environ, deliver=dying)
sender.work(made, quiet_s=0.0)
"""


@pytest.mark.parametrize(("when", "posts"), [("before", 1), ("after", 2)])
def test_a_sender_that_is_killed_loses_nothing(post: Post, stub: StubApi, when: str, posts: int) -> None:
    stub.answers(StubReply())
    post.settings(f"notify: {stub.url}/s3cr3t\n")
    post.end(post.begin())
    done = ran([sys.executable, "-c", DIES, str(post.directory), when], env={**os.environ, **post.environ})
    assert done.returncode == -signal.SIGKILL, done.stderr
    wakes = Notifier(post.directory, NotifyWish(stub.url), Redactor())
    env = {**os.environ, **post.environ, "CI": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        wakes.attend(post.ledger)
        until(lambda: len(stub.asked) == posts, "the next pass")
        until(lambda: Outbox(post.directory).waiting() == [], "the end of it")
        wakes.close()
    ids = [[each["id"] for each in json.loads(asked.body)["tpujob"]["messages"]] for asked in stub.asked]
    assert ids == [["r1-1/started", "r1-1/ended"]] * posts
    assert "s3cr3t" not in (post.directory / "notify.log").read_text()
    assert b"s3cr3t" not in (post.directory / "notify.sqlite3").read_bytes()
