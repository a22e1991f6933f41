"""The rules about several values of a job file, those of its sections included. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator import places
from orchestrator.core.jobfile.rules.access import access_problems
from orchestrator.core.jobfile.rules.data import data_problems
from orchestrator.core.jobfile.rules.env import env_problems, secret_problems
from orchestrator.core.jobfile.rules.metrics import metric_problems
from orchestrator.core.jobfile.rules.train import train_problems
from orchestrator.core.jobfile.yaml_source import Path
from orchestrator.core.text.names import shown

MAX_PATTERNS = 100


def cross_field_problems(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield what is wrong with the file as a whole."""
    yield from _train_or_command(data)
    yield from places.checks_on(data.get("on")).problems(data)
    yield from access_problems(_mapping(data, "access"))
    yield from train_problems(data)
    yield from _restarts(data)
    yield from env_problems(_mapping(data, "env"))
    yield from _artifacts(data.get("artifacts"))
    yield from metric_problems(_mapping(data, "metrics"))
    yield from data_problems(_mapping(data, "data"))
    yield from secret_problems(data, ())


def _train_or_command(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    if "train" in data and "command" in data:
        yield ("command",), "a job has either `train:` or `command:`, not both; remove one of them"
    elif "train" not in data and "command" not in data:
        yield (), "nothing to run: add `train:` (the built-in training) or `command:` (any shell command)"


def _restarts(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    if data.get("max_restarts") is not None and data.get("on_preemption") != "restart":
        yield ("max_restarts",), "only counts with `on_preemption: restart`; add that, or remove this"


def _artifacts(patterns: Any) -> Iterator[tuple[Path, str]]:
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if len(_list(patterns)) > MAX_PATTERNS:
        yield ("artifacts",), f"has {len(patterns)} patterns; write at most {MAX_PATTERNS}, with wildcards"
    for number, pattern in enumerate(_list(patterns)):
        if not isinstance(pattern, str):
            continue
        if not pattern.strip():
            yield ("artifacts", number), "is empty; write a pattern such as `out/*.json`"
        elif pattern.startswith(("/", "~")) or "\\" in pattern or ".." in pattern.split("/"):
            why = f"`{shown(pattern)}` leaves the job's directory; write a pattern below it, such as `out/*.json`"
            yield ("artifacts", number), why


def _mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
