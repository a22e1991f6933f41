"""What the module `check` of each place has: what it refuses of a job file, before anything else is known. Pure."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from orchestrator.job.yaml_source import Path


class FileChecks(Protocol):
    UNUSED: tuple[str, ...]  #: keys of a job file that have no effect there

    @property
    def problems(self) -> Callable[[Mapping[str, Any]], Iterator[tuple[Path, str]]]:
        """Yields the path of a key and the end of a sentence about it, for each mistake. Values may be of wrong types."""
