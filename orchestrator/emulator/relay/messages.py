"""The bytes of the relay's subprotocol, version 4, as the relay reads and writes them. Pure.

A message is a big-endian tag of two bytes, then a length of four bytes and an array, or a count of eight bytes.
"""

SUBPROTOCOL = "relay.tunnel.cloudproxy.app"
ORIGIN = "bot:iap-tunneler"  # no web page can send it
MAX_ARRAY = 16384
SUCCESS_SID, SUCCESS_ACK, DATA, ACK = 1, 2, 4, 7

# Close codes, by the names that Google's IAP Desktop gives them.
NORMAL, SID_UNKNOWN, SID_IN_USE, NOT_REACHED = 1000, 4001, 4002, 4003
BAD_ACK, INVALID_ACK, INVALID_OPCODE, INVALID_TAG, READ_FAILED = 4005, 4006, 4007, 4008, 4010
INVALID_DATA, NOT_AUTHORIZED, LOOKUP_FAILED, REWIND_FAILED = 4013, 4033, 4047, 4074
REASONS = {
    SID_UNKNOWN: "unknown session",
    SID_IN_USE: "session in use",
    NOT_REACHED: "failed to connect to backend",
    4004: "reauthentication required",
    BAD_ACK: "bad ack",
    INVALID_ACK: "invalid ack",
    INVALID_OPCODE: "invalid opcode",
    INVALID_TAG: "invalid tag",
    READ_FAILED: "destination read failed",
    INVALID_DATA: "invalid data",
    NOT_AUTHORIZED: "not authorized",
    LOOKUP_FAILED: "Failed to lookup instance",
    REWIND_FAILED: "failed to rewind",
}


class Violation(Exception):
    """The client broke the protocol; the relay closes with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(REASONS[code])
        self.code = code


def with_array(tag: int, content: bytes) -> bytes:
    """Return a message of SUCCESS_SID or DATA."""
    return tag.to_bytes(2, "big") + len(content).to_bytes(4, "big") + content


def with_count(tag: int, count: int) -> bytes:
    """Return a message of SUCCESS_ACK or ACK."""
    return tag.to_bytes(2, "big") + count.to_bytes(8, "big")


def read(message: bytes) -> bytes | int:
    """Return the array of a DATA message, or the count of an ACK: a client sends nothing else. Raises Violation."""
    tag, rest = int.from_bytes(message[:2], "big"), message[2:]
    if len(message) >= 2 and tag == ACK:
        if len(rest) != 8:
            raise Violation(INVALID_ACK)
        return int.from_bytes(rest, "big")
    if len(message) < 2 or tag != DATA:
        raise Violation(INVALID_TAG)
    content = rest[4:]
    if not 0 < len(content) <= MAX_ARRAY or int.from_bytes(rest[:4], "big") != len(content):
        raise Violation(INVALID_DATA)
    return content
