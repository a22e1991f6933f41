"""The messages of the relay's subprotocol, version 4: each is one binary WebSocket message, a big-endian tag first. Pure.

CONNECT_SUCCESS_SID (1) and DATA (4) carry an array with its length, RECONNECT_SUCCESS_ACK (2) and ACK (7) a number of bytes.
Other tags exist (10 is LONG_CLOSE) and carry nothing that a client needs: like Google's own clients, `parse` skips them.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

SUBPROTOCOL = "relay.tunnel.cloudproxy.app"
MAX_DATA_BYTES = 16384  # of one DATA message
_TAG, _LENGTH, _COUNT = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")


class Tag(IntEnum):
    CONNECT_SUCCESS_SID = 1
    RECONNECT_SUCCESS_ACK = 2
    DATA = 4
    ACK = 7


class BadFrame(ValueError):
    """The relay broke its own protocol."""


@dataclass(frozen=True, slots=True)
class Frame:
    """`array` of the tags that carry one, else `count`."""

    tag: Tag
    array: bytes = b""
    count: int = 0


def data(content: bytes) -> bytes:
    """Return the DATA message of 1 to MAX_DATA_BYTES bytes."""
    assert 0 < len(content) <= MAX_DATA_BYTES, "one message holds 1 to 16,384 bytes"
    return _TAG.pack(Tag.DATA) + _LENGTH.pack(len(content)) + content


def ack(received: int) -> bytes:
    """Return the ACK message for `received` bytes since the tunnel began."""
    return _TAG.pack(Tag.ACK) + _COUNT.pack(received)


def parse(message: bytes) -> Frame | None:
    """Return the message's content; None for a tag that means nothing to a client. Raises BadFrame if it is too short."""
    try:
        (number,) = _TAG.unpack_from(message)
        if number in (Tag.RECONNECT_SUCCESS_ACK, Tag.ACK):
            return Frame(Tag(number), count=_COUNT.unpack_from(message, _TAG.size)[0])
        if number not in (Tag.CONNECT_SUCCESS_SID, Tag.DATA):
            return None
        (length,) = _LENGTH.unpack_from(message, _TAG.size)
    except struct.error as error:
        raise BadFrame(f"a message of {len(message)} bytes") from error
    array = message[_TAG.size + _LENGTH.size :][:length]
    if not 0 < length == len(array):
        raise BadFrame(f"an array of {len(array)} bytes that is said to have {length}")
    return Frame(Tag(number), array)
