"""The rules of a job file that a type cannot express. Pure.

Rules for one value return it, converted, or raise ValueError with the end of a sentence that gives advice. Rules about
several values yield (path, sentence) pairs, so that all mistakes are reported at once, each at its own line.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.core.jobfile import tpu_value_rules
from orchestrator.core.jobfile.metric_rules import metric_problems
from orchestrator.core.jobfile.tpu_value_rules import as_written
from orchestrator.core.jobfile.yaml_source import Path
from orchestrator.core.text import names, redaction
from orchestrator.core.text.durations import parse_duration
from orchestrator.core.text.names import shown
from orchestrator.core.text.sizes import parse_size

MAX_PATTERNS = 100
BATCH_SIZE, MNIST_EXAMPLES = 128, 60_000  # the default; the size of every data set that is downloaded or synthetic

ENV_REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED_ENV = re.compile(r"TPUJOB_.*|TPU_NAME")
_PYTHON = re.compile(r"3\.([89]|[1-9]\d)")
_BUCKET = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[A-Za-z0-9._=-]+)*/?")
_RISKY_ENV = re.compile(r"LD_PRELOAD|LD_LIBRARY_PATH|PYTHON.*|PATH|HOME|BASH_ENV")

_SECRET_VALUE = re.compile(r"(?=.*\d)[^\s/$]{16,}")
# Variables of the user that hold no secret: hiding their values would hide every path of every log.
_PUBLIC_ENV = re.compile(r"HOME|USER|LOGNAME|HOSTNAME|PWD|PATH|SHELL|TERM|TZ|TMPDIR|LANG|LC_.*")


def job_name(text: str) -> str:
    """Return the name of a job, checked."""
    if problem := names.job_name_problem(text):
        raise ValueError(f"`{shown(text)}` {problem}; for example `{names.to_job_name(text)}`")
    return text


def cores(value: Any) -> Any:
    """Return `all` or a number of cores, checked."""
    if value == "all" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError(f"expected `all` or a number of cores from 1 on, not `{shown(as_written(value))}`")


def directory(text: str) -> str:
    """Return a relative path, checked for its form only: the client checks whether it exists."""
    if not text.strip():
        raise ValueError("is empty; name a directory relative to this file, such as `.`, or remove the key")
    if text.startswith(("/", "\\", "~")) or re.match(r"[A-Za-z]:", text):
        raise ValueError(f"`{shown(text)}` is not relative to this file; write a path such as `src` or `../src`")
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


def requirements(value: Any) -> str | tuple[str, ...] | None:
    """Return the file or the packages of `requirements:`; None if there are none."""
    if value is None:
        return None
    if isinstance(value, str):
        path = directory(value)
        if not path.endswith((".txt", ".in", ".toml")):
            raise ValueError(
                f"`{shown(path)}` is no requirements file (.txt, .in, .toml); write packages as a list: [{shown(path)}]"
            )
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
    raise ValueError(f'`{shown(as_written(value))}` is not a version of Python from 3.8 on; write for example "3.12"')


def max_duration(value: Any) -> float:
    """Return `limits.max_duration` in seconds."""
    return _duration_between(value, "6m", "7d", example="2h")


def max_cost(value: Any) -> float | None:
    """Return `limits.max_cost` in dollars; None if there is none."""
    return tpu_value_rules.dollars(value, "5.00")


def linger(value: Any) -> float | None:
    """Return `limits.linger` in seconds; None if there is none."""
    return None if value is None else _duration_between(value, "1m", "24h", example="30m")


def keep_on_failure(value: Any) -> float | None:
    """Return `keep_on_failure` in seconds; None: the slice of a failed job is released."""
    return None if value is None else _duration_between(value, "1m", "24h", example="30m")


def max_results(value: Any) -> int | None:
    """Return `limits.max_results` in bytes; None if there is none."""
    if value is None:
        return None
    written = as_written(value)
    try:
        size_bytes = parse_size(written)
    except ValueError as error:
        raise ValueError(f"`{shown(written)}` is not a size: {error}") from None
    if size_bytes < 1:
        raise ValueError(f"`{shown(written)}` is nothing at all; write for example 50GB, or remove this")
    return size_bytes


def stall(value: Any) -> float | None:
    """Return `limits.stall` in seconds; None if there is none."""
    return None if value is None else _duration_between(value, "10s", "24h", example="30m")


def _duration_between(value: Any, least: str, most: str, *, example: str) -> float:
    seconds = tpu_value_rules.duration(value, f"{least} to {most}")
    if not parse_duration(least) <= seconds <= parse_duration(most):
        raise ValueError(f"`{shown(as_written(value))}` is not between {least} and {most}; write for example {example}")
    return seconds


def bucket(value: Any) -> str | None:
    """Return `gs://BUCKET/PREFIX` without a slash at its end; None if there is none."""
    if value is None:
        return None
    if not isinstance(value, str) or not _BUCKET.fullmatch(value):
        written = shown(as_written(value))
        raise ValueError(f"`{written}` is not a place in Cloud Storage; write for example gs://my-bucket/runs")
    return value.rstrip("/")


def cross_field_problems(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield what is wrong between several values of the file; they may still be of wrong types."""
    yield from _train_or_command(data)
    local = data.get("on") == "local"
    yield from _environment(data, local)
    if local and data.get("bucket") is not None:
        yield ("bucket",), "has no use with `on: local`: the artifacts are on this machine anyway; remove it"
    yield from tpu_value_rules.cross_field_problems(_mapping(data, "tpu"), {} if local else _mapping(data, "train"))
    yield from _batch(_mapping(data, "train"))
    yield from _fallback(_mapping(data, "train"))
    yield from _backend(_mapping(data, "train"))
    yield from _restarts(data)
    yield from _env(_mapping(data, "env"))
    yield from _artifacts(data.get("artifacts"))
    yield from metric_problems(_mapping(data, "metrics"))
    yield from _secrets(data, ())


def env_texts(env: Mapping[str, Any], written: Mapping[Path, str]) -> dict[str, Any]:
    """Return the variables with their numbers and truth values as text: as the file writes them, such as `1e-4` and `007`."""
    return {
        name: written.get(("env", name), json.dumps(value)) if isinstance(value, bool | int | float) else value
        for name, value in env.items()
    }


def is_secret(variable: str, value: str) -> bool:
    """Return whether this value of an environment variable looks like a secret that is written out."""
    named = redaction.is_secret_name(variable) and not ENV_REFERENCE.search(value)
    return redaction.has_secret_shape(value) or (named and _SECRET_VALUE.fullmatch(value) is not None)


def env_warnings(env: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """Yield a warning for each variable that is allowed and risky."""
    for name in env:
        if _RISKY_ENV.fullmatch(name):
            yield ("env", name), "changes how programs on the worker start; remove it if the job does not need it"


def secret_sources(env: Mapping[str, str]) -> list[str]:
    """Return the names of the user's own variables whose values must be hidden."""
    wanted = [variable for value in env.values() for variable in ENV_REFERENCE.findall(value)]
    return [variable for variable in dict.fromkeys(wanted) if not _PUBLIC_ENV.fullmatch(variable)]


def secret_values(env: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the values to hide: those taken from the user's own variables, and those of variables named as secrets."""
    yield from (environ[variable] for variable in secret_sources(env) if variable in environ)
    yield from (value for name, value in env.items() if redaction.is_secret_name(name) and "${env:" not in value)


def _train_or_command(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    if "train" in data and "command" in data:
        yield ("command",), "a job has either `train:` or `command:`, not both; remove one of them"
    elif "train" not in data and "command" not in data:
        yield (), "nothing to run: add `train:` (the built-in training) or `command:` (any shell command)"


def _batch(train: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """A batch that the data cannot fill must not be noticed first on a TPU that is billed."""
    size = train.get("batch_size", BATCH_SIZE)
    if train.get("entry") is not None or not isinstance(size, int):
        return
    counts: dict[Path, Any] = {
        ("train", "examples"): train.get("examples"),
        ("train", "emulated", "examples"): _mapping(train, "emulated").get("examples"),
    }
    for path, count in counts.items():
        if isinstance(count, int) and 1 <= count < size:
            yield path, f"is less than the batch_size of {size:,}, so there would be no step"
    if size > MNIST_EXAMPLES and train.get("data_dir") is None:
        yield ("train", "batch_size"), f"is more than the {MNIST_EXAMPLES:,} training examples"


def _environment(data: Mapping[str, Any], local: bool) -> Iterator[tuple[Path, str]]:
    backend = _mapping(data, "train").get("backend")
    if "train" not in data:
        return
    for key in ("requirements", "python"):
        if local and backend != "none" and data.get(key) is not None:
            text = (
                "`train:` with `on: local` runs in the Python of tpujob; install there what it needs, and remove this"
            )
            yield (key,), text
    least = "3.11" if backend == "tpu" else "3.10"
    if data.get("python") in ("3.8", "3.9", "3.10") and data["python"] != least:
        yield ("python",), f"`train:` needs Python {least} or newer"


def _fallback(train: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    if train.get("fallback") == "sample" and train.get("dataset") == "fashion-mnist":
        yield ("train", "fallback"), "the sample is of mnist, and there is none of fashion-mnist; write synthetic"


def _backend(train: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    if train.get("backend") == "none" and train.get("entry") is None:
        yield ("train", "backend"), "the built-in training needs PyTorch; `none` is for an `entry:` of your own"


def _restarts(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    if data.get("max_restarts") is not None and data.get("on_preemption") != "restart":
        yield ("max_restarts",), "only counts with `on_preemption: restart`; add that, or remove this"


def _env(env: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    for name, value in env.items():
        path = ("env", name)
        if not _ENV_NAME.fullmatch(name):
            yield path, "is not a variable name; use letters, digits and `_`, not a digit first"
        elif _RESERVED_ENV.fullmatch(name):
            yield path, "is set by tpujob on every worker; choose another name"
        if not isinstance(value, str):
            continue
        if "\n" in value:
            yield path, "has a line break in its value; write the value on one line"
        if "${env:" in ENV_REFERENCE.sub("", value):
            yield path, "has a `${env:` that names no variable; write ${env:NAME}"
        elif is_secret(name, value):
            yield path, _keep_out(name)


def _artifacts(patterns: Any) -> Iterator[tuple[Path, str]]:
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


def _secrets(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Check every text of the file: secrets belong in the environment, and only `env:` reads it."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _secrets(part, (*path, key))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _secrets(part, (*path, number))
    elif isinstance(value, str):
        if redaction.has_secret_shape(value):
            yield path, _keep_out(str(path[-1]) if path[:1] == ("env",) else "TOKEN")
        if "${env:" in value and path[:1] != ("env",):
            yield path, "`${env:…}` is read only in `env:`; set a variable there and use it here as $NAME"


def _keep_out(name: str) -> str:
    return f"looks like a secret, and files are shared; export it and write `env: {{{shown(name)}: ${{env:{shown(name)}}}}}`"


def _mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _quoted(value: Any) -> str:
    return f'"{shown(as_written(value))}"' if isinstance(value, (int, float)) else '"…"'
