"""Delivery to a receiver on loopback, and to a command: what each answer means, and that none of them takes long."""

import json
import os
import threading
import time
from email.utils import formatdate
from pathlib import Path

import pytest

from orchestrator.notify import delivery
from orchestrator.notify.delivery import Delivery, deliver
from orchestrator.notify.messages import Message
from orchestrator.notify.receivers import Receiver
from orchestrator.text.redaction import MASK, Redactor
from tests.fakes.api import StubApi, StubReply
from tests.waiting import has_ended, held_port, until

ENDED = Message("r1-1/ended", "ended", 1.0, "mnist (r1) succeeded", "r1", {"name": "mnist", "exit_code": 0})
PATH = "/services/s3cr3t-s3cr3t"


def send(stub: StubApi, *replies: StubReply) -> Delivery:
    stub.answers(*replies)
    return deliver(Receiver(stub.url + PATH), (ENDED,), Redactor([stub.url + PATH]))


def test_a_receiver_gets_one_post_of_json(stub: StubApi) -> None:
    done = send(stub, StubReply(204))
    assert done == Delivery(True, "127.0.0.1 answered 204")
    (asked,) = stub.asked
    assert (asked.method, asked.path, asked.headers["content-type"]) == ("POST", PATH, "application/json")
    assert json.loads(asked.body)["text"] == "mnist (r1) succeeded"
    assert asked.headers["x-message"] == "{{.content}}" and asked.headers["x-template"] == "yes", "for ntfy"


@pytest.mark.parametrize(("status", "final"), [
    (400, True), (401, True), (404, True), (410, True), (408, False), (429, False), (500, False), (503, False),
])  # fmt: skip
def test_what_a_receiver_refuses_is_final_unless_it_may_pass(stub: StubApi, status: int, final: bool) -> None:
    done = send(stub, StubReply(status, "invalid_payload\n\x1b[31m" + "x" * 10_000))
    assert (done.ok, done.final) == (False, final)
    assert done.said.startswith(f"127.0.0.1 answered {status}: invalid_payload") and "\x1b" not in done.said
    assert len(done.said) < 400


@pytest.mark.parametrize(("after", "pause_s"), [
    ("120", 120), (300.0, 300), (-300.0, 0), ("999999", 3600), ("soon", None),
])  # fmt: skip
def test_a_receiver_says_when_to_try_again(stub: StubApi, after: str | float, pause_s: float | None) -> None:
    """As seconds, or as a date so many seconds from now."""
    said = after if isinstance(after, str) else formatdate(time.time() + after, usegmt=True)
    again_s = send(stub, StubReply(429, headers=(("Retry-After", said),))).again_s
    assert again_s == (None if pause_s is None else pytest.approx(pause_s, abs=5))


def test_a_redirection_is_not_followed_and_its_address_not_repeated(stub: StubApi) -> None:
    done = send(stub, StubReply(307, headers=(("Location", f"{stub.url}/elsewhere-s3cr3t"),)))
    assert (
        len(stub.asked) == 1
        and done.final
        and "redirections are not followed" in done.said
        and "s3cr3t" not in done.said
    )


def test_a_huge_answer_is_not_read_and_a_slow_one_not_waited_for(
    stub: StubApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert send(stub, StubReply(200, b"x" * (64 << 20))).ok
    monkeypatch.setattr(delivery, "IN_ALL_S", 0.3)
    let_go = threading.Event()
    done = send(stub, StubReply(200, hang_until=let_go))
    let_go.set()
    assert done == Delivery(False, "127.0.0.1 did not answer in time")


def test_a_dead_receiver_is_a_passing_failure_that_names_its_host_alone() -> None:
    with held_port() as port:
        done = deliver(Receiver(f"http://127.0.0.1:{port}{PATH}"), (ENDED,), Redactor())
    assert (done.ok, done.final) == (False, False)
    assert done.said.startswith("127.0.0.1 cannot be reached") and "s3cr3t" not in done.said


def test_secrets_are_in_nothing_that_is_sent_or_said(stub: StubApi) -> None:
    stub.answers(StubReply(400, f"no such hook: {stub.url}{PATH}"))
    told = Message(
        "r1-1/ended", "ended", 1.0, f"failed: hunter2-hunter2 at {stub.url}{PATH}", "r1", {"detail": "hunter2-hunter2"}
    )
    done = deliver(Receiver(stub.url + PATH), (told,), Redactor(["hunter2-hunter2", stub.url + PATH]))
    body = stub.asked[0].body.decode()
    assert "hunter2" not in body and "s3cr3t" not in body and MASK in json.loads(body)["text"]
    assert "s3cr3t" not in done.said and MASK in done.said


def test_a_command_gets_variables_and_json_and_its_output_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    command = 'cat > body; echo "$TPUJOB_EVENT $TPUJOB_RUN $TPUJOB_EXIT_CODE $TPUJOB_TEXT" > said; pwd; echo oops >&2'
    assert deliver(Receiver(command=command), (ENDED,), Redactor()).ok
    assert (tmp_path / "said").read_text() == "ended r1 0 mnist (r1) succeeded\n"
    assert json.loads((tmp_path / "body").read_text())["tpujob"]["messages"][0]["run"] == "r1"
    assert capfd.readouterr() == ("", "")
    failed = deliver(Receiver(command="echo no mail here >&2; exit 3"), (ENDED,), Redactor())
    assert failed == Delivery(False, "the command of `notify:` ended with 3: no mail here")


def test_a_command_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(delivery, "COMMAND_S", 0.5)
    done = deliver(Receiver(command="sleep 300 & echo $! > pid; wait"), (ENDED,), Redactor())
    assert not done.ok and not done.final and "did not end within" in done.said
    pid = int((tmp_path / "pid").read_text())
    until(lambda: has_ended(pid), "its end")
    assert os.getpid() != pid
