"""Sizes, parsed and formatted."""

import pytest

from orchestrator.core.text.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("50GB", 50 * 10**9), ("1.5 TB", 1_500 * 10**9), ("512MiB", 512 << 20), ("7 b", 7), ("10kB", 10_000)],
)
def test_a_size_has_a_unit(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "50", "GB", "50 gigabytes", "-1GB", "1e9B", "５GB", "50G"])
def test_an_invalid_size_gets_advice(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as 500MB, 50GB or 1\.5TB"):
        parse_size(text)


@pytest.mark.parametrize(("size_bytes", "text"), [
    (0, "0 bytes"), (1, "1 byte"), (812, "812 bytes"), (81_200, "81 KB"), (999_600, "1.0 MB"), (3_240_000_000, "3.2 GB"),
    (5e15, "5,000.0 TB"),
])  # fmt: skip
def test_a_size_is_shown_with_few_figures(size_bytes: float, text: str) -> None:
    assert format_size(size_bytes) == text
