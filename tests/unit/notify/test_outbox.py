"""The outbox: each id once, in private, tried again at growing distances, and given up after a day."""

import stat
from pathlib import Path

import pytest

from orchestrator.notify.messages import Message
from orchestrator.notify.outbox import AGAIN_S, GIVE_UP_S, MOST_AGAIN_S, REMEMBERED_S, Outbox, Problem


@pytest.fixture
def box(tmp_path: Path) -> Outbox:
    made = Outbox(tmp_path)
    made.make(7)
    return made


def message(identity: str = "r1-1/ended") -> Message:
    return Message(identity, "ended", 1.0, "it ended", "r1", {"name": "x"})


def test_it_is_private_and_remembers_how_far_the_ledger_was_read(box: Outbox) -> None:
    assert stat.S_IMODE(box.path.stat().st_mode) == 0o600
    box.make(99)
    assert box.seen() == 7, "made once"
    box.put([("settings", message())], 10.0, seen=12)
    assert box.seen() == 12


def test_the_same_id_is_taken_once_also_after_it_was_delivered(box: Outbox) -> None:
    box.put([("settings", message()), ("settings", message())], 10.0)
    (waiting,) = box.waiting()
    assert (waiting.receiver, waiting.messages, waiting.since, waiting.until, waiting.tries) == (
        "settings", (message(),), 10.0, 10.0, 0,
    )  # fmt: skip
    box.delivered([message().id], 11.0)
    box.put([("settings", message())], 12.0)
    assert box.waiting() == [] and box.problems(0.0) == []
    box.delivered([], 11.0 + REMEMBERED_S + 1)
    box.put([("settings", message())], 13.0)
    assert len(box.waiting()) == 1, "what is long over is forgotten"


def test_what_fails_is_tried_again_later_and_later_and_given_up_after_a_day(box: Outbox) -> None:
    box.put([("settings", message())], 0.0)
    now, pauses = 0.0, []
    while waiting := box.waiting():
        now = max(now, waiting[0].next_at)
        box.failed([message().id], now, "it answered 500")
        if again := box.waiting():
            pauses.append(again[0].next_at - now)
    assert pauses[:4] == [AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S, 8 * AGAIN_S] and max(pauses) == MOST_AGAIN_S
    assert GIVE_UP_S <= now < GIVE_UP_S + MOST_AGAIN_S
    (problem,) = box.problems(now - 1)
    assert problem == Problem("settings", 1, "it answered 500; given up after a day", True)
    assert box.problems(now + 1) == [], "it was told long enough"


def test_a_receiver_that_asks_for_a_pause_gets_it_also_from_newer_messages(box: Outbox) -> None:
    box.put([("settings", message())], 0.0)
    box.failed([message().id], 0.0, "it answered 429", again_s=600.0)
    box.put([("settings", message("r2-1/ended")), ("other", message("r3-1/ended"))], 1.0)
    mine, other = box.waiting()
    assert (mine.next_at, len(mine.messages), other.next_at) == (600.0, 2, 1.0)
    assert box.problems(0.0) == [Problem("settings", 1, "it answered 429", False)]
    box.hurry()
    assert box.waiting()[0].next_at == 0.0


def test_what_a_receiver_refuses_is_not_tried_again(box: Outbox) -> None:
    box.put([("settings", message())], 0.0)
    box.failed([message().id], 0.0, "it answered 404", final=True)
    assert box.waiting() == [] and box.problems(0.0) == [Problem("settings", 1, "it answered 404", True)]
