"""What a page keeps of a run for later: its files with links, the job as it was run, what it was made with. Pure."""

import os
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from orchestrator.report.results import RunReport

MOST_FILES = 200
OWN_FILES = ("report.html", "trace.json", "results.json")
NO_KEYS = ("sweep", "secret_sources")  # of a job as recorded: not of its file


@dataclass(frozen=True, slots=True)
class FileLink:
    path: str
    href: str
    size: str


def files(report: RunReport, link: str) -> tuple[list[FileLink], int]:
    """Return the files of the run, and how many are left out. `link`: the run's directory as seen from the page."""
    every = [file for file in report.files if file.path not in OWN_FILES]
    # The first part of a link is never from a job, so that no file name is read as the scheme of an address.
    found = [
        FileLink(file.path, f"{link}/{urllib.parse.quote(os.fsencode(file.path))}", _size(file.size_bytes))
        for file in every[:MOST_FILES]
    ]
    return found, max(len(every) - MOST_FILES, 0)


def _size(size_bytes: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:,.1f} {unit}"
    return f"{size_bytes} bytes"


def job_text(spec: Mapping[str, Any]) -> str:
    """Return the job as it was run, as YAML: what was resolved, without what is empty and without values of variables."""
    return yaml.safe_dump(_filled({k: v for k, v in spec.items() if k not in NO_KEYS}), sort_keys=False, width=100)


def _filled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: kept for key, inner in value.items() if (kept := _filled(inner)) not in (None, {}, [], "")}
    return [_filled(each) for each in value] if isinstance(value, list | tuple) else value


def environment(provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what the run was made with, from `provenance.json` of its first worker."""
    found = []
    for key in ("device", "hardware", "processes", "seed", "written_at"):
        if (value := provenance.get(key)) is not None and not isinstance(value, dict | list):
            found.append((key.replace("_", " "), str(value)))
    for key in ("versions", "host", "dataset"):
        inner = provenance.get(key)
        if isinstance(inner, dict):
            plain = {name: value for name, value in inner.items() if isinstance(value, str | int | float)}
            found += [(f"{key}: {name}", str(value)) for name, value in list(plain.items())[:20]]
    return [(name[:80], value[:300]) for name, value in found]
