"""The rules about several values of a job file, those of its sections included, and of `train:` and its environment. Pure."""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from orchestrator import traits
from orchestrator.job.rules import notify
from orchestrator.job.rules.env import env_problems, secret_problems
from orchestrator.job.source.yaml_source import Path
from orchestrator.text.names import for_display
from orchestrator.text.parsing import NAME_CHARS

MAX_PATTERNS = 100


def cross_field_problems(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield what is wrong with the file as a whole."""
    if "train" in data and "command" in data:
        yield ("command",), "a job has either `train:` or `command:`, not both; remove one of them"
    elif "train" not in data and "command" not in data:
        yield (), "nothing to run: add `train:` (the built-in training) or `command:` (any shell command)"
    yield from traits.checks_on(data.get("on")).problems(data)
    yield from access_problems(_mapping(data, "access"))
    yield from train_problems(data)
    if data.get("max_restarts") is not None and data.get("on_preemption") != "restart":
        yield ("max_restarts",), "only counts with `on_preemption: restart`; add that, or remove this"
    yield from env_problems(_mapping(data, "env"))
    yield from _artifacts(data.get("artifacts"))
    yield from metric_problems(_mapping(data, "metrics"))
    yield from data_problems(_mapping(data, "data"))
    yield from _notify_problems(data.get("notify"))
    yield from secret_problems(data, ())


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
            why = f"`{for_display(pattern)}` leaves the job's directory; write a pattern below it, such as `out/*.json`"
            yield ("artifacts", number), why


def _notify_problems(written: Any) -> Iterator[tuple[Path, str]]:
    if isinstance(written, str | Mapping) and (
        problem := notify.section_problem(notify.short_form(written), of_a_job=True)
    ):
        yield ("notify", *([problem[0]] if isinstance(written, Mapping) else [])), problem[1]


def _mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# The rules of `data:`: a directory of the job, and the place in Cloud Storage that fills it.

_PLACE = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/(?!\.{1,2}(/|$))[^/]+)*/?")
_EXAMPLE = "write for example `./data: gs://my-bucket/my-data`"


def data_problems(places: Mapping[Any, Any]) -> Iterator[tuple[Path, str]]:
    """Yield what is wrong with the places, each at its own."""
    seen: dict[PurePosixPath, Any] = {}
    for key, url in places.items():
        path, directory = ("data", key), PurePosixPath(str(key))
        if directory.is_absolute() or {"..", "~"} & set(directory.parts) or not directory.parts or "\\" in str(key):
            yield path, f"`{for_display(str(key))}` is no directory below the job's directory; {_EXAMPLE}"
        elif seen.setdefault(directory, key) != key:
            yield path, f"is the directory `{for_display(str(seen[directory]))}` again; write each once"
        elif isinstance(url, str) and (not _PLACE.fullmatch(url) or not url.isprintable()):
            yield path, f"`{for_display(url)}` is not a place in Cloud Storage; {_EXAMPLE}"
        elif isinstance(url, str) and (wild := re.search(r"[*?\[]", url)):
            yield path, f"`{for_display(url)}` has the wildcard `{wild[0]}`; name the directory that the objects are in"


# The rules of `metrics:`: patterns that find numbers in the log of a job.
#
# They are those of `regex`, which are the ones of Python's `re`: its search has a time limit, and a log may be hostile.

MAX_METRICS, PATTERN_CHARS = 20, 500


def metric_problems(patterns: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield what is wrong with the patterns, each at its place."""
    if len(patterns) > MAX_METRICS:
        yield ("metrics",), f"{len(patterns)} patterns; at most {MAX_METRICS} can be searched for"
    if patterns and set(patterns) <= {"step"}:
        yield ("metrics",), "finds only the step; name a metric too, such as `loss: 'loss ([0-9.]+)'`"
    for name, pattern in patterns.items():
        path = ("metrics", name)
        if not str(name).isprintable() or not 0 < len(str(name)) <= NAME_CHARS:
            yield path, f"is no name of a metric: use 1 to {NAME_CHARS} printable characters, such as `loss`"
        elif isinstance(pattern, str) and (problem := _problem(pattern)):
            yield path, problem


def _problem(pattern: str) -> str | None:
    if len(pattern) > PATTERN_CHARS:
        return f"a pattern of {len(pattern):,} characters; at most {PATTERN_CHARS} are taken"
    import regex  # few jobs name a pattern

    try:
        groups = regex.compile(pattern).groups
    except (regex.error, RecursionError, OverflowError) as error:
        return f"`{for_display(pattern)}` is no regular expression: {error}"
    if groups != 1:
        return f"`{for_display(pattern)}` has {groups} groups; write exactly one, around the number: `loss[= ]+([0-9.eE+-]+)`"
    return None


# The rules for `access:`: the proxy command, networks, tags, and what does not go together.

MAX_TAGS = 64  # of an instance
_TOKENS = re.compile(r"%(.?)")
_RESOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:-]{0,299}")
_TAG = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


def proxy_command(value: Any) -> Any:
    """Return the command, checked: one line, with OpenSSH's tokens %h, %p, %r, %n and %%."""
    if value is None or not isinstance(value, str):
        return value
    if not value.strip() or "\n" in value.strip() or "\0" in value:
        raise ValueError("expected one line, such as `ssh -W %h:%p bastion.example.com`")
    unknown = next((token for token in _TOKENS.findall(value) if token not in tuple("hprn%")), None)
    if unknown is not None:
        raise ValueError(
            f"`%{for_display(unknown)}` means nothing here; %h is the host, %p the port, %r the user, %% a percent sign"
        )
    return value.strip()


def resource(value: Any) -> Any:
    """Return the name or the path of a network or a subnetwork, checked."""
    if isinstance(value, str) and not _RESOURCE.fullmatch(value):
        raise ValueError(f"`{for_display(value)}` is not a name or a path of Google Cloud, such as `my-network`")
    return value


def tags(value: Any) -> Any:
    """Return network tags, one or a list, checked."""
    if value is None:
        return ()
    each = value if isinstance(value, (list, tuple)) else [value]
    for tag in each:
        if not isinstance(tag, str) or not _TAG.fullmatch(tag):
            raise ValueError(
                f"`{for_display(str(tag))}` is not a network tag: a-z, 0-9 and `-`, at most 63, from a letter on"
            )
    if len(each) > MAX_TAGS:
        raise ValueError(f"has {len(each)} tags; an instance has at most {MAX_TAGS}")
    return tuple(each)


def access_problems(access: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield what does not go together."""
    via = access.get("via")
    if access.get("ssh_proxy_command") is not None and via in ("external", "iap"):
        why = f"is for internal addresses, and `via: {via}` uses none; write `via: internal`, or remove one of the two"
        yield ("access", "ssh_proxy_command"), why


BATCH_SIZE, MNIST_EXAMPLES = 128, 60_000  # the default; the size of every data set that is downloaded or synthetic


def train_problems(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield what is wrong with the training of a job file, and with its Python."""
    train = data.get("train")
    if "train" in data:
        yield from _environment(data, train if isinstance(train, Mapping) else {})
    if isinstance(train, Mapping):
        yield from _batch(train)
        if train.get("fallback") == "sample" and train.get("dataset") == "fashion-mnist":
            yield ("train", "fallback"), "the sample is of mnist, and there is none of fashion-mnist; write synthetic"
        if train.get("backend") == "none" and train.get("entry") is None:
            yield ("train", "backend"), "the built-in training needs PyTorch; `none` is for an `entry:` of your own"
        yield from _profile(train)


def _batch(train: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """A batch that the data cannot fill must not be noticed first on a TPU that is billed."""
    size, emulated = train.get("batch_size", BATCH_SIZE), train.get("emulated")
    if train.get("entry") is not None or not isinstance(size, int):
        return
    counts: dict[Path, Any] = {
        ("train", "examples"): train.get("examples"),
        ("train", "emulated", "examples"): emulated.get("examples") if isinstance(emulated, Mapping) else None,
    }
    for path, count in counts.items():
        if isinstance(count, int) and 1 <= count < size:
            yield path, f"is less than the batch_size of {size:,}, so there would be no step"
    if size > MNIST_EXAMPLES and train.get("data_dir") is None:
        yield ("train", "batch_size"), f"is more than the {MNIST_EXAMPLES:,} training examples"


def _environment(data: Mapping[str, Any], train: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    least = "3.11" if train.get("backend") == "tpu" else "3.10"
    if data.get("python") in ("3.8", "3.9", "3.10") and data["python"] != least:
        yield ("python",), f"`train:` needs Python {least} or newer"


def _profile(train: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    if train.get("profile") is None:
        return
    if train.get("entry") is not None:
        yield ("train", "profile"), "is of the built-in training; an `entry:` traces its own steps (docs/reports.md)"
    if train.get("backend") == "tpu":
        yield ("train", "profile"), "is not available with backend tpu; backend xla traces on the same TPU"
