"""Which ports the words of `tpujob forward` ask for."""

from __future__ import annotations

import pytest

from orchestrator.client.slices.forward import PortWish, port_wish
from orchestrator.errors import UserError


@pytest.mark.parametrize(
    ("word", "wish"),
    [
        ("6006", PortWish(6006)),
        ("8080:6006", PortWish(6006, 8080)),
        ("65535", PortWish(65535)),
        ("mine", None),
        ("mine-1", None),
        ("", None),
        ("6006/tcp", None),
        ("-1", None),
    ],
)
def test_a_word_is_a_port_or_the_name_of_a_slice(word: str, wish: PortWish | None) -> None:
    assert port_wish(word) == wish


@pytest.mark.parametrize("word", ["0", "65536", "0:6006", "99999:1"])
def test_a_number_that_is_no_port_is_refused(word: str) -> None:
    with pytest.raises(UserError, match=f"{word} is no port"):
        port_wish(word)
