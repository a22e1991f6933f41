"""Which ports the words of `tpujob forward` ask for, and when it ends."""

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.client.slices import forward
from orchestrator.client.slices.forward import PortWish, port_wish, wait_for_end
from orchestrator.errors import AuthError, CloudUnavailable, UnexpectedReply, UserError


@pytest.mark.parametrize(("word", "wish"), [
    ("6006", PortWish(6006)), ("8080:6006", PortWish(6006, 8080)), ("65535", PortWish(65535)), ("mine", None),
    ("mine-1", None), ("", None), ("6006/tcp", None), ("-1", None),
])  # fmt: skip
def test_a_word_is_a_port_or_the_name_of_a_slice(word: str, wish: PortWish | None) -> None:
    assert port_wish(word) == wish


@pytest.mark.parametrize("word", ["0", "65536", "0:6006", "99999:1"])
def test_a_number_that_is_no_port_is_refused(word: str) -> None:
    with pytest.raises(UserError, match=f"{word} is no port"):
        port_wish(word)


def test_an_api_that_does_not_tell_of_the_slice_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "LOOK_S", 0.0)
    monkeypatch.setattr(forward, "ASK_S", 0.0)
    answers = [CloudUnavailable("away"), AuthError("sign in again"), UnexpectedReply("what?"), None]

    def run(program: Any) -> None:
        program.close()
        if (answer := answers.pop(0)) is not None:
            raise answer

    session: Any = SimpleNamespace(ledger=SimpleNamespace(lease=lambda _id: SimpleNamespace(down_at=None)), run=run)
    shell: Any = SimpleNamespace(lease=SimpleNamespace(id="l", handle="mine", name="a name"))
    assert wait_for_end(session, shell) == "mine is gone"
    assert answers == []
