"""What to train: the keys of `train.json`, their defaults and their checks, standard library only.

`load` is called once, by `python -m payload`; everything after it may trust every field. A mistake is one line that
names the key, what was found and what would do.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from payload.failures import ConfigError

MODELS = ("mnist_cnn",)
DATASETS = ("mnist", "fashion-mnist", "synthetic")


@dataclass(frozen=True)
class Emulated:
    """A smaller slice of the same training, applied only where the TPU is emulated (placement.py says so aloud)."""

    cores: int | None = None
    examples: int | None = None
    epochs: int | None = None


@dataclass(frozen=True)
class Config:
    model: str = "mnist_cnn"
    dataset: str = "mnist"
    data_dir: str | None = None  # a directory with the four IDX files, plain or .gz
    fallback: str | None = None  # "synthetic": generated digits when the data cannot be downloaded
    epochs: int = 5
    batch_size: int = 128  # over all cores together
    cores: str | int = "all"  # of each host
    lr: float = 0.05  # at its highest: train.py lets it rise and fall
    momentum: float = 0.9  # of sgd
    optimizer: str = "sgd"
    seed: int = 1
    precision: str = "fp32"
    examples: int | None = None  # only the first so many training examples
    eval: bool = True
    checkpoint: bool = True
    timing: str = "stamped"  # "drained": wait for the device after each step
    emulated: Emulated = field(default_factory=Emulated)


Rule = tuple[Callable[[Any], bool], str]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _or_null(rule: Rule) -> Rule:
    return lambda value: value is None or rule[0](value), f"{rule[1]} or null"


def _one_of(*names: str) -> Rule:
    return lambda value: value in names and isinstance(value, str), " or ".join(f'"{name}"' for name in names)


_COUNT: Rule = (_is_count, "a whole number of at least 1")
_BOOL: Rule = (lambda value: isinstance(value, bool), "true or false")

_EMULATED_RULES: dict[str, Rule] = {name: _or_null(_COUNT) for name in ("cores", "examples", "epochs")}
_RULES: dict[str, Rule] = {
    "model": _one_of(*MODELS),
    "dataset": _one_of(*DATASETS),
    "data_dir": _or_null((lambda value: isinstance(value, str) and value != "", "a directory")),
    "fallback": _or_null(_one_of("synthetic")),
    "epochs": _COUNT,
    "batch_size": _COUNT,
    "cores": (lambda value: value == "all" or _is_count(value), '"all" or a whole number of at least 1'),
    "lr": (lambda value: _is_number(value) and value > 0, "a number greater than 0"),
    "momentum": (lambda value: _is_number(value) and 0 <= value < 1, "a number from 0 to less than 1"),
    "optimizer": _one_of("sgd", "adam"),
    "seed": (lambda value: _is_number(value) and isinstance(value, int) and 0 <= value < 2**32, "0 to 4294967295"),
    "precision": _one_of("fp32", "bf16"),
    "examples": _or_null(_COUNT),
    "eval": _BOOL,
    "checkpoint": _BOOL,
    "timing": _one_of("stamped", "drained"),
    "emulated": (lambda value: isinstance(value, dict), "an object with cores, examples, epochs"),
}


def load(path: Path) -> Config:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
    try:
        return parse(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse(data: Any) -> Config:
    if not isinstance(data, dict):
        raise ConfigError(f"the configuration must be an object, not {json.dumps(data)[:40]}")
    _check(data, _RULES, "")
    nested = data.get("emulated", {})
    _check(nested, _EMULATED_RULES, "emulated.")
    return Config(**{**data, "emulated": Emulated(**nested)})


def _check(data: dict[str, Any], rules: dict[str, Rule], prefix: str) -> None:
    for key, value in data.items():
        if key not in rules:
            near = difflib.get_close_matches(key, rules, n=1)
            meant = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(rules)}"
            raise ConfigError(f"{prefix}{key}: unknown key; {meant}")
        fits, words = rules[key]
        if not fits(value):
            raise ConfigError(f"{prefix}{key}: {json.dumps(value)[:60]} will not do; it must be {words}")


assert set(_RULES) == {f.name for f in fields(Config)}, "every key has a rule"
assert set(_EMULATED_RULES) == {f.name for f in fields(Emulated)}, "every emulated key has a rule"
