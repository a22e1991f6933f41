"""One shape for every receiver: bounded, harmless, and readable by programs."""

import json

from orchestrator.notify.messages import MOST_BYTES, MOST_CHARS, MOST_LINES, Message, message_of, payload, variables


def ended(number: int, text: str = "", **fields: object) -> Message:
    text = text or f"train-{number} (r{number}) succeeded"
    return Message(
        f"r{number}-1/ended", "ended", float(number), text, f"r{number}", {"name": f"train-{number}", **fields}
    )


def test_one_message_is_its_text_for_all_receivers() -> None:
    shape = payload([ended(1, exit_code=0)])
    assert shape["text"] == shape["content"] == "train-1 (r1) succeeded"
    (told,) = shape["tpujob"]["messages"]
    assert (told["event"], told["run"], told["exit_code"], shape["tpujob"]["count"]) == ("ended", "r1", 0, 1)
    assert message_of(told) == ended(1, exit_code=0)


def test_twelve_messages_are_one_with_twelve_lines_in_their_order() -> None:
    shape = payload(
        [*(ended(number) for number in range(12, 1, -1)), Message("r1-1/preempted", "preempted", 1.0, "lost")]
    )
    head, *lines = shape["content"].splitlines()
    assert head == "tpujob: 12 messages (1 preempted, 11 ended)"
    assert lines == ["• lost", *(f"• train-{number} (r{number}) succeeded" for number in range(2, 13))]


def test_a_storm_stays_within_what_receivers_take() -> None:
    for text in ("x" * 5000, "ü" * 5000, "🎉" * 5000, "short"):
        shape = payload([ended(number, text) for number in range(500)])
        assert len(shape["content"]) <= MOST_CHARS and len(shape["content"].encode()) <= MOST_BYTES
        assert "… and " in shape["content"] and "more: `tpujob list`" in shape["content"]
        assert (len(shape["tpujob"]["messages"]), shape["tpujob"]["count"]) == (MOST_LINES, 500)
    alone = payload([ended(1, "x" * 5000)])["content"]
    assert len(alone) == 300 and alone.endswith("…")
    assert payload([ended(1, "failed:\n  two\tlines")])["content"] == "failed: two lines"


def test_nothing_in_a_message_calls_a_channel() -> None:
    shape = payload([ended(1, "failed: <!here> & @everyone")])
    assert shape["text"] == "failed: &lt;!here&gt; &amp; @everyone"
    assert shape["content"] == "failed: <!here> & @everyone" and shape["allowed_mentions"] == {"parse": []}
    json.dumps(shape)


def test_a_command_gets_what_its_messages_share() -> None:
    one = variables([ended(1, state="failed", exit_code=7)])
    assert one == {
        "TPUJOB_EVENT": "ended", "TPUJOB_RUN": "r1", "TPUJOB_NAME": "train-1", "TPUJOB_STATE": "failed",
        "TPUJOB_EXIT_CODE": "7", "TPUJOB_TEXT": "train-1 (r1) succeeded", "TPUJOB_COUNT": "1",
    }  # fmt: skip
    both = variables([ended(1), Message("x", "preempted", 1.0, "lost")])
    assert both["TPUJOB_EVENT"] == "several" and both["TPUJOB_COUNT"] == "2" and "TPUJOB_RUN" not in both
