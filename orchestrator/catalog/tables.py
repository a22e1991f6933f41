"""Reads the tables of this package: rows of a CSV file without its comments, and sizes that are written as ranges."""

import csv
import pkgutil
from collections.abc import Iterator


def rows_of(file: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a file of this package, by the names of its columns."""
    data = pkgutil.get_data(__package__, file)  # a fifth of the import time of importlib.resources
    assert data is not None, f"the package was built without {file}"
    yield from csv.DictReader(line for line in data.decode().splitlines() if not line.startswith("#"))


def sizes_of(text: str) -> Iterator[int]:
    """ "8 16 128..512/128" → 8, 16, 128, 256, 384, 512."""
    for word in text.split():
        span, _, step = word.partition("/")
        first, _, last = span.partition("..")
        yield from range(int(first), int(last or first) + 1, int(step or 1))
