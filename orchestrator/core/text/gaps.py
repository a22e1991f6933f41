"""What is left out of a log, as a piece of it, and in words. Pure."""

from orchestrator.core.text.sizes import format_size


class LeftOut(bytes):
    """A piece of a log without a byte, in whose place the log has `size_bytes` that are left out."""

    size_bytes: int

    def __new__(cls, size_bytes: int) -> "LeftOut":
        piece = super().__new__(cls)
        piece.size_bytes = size_bytes
        return piece


def gap_line(size_bytes: int) -> str:
    """Return the line that stands in the place of what is left out."""
    return f"tpujob: {format_size(size_bytes)} of the log left out here (limits.max_log)"
