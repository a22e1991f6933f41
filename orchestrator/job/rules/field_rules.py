"""The rules for one value: names, paths, commands, durations, sizes, dollars. Pure."""

import json
import re
import shlex
from typing import Any

from orchestrator.text import names
from orchestrator.text.names import for_display
from orchestrator.text.units import parse_duration, parse_size

MAX_PORTS = 16
_PYTHON = re.compile(r"3\.([89]|[1-9]\d)")
_BUCKET = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[A-Za-z0-9._=-]+)*/?")


def job_name(text: str) -> str:
    """Return the name of a job, checked."""
    if problem := names.job_name_problem(text):
        raise ValueError(f"`{for_display(text)}` {problem}; for example `{names.to_job_name(text)}`")
    return text


def cores(value: Any) -> Any:
    """Return `all` or a number of cores, checked."""
    if value == "all" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError(f"expected `all` or a number of cores from 1 on, not `{for_display(as_written(value))}`")


def directory(text: str) -> str:
    """Return a relative path, checked for its form only: the client checks whether it exists."""
    if not text.strip():
        raise ValueError("is empty; name a directory relative to this file, such as `.`, or leave it out")
    if text.startswith(("/", "\\", "~")) or re.match(r"[A-Za-z]:", text):
        raise ValueError(f"`{for_display(text)}` is not relative to this file; write a path such as `src` or `../src`")
    return text


def shell_text(value: Any) -> str:
    """Return a command for bash: text as it is, a list as the arguments of one program."""
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, list) and value:
        for number, word in enumerate(value, 1):
            if not isinstance(word, str):
                raise ValueError(f"argument {number} of the list is not text; write it in quotes: {_quoted(word)}")
        if value[0].strip():
            return shlex.join(value)
    if isinstance(value, (str, list)) or value is None:
        raise ValueError("is empty; write what to run, such as `python train.py`")
    raise ValueError("expected a command as text, or a list of its arguments")


def commands(value: Any) -> tuple[str, ...] | None:
    """Return the commands of `setup:`, which may be one or several; None if there are none."""
    if value is None:
        return None
    each = value if isinstance(value, list) else [value]
    for number, command in enumerate(each, 1):
        if not isinstance(command, str) or not command.strip():
            raise ValueError(f"command {number} is not text that could be run; write one command per list item")
    return tuple(each)


def artifacts(value: Any) -> Any:
    """Return the words of `artifacts:` as a tuple; text is one of them."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def requirements(value: Any) -> str | tuple[str, ...] | None:
    """Return the file or the packages of `requirements:`; None if there are none."""
    if value is None:
        return None
    if isinstance(value, str):
        path = directory(value)
        if not path.endswith((".txt", ".in", ".toml")):
            path = for_display(path)
            raise ValueError(f"`{path}` is no requirements file (.txt, .in, .toml); write packages as a list: [{path}]")
        return path
    if not isinstance(value, (list, tuple)):
        raise ValueError("expected a file, such as requirements.txt, or a list of packages")
    for number, package in enumerate(value, 1):
        if not isinstance(package, str) or not package.strip() or "\n" in package:
            raise ValueError(f"package {number} of the list is not text; write for example numpy>=1.26")
    return tuple(package.strip() for package in value)


def python(value: Any) -> str | None:
    """Return the version of `python:`; None if there is none."""
    if value is None or (isinstance(value, str) and _PYTHON.fullmatch(value)):
        return value
    raise ValueError(
        f'`{for_display(as_written(value))}` is not a version of Python from 3.8 on; write for example "3.12"'
    )


LEAST_LOG = 10**6  # of limits.max_log: less leaves no end that explains a failure
SHORTEST_S = 60.0  # of limits.max_duration on a cluster
_LIMITS = ("6m", "7d")  # on a slice, whose VMs take minutes to come and to go


def max_duration(value: Any) -> float:
    """Return `limits.max_duration` in seconds; a minute at least, see `too_short_for_a_slice`."""
    seconds = duration(value, *_LIMITS)
    if not SHORTEST_S <= seconds <= parse_duration(_LIMITS[1]):
        raise ValueError(_outside(value, *_LIMITS, example="2h"))
    return seconds


def too_short_for_a_slice(value: Any) -> str | None:
    """Return what is wrong with `limits.max_duration` of a job that is not on a cluster."""
    try:
        return _outside(value, *_LIMITS, example="2h") if max_duration(value) < parse_duration(_LIMITS[0]) else None
    except ValueError:
        return None  # reported already


def max_cost(value: Any) -> float | None:
    """Return `limits.max_cost` in dollars; None if there is none."""
    return dollars(value, "5.00")


def linger(value: Any, least: str = "1m", most: str = "24h", example: str = "30m") -> float | None:
    """Return `limits.linger`, or `keep_on_failure`, in seconds; None if there is none."""
    if value is None:
        return None
    seconds = duration(value, least, most)
    if not parse_duration(least) <= seconds <= parse_duration(most):
        raise ValueError(_outside(value, least, most, example=example))
    return seconds


def grace(value: Any) -> float | None:
    """Return `gke.grace` in seconds; None leaves it to the settings."""
    return linger(value, "1s", "1h", "30s")


def max_results(value: Any) -> int | None:
    """Return `limits.max_results` in bytes; None if there is none."""
    if value is None:
        return None
    written = as_written(value)
    try:
        size_bytes = parse_size(written)
    except ValueError as error:
        raise ValueError(f"`{for_display(written)}` is not a size: {error}") from None
    if size_bytes < 1:
        raise ValueError(f"`{for_display(written)}` is nothing at all; write for example 50GB, or remove this")
    return size_bytes


def max_log(value: Any) -> int:
    """Return `limits.max_log` in bytes."""
    size_bytes = max_results(value) or 0
    if size_bytes < LEAST_LOG:
        raise ValueError(f"`{for_display(as_written(value))}` is less than 1MB; write for example 1GB, or remove this")
    return size_bytes


def stall(value: Any) -> float | None:
    """Return `limits.stall` in seconds; None if there is none."""
    return linger(value, "10s")


def _outside(value: Any, least: str, most: str, *, example: str) -> str:
    return f"`{for_display(as_written(value))}` is not between {least} and {most}; write for example {example}"


def bucket(value: Any) -> str | None:
    """Return `gs://BUCKET/PREFIX` without a slash at its end; None if there is none."""
    if value is None:
        return None
    if not isinstance(value, str) or not _BUCKET.fullmatch(value):
        written = for_display(as_written(value))
        raise ValueError(f"`{written}` is not a place in Cloud Storage; write for example gs://my-bucket/runs")
    return value.rstrip("/")


def _quoted(value: Any) -> str:
    return f'"{for_display(as_written(value))}"' if isinstance(value, (int, float)) else '"…"'


def dollars(value: Any, example: str) -> float | None:
    """Return an amount of dollars; None if there is none."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1_000_000:
        raise ValueError(f"`{for_display(as_written(value))}` is not an amount of dollars; write for example {example}")
    return float(value)


def duration(value: Any, least: str, most: str) -> float:
    """Return a duration in seconds. `least` and `most`: for the message only."""
    written = as_written(value)
    try:
        return parse_duration(written, least, most)
    except ValueError as error:
        raise ValueError(f"`{for_display(written)}` is not a duration: {error} ({least} to {most})") from None


def as_written(value: Any) -> str:
    """Return the value as a file spells it: `true`, `null`, 3, 1e+09, .inf."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return f"{value:g}".replace("inf", ".inf").replace("nan", ".nan") if isinstance(value, float) else str(value)


def ports(value: Any) -> tuple[int, ...]:
    """Return TCP ports, one or a list, checked."""
    each = value if isinstance(value, (list, tuple)) else () if value is None else (value,)
    for port in each:
        if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535:
            raise ValueError(
                f"`{for_display(as_written(port))}` is not a port; write a number from 1 to 65535, such as 6006"
            )
    if len(set(each)) < len(each):
        raise ValueError(f"names port {next(port for port in each if each.count(port) > 1)} twice")
    if len(each) > MAX_PORTS:
        raise ValueError(f"has {len(each)} ports; a job has at most {MAX_PORTS}")
    return tuple(each)
