"""What travels to a worker: only what it was offered, in blocks that hold exactly that."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import RemoteError
from orchestrator.remote.shipping import sending
from orchestrator.remote.shipping.sending import BLOCK_BYTES, HEADER, Blocks, Selection, Sending, encoded
from orchestrator.remote.shipping.shipment import Shipment, make_shipment
from orchestrator.remote.shipping.tree import Source, survey


def shipment(tmp_path: Path, *contents: bytes) -> Shipment:
    sources = {f"{number:03}": Source(content) for number, content in enumerate(contents)}
    return make_shipment(survey(sources), tmp_path / "store")


def decoded(stream: bytes) -> Iterator[tuple[bytes, bytes]]:
    while stream:
        kind, size = HEADER.unpack(stream[: HEADER.size])
        data, stream = stream[HEADER.size :][:size], stream[HEADER.size :][size:]
        if kind == b"0":
            stream = data + stream
            data = bytes(size)
        yield kind, zlib.decompress(data) if kind == b"Z" else data


def sent(made: Shipment, missing: list[list[int]], offset: int = 0) -> list[tuple[bytes, bytes]]:
    blocks = Blocks(made, Selection.of({"missing": missing, "offset": offset}, made))
    stream = [(block, size) for block, size in blocks]
    assert sum(size for _, size in stream) == blocks.size_bytes
    return list(decoded(b"".join(block for block, _ in stream)))


def test_the_stream_holds_the_missing_contents_one_after_the_other(tmp_path: Path) -> None:
    contents = [os.urandom(size) for size in (10, BLOCK_BYTES, 3 * BLOCK_BYTES + 7, 1, 5)]
    made = shipment(tmp_path, *contents)
    assert b"".join(data for _, data in sent(made, [[0, 5]])) == b"".join(contents)
    assert b"".join(data for _, data in sent(made, [[0, 1], [2, 4]])) == contents[0] + contents[2] + contents[3]
    assert b"".join(data for _, data in sent(made, [[2, 3]], 1000)) == contents[2][1000:]
    assert sent(made, []) == []


def test_equal_contents_travel_once_and_empty_ones_never(tmp_path: Path) -> None:
    made = shipment(tmp_path, b"same", b"", b"same", b"other")
    assert made.files == 4 and [size for _, size in made.manifest.contents] == [4, 5]


def test_text_is_packed_zeros_are_counted_and_noise_travels_as_it_is() -> None:
    text, noise = b"def main():\n    return 1\n" * 30_000, os.urandom(100_000)
    assert [kind for kind, _ in decoded(encoded(text))] == [b"Z"] and len(encoded(text)) < len(text) / 10
    assert [kind for kind, _ in decoded(encoded(noise))] == [b"R"] and len(encoded(noise)) == len(noise) + HEADER.size
    assert len(encoded(bytes(BLOCK_BYTES))) == HEADER.size
    for data in (text, noise, bytes(777)):
        assert b"".join(part for _, part in decoded(encoded(data))) == data


@pytest.mark.parametrize("answer", [
    *({"missing": [[0, 3]], "offset": 0}, {"missing": [[-1, 1]], "offset": 0}, {"missing": [[1, 1]], "offset": 0}),
    *({"missing": [[1, 2], [0, 1]], "offset": 0}, {"missing": [[0, 1], [0, 1]], "offset": 0}),
    *({"missing": [["0", "1"]], "offset": 0}, {"missing": [[0]], "offset": 0}),
    *({"missing": [[0.0, 1.5]], "offset": 0}, {"missing": "../../.ssh/id_rsa", "offset": 0}),
    *({"missing": {"/etc/passwd": 1}, "offset": 0}, {"missing": [[0, 1]], "offset": -5}),
    *({"missing": [[0, 1]], "offset": 10}, {"missing": [[0, 1]]}, {"missing": [], "offset": 4}, {"offset": 0}),
])  # fmt: skip
def test_a_worker_gets_nothing_that_it_was_not_offered(tmp_path: Path, answer: dict[str, Any]) -> None:
    with pytest.raises(RemoteError, match="a worker asks for"):
        Selection.of(answer, shipment(tmp_path, b"0123456789", b"x"))


def test_a_file_that_becomes_shorter_while_it_is_sent_is_an_error(tmp_path: Path) -> None:
    made = shipment(tmp_path, b"0123456789")
    next(iter(made.contents.values())).write_bytes(b"012")
    with pytest.raises(RemoteError, match="was cut while it was sent"):
        sent(made, [[0, 1]])


class Call:
    """A running `receive` on a worker that has the manifest, and then gives this answer."""

    name = "worker0"

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answers, self.connection = iter([{"manifest": True}, answer]), self

    def __call__(self, *_: Any, **__: Any) -> Call:
        return self

    def __enter__(self) -> Call:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def answer(self, limit: int = 0) -> dict[str, Any]:
        return next(self.answers)


EMPTY = hashlib.sha256(b"").hexdigest()


@pytest.mark.parametrize(("answer", "said"), [
    ({"changed": EMPTY}, "asks for what it was not offered"),
    ({"changed": "0" * 64}, "asks for what it was not offered"),
    ({"changed": ["x"]}, "asks for what it was not offered"),
    ({"changed": None}, "asks for what it was not offered"),
    ({"changed": hashlib.sha256(b"text").hexdigest()}, "000 arrived with another content than announced"),
    ({"free": 1000}, "no room on its disk .* 1 KB is free"),
    ({"free": "much"}, "no room on its disk .* nothing that it can tell is free"),
    ({"free": -1}, "no room on its disk .* nothing that it can tell is free"),
])  # fmt: skip
def test_whatever_a_worker_complains_about_is_an_error_of_that_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], said: str
) -> None:
    call: Any = Call(answer)
    monkeypatch.setattr(sending, "WorkerCall", call)
    with pytest.raises(RemoteError, match=f"worker0: .*{said}"):
        Sending().send(call, shipment(tmp_path, b"text", b""))
