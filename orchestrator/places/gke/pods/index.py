"""The index of what a pod has left in the bucket of its job (`vm.pod.results`): rows of files, and how the pod ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from orchestrator.errors import ArtifactError
from orchestrator.text import parsing
from orchestrator.text.units import format_size
from orchestrator.vm.buckets.upload import INDEX, INDEX_BYTES

MOST_BYTES = INDEX_BYTES + (1 << 20)  # of one: its rows, with what is between them, and how the pod ended

# Yields the content of a file of a worker, by its path in the bucket of the run. Raises CloudError.
ReadResult = Callable[[int, str], Iterator[bytes]]


def read_index(read: ReadResult, worker: int, attempt: str) -> Mapping[str, Any]:
    """Return the index of a worker. Raises CloudError where it cannot be read, ArtifactError for another one, or none."""
    found: Any = None
    content = bytearray()
    for piece in read(worker, INDEX):
        content += piece
        if len(content) > MOST_BYTES:
            raise ArtifactError(f"{INDEX} is larger than {format_size(MOST_BYTES)}, the most that a pod writes")
    with suppress(ValueError, RecursionError):
        found = parsing.loads(content.decode())
    if not isinstance(found, dict) or not isinstance(found.get("rows"), list):
        raise ArtifactError(f"{INDEX} makes no sense")
    if found.get("attempt") != attempt:
        raise ArtifactError(f"{INDEX} is of another attempt")
    return found
