"""The bytes of the relay's messages, as gcloud packs them."""

import struct

import pytest

from orchestrator.remote.iap import frames
from orchestrator.remote.iap.frames import BadFrame, Frame, Tag


@pytest.mark.parametrize(("message", "frame"), [
    (struct.pack(">HI3s", 1, 3, b"sid"), Frame(Tag.CONNECT_SUCCESS_SID, array=b"sid")),
    (struct.pack(">HQ", 2, 77), Frame(Tag.RECONNECT_SUCCESS_ACK, count=77)),
    (struct.pack(">HI2s", 4, 2, b"ab"), Frame(Tag.DATA, array=b"ab")),
    (struct.pack(">HI2sx", 4, 2, b"ab"), Frame(Tag.DATA, array=b"ab")),
    (struct.pack(">HQ", 7, 5), Frame(Tag.ACK, count=5)),
])  # fmt: skip
def test_each_message_of_the_relay_is_read(message: bytes, frame: Frame) -> None:
    assert frames.parse(message) == frame


@pytest.mark.parametrize("tag", [0, 3, 8, 10, 65535])
def test_a_message_that_means_nothing_to_a_client_is_skipped(tag: int) -> None:
    assert frames.parse(struct.pack(">HII", tag, 4003, 0)) is None


@pytest.mark.parametrize(
    "message", [b"", b"\0", b"\0\4\0", b"\0\4\0\0\0\5hi", b"\0\4\0\0\0\0", b"\0\7\0\0\0\1", b"\0\1"]
)
def test_a_message_that_is_cut_short_is_an_error(message: bytes) -> None:
    with pytest.raises(BadFrame):
        frames.parse(message)
