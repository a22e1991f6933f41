"""Pydantic's errors about a job file as messages in the file's own terms: what is wrong, why, and the fix. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.errors import JobSpecError
from orchestrator.job.source.yaml_source import Mistake, Path, YamlSource
from orchestrator.job.tpu_keys import written_path
from orchestrator.text.names import for_display

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

MAX_REPORTED = 20

Sections = Mapping[Path, Sequence[str]]  # the keys that each section of the file knows

# Keys of other tools, and keys written by analogy, below the key that they stand for.
_MEANT_BY = {
    "tpu.accelerator": ("accelerator_type", "type"),
    "tpu.zone": ("zones", "region", "regions"),
    "tpu.runtime": ("runtime_version", "version"),
    "tpu.spot": ("preemptible",),
    "tpu.queue": ("queued",),
    "tpu.any_of": ("alternatives",),
    "tpu.max_price_per_hour": ("max_price",),
    "on_preemption": ("restart",),
    "max_restarts": ("restarts",),
    "train.batch_size": ("batch",),
    "train.lr": ("learning_rate",),
    "command": ("run", "script", "cmd"),
    "env": ("environment", "envs"),
    "artifacts": ("outputs",),
    "params": ("parameters", "param"),
    "matrix": ("sweep", "grid"),
    "parallel": ("max_parallel",),
    "limits.max_duration": ("max_hours", "max_time", "timeout"),
}
_SYNONYMS = {synonym: key for key, synonyms in _MEANT_BY.items() for synonym in synonyms}
_BOUNDS = {
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be greater than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "finite_number": "must be a finite number",
}
_YES = {"yes": "true", "y": "true", "on": "true", "no": "false", "n": "false", "off": "false"}
_YES |= {"true": "true", "false": "false", "1": "true", "0": "false"}


def explain(error: ValidationError, source: YamlSource, sections: Sections) -> Iterator[Mistake]:
    """Yield a mistake, at its line, for each error of pydantic that is not a consequence of one already listed."""
    for detail in error.errors(include_url=False):
        path: Path = tuple(part for part in detail["loc"] if part != "[key]")
        if not source.is_invalid(path):
            yield Mistake(source.line(path), path, _sentence(detail, path, source, sections))


def messages(file: str, source: YamlSource, mistakes: Iterable[Mistake]) -> list[str]:
    """Return the mistakes as the user reads them, in the order of their lines: `job.yaml:7: tpu.zone: ...`.

    What an option has set comes last, and names it: `--set tpu.zone=x: ...`.
    """
    of_file, of_options = [], []
    for mistake in sorted(mistakes, key=lambda mistake: mistake.line):
        parts = written_path(source, mistake.path)
        field = "".join(f"[{part}]" if isinstance(part, int) else f".{for_display(part)}" for part in parts).lstrip(".")
        text = f"{field}: {mistake.text}" if field else mistake.text
        # What reading found, the file says, whatever an option has put there since.
        if mistake not in source.mistakes and (found := source.option(mistake.path)) is not None:
            place, option = found
            of_options.append(f"{option}: {mistake.text if place == mistake.path else text}")
        else:
            of_file.append(f"{file}:{mistake.line}: {text}" if file else text)
    return [*of_file, *of_options]


def refusal(path: str, lines: list[str]) -> JobSpecError:
    """Return the error of a file with these mistakes."""
    where = f"{path}: " if path else ""
    more = [f"{where}and {len(lines) - MAX_REPORTED} more mistakes"] if len(lines) > MAX_REPORTED else []
    hint = f"`tpujob plan {path}` checks a file without creating anything" if path else None
    return JobSpecError(lines[:MAX_REPORTED] + more, hint=hint)


def _sentence(detail: ErrorDetails, path: Path, source: YamlSource, sections: Sections) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    got = _got(detail["input"], source.written.get(path))
    if kind == "extra_forbidden":
        return _unknown_key(path, sections)
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return _choice(str(context["expected"]), detail["input"], got)
    if kind in _BOUNDS:
        bounds = {name: int(bound) if bound == int(bound) else bound for name, bound in context.items()}
        return f"{_BOUNDS[kind].format(**bounds)}, not {got}"
    if kind == "string_type" and path[:1] == ("env",):
        if detail["input"] is None:
            return 'has no value; write "" for empty text, or ${env:NAME} for your own variable NAME'
        return "expected text or a number"  # and do not repeat what may be a password
    expected = {"string": "text", "bool": "`true` or `false`", "int": "a whole number", "float": "a number"}
    expected |= {"tuple": "a list (`- item` lines, or [a, b])"}
    wanted = expected.get(kind.partition("_")[0], "a mapping (indented `key: value` lines)")
    return f"expected {wanted}, got {got}{_fix(kind, detail['input'], source.written.get(path))}"


def _unknown_key(path: Path, sections: Sections) -> str:
    section, key = tuple(part for part in path[:-1] if not isinstance(part, int)), str(path[-1])
    siblings = sections.get(section, ())
    meant = _SYNONYMS.get(key.lower().replace("-", "_"))
    near = difflib.get_close_matches(key.lower()[:40], siblings, n=1, cutoff=0.6)
    homes = [home for home, keys in sections.items() if key in keys and home != section]
    if homes and not meant:
        place = ".".join(map(str, (*homes[0], key)))
        return f"does not belong here; did you mean `{place}`?"
    if not near and not meant:
        return f"unknown key; known here: {', '.join(siblings)}"
    word = meant or near[0]
    last = word.rpartition(".")[2]
    return f"unknown key; did you mean `{last if last in siblings else word}`?"


def _choice(expected: str, value: Any, got: str) -> str:
    choices = re.findall(r"'([^']*)'", expected)
    near = difflib.get_close_matches(value.lower()[:40], choices, n=1) if isinstance(value, str) else []
    advice = f"; did you mean `{near[0]}`?" if near else ""
    return f"must be {' or '.join(f'`{choice}`' for choice in choices)}, not {got}{advice}"


def _got(value: Any, written: str | None) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return f"the text `{for_display(value)}`"
    return f"`{for_display(written or str(value))}`"


def _fix(kind: str, value: Any, written: str | None) -> str:
    """What to write instead, if it is evident."""
    text = str(value).strip().lower()
    if kind.startswith("bool") and text in _YES:
        return f"; write {_YES[text]}"
    if kind.startswith("string") and written and isinstance(value, (bool, int, float)):
        return f'; write it in quotes: "{for_display(written)}"'
    if kind.startswith("int") and isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    digits = re.sub(r"(?<=\d)[_, ](?=\d{3})", "", text)
    if kind.startswith(("int", "float")) and isinstance(value, str) and re.fullmatch(r"-?\d{1,12}", digits):
        return f"; write {digits}, without quotes" if digits == text else f"; write {digits}"
    if value == "~":
        return "; write null, or leave it out"
    if value is None:
        return "; give it a value, or leave it out"
    return ""
