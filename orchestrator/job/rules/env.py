"""The rules of `env:`, and of secrets, which belong nowhere else in a job file. Pure."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.job.source.yaml_source import Path
from orchestrator.text import redaction
from orchestrator.text.names import for_display

MAX_BYTES = 128 << 10  # of NAME=VALUE and the byte that ends it
MAX_BYTES_IN_ALL = 3 << 19  # Linux takes 2 MiB, the arguments of the program and the worker's own variables included
ENV_REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_ADDRESSES: tuple[Path, ...] = (("notify",), ("notify", "url"))  # which are secrets, too
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED_ENV = re.compile(r"TPUJOB_.*|TPU_NAME")
_RISKY_ENV = re.compile(r"LD_PRELOAD|LD_LIBRARY_PATH|PYTHON.*|PATH|HOME|BASH_ENV")
_SECRET_VALUE = re.compile(r"(?=.*\d)[^\s/$]{16,}")
# Variables of the user that hold no secret: hiding their values would hide every path of every log.
_PUBLIC_ENV = re.compile(r"HOME|USER|LOGNAME|HOSTNAME|PWD|PATH|SHELL|TERM|TZ|TMPDIR|LANG|LC_.*")


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


def env_problems(env: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield what is wrong with the variables."""
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


def secret_problems(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the texts of the file that look like secrets, or that only `env:` reads: secrets belong in the environment."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from secret_problems(part, (*path, key))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from secret_problems(part, (*path, number))
    elif isinstance(value, str):
        if redaction.has_secret_shape(value):
            yield path, _keep_out(str(path[-1]) if path[:1] == ("env",) else "TOKEN")
        if "${env:" in value and path[:1] != ("env",) and path not in _ADDRESSES:
            use = ", which the pod gets from a Secret" if path[:2] == ("gke", "pod") else " and use it here as $NAME"
            yield path, f"`${{env:…}}` is read only in `env:`; set a variable there{use}"


def _keep_out(name: str) -> str:
    name = for_display(name)
    return f"looks like a secret, and files are shared; export it and write `env: {{{name}: ${{env:{name}}}}}`"
