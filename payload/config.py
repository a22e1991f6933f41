"""The keys of `train.json`, their defaults and their validation. Standard library only.

`load` is called once, by `python -m payload`; later code relies on every field. An error is one line with the key, the value
and the accepted values.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from payload.failures import BadConfig

MODELS = ("mnist_cnn", "alexnet", "mlp")
DATASETS = ("mnist", "fashion-mnist", "synthetic", "idx")
BACKENDS = ("xla", "cuda", "cpu", "tpu", "auto", "none")
MOST_PROFILED = 100  # steps: a trace grows with each of them, and each is slower


@dataclass(frozen=True)
class EmulatedConfig:
    """A smaller version of the training, used only on an emulated TPU. placement.py reports each replacement."""

    cores: int | None = None
    examples: int | None = None
    test_examples: int | None = None
    epochs: int | None = None


@dataclass(frozen=True)
class ProfileConfig:
    """Which steps a profiler traces (profile.py)."""

    start: int = 10  # the number of the first traced step, from 1
    steps: int = 5


@dataclass(frozen=True)
class Config:
    entry: str | None = None  # "module:function", the training function of the job; null: payload.train:train
    options: dict[str, Any] | None = None  # passed to the entry unchecked
    backend: str = "xla"  # "auto": a TPU if there is one, else a GPU, else the CPU; "none": an entry without PyTorch
    model: str = "mnist_cnn"
    dataset: str = "mnist"
    data_dir: str | None = None  # a directory with the four IDX files, plain or .gz
    fallback: str | None = None  # "sample" or "synthetic": what to train on when the data cannot be downloaded
    epochs: int = 5
    batch_size: int = 128  # over all cores together
    cores: str | int = "all"  # of each host
    lr: float = 0.05  # the peak of the schedule in train.py
    momentum: float = 0.9  # of sgd
    optimizer: str = "sgd"
    seed: int = 1
    precision: str = "fp32"
    image_size: int | None = None  # pixels of a side, resized on the device; null: the model's own size
    examples: int | None = None  # use only the first training examples; null: all
    test_examples: int | None = None  # the same for the evaluation
    eval: bool = True
    checkpoint: bool = True
    checkpoint_every: str = "1 epoch"  # or "200 steps", "30 s"
    keep_checkpoints: int = 1  # number of newest checkpoints to keep
    resume: bool = True  # continue an unfinished training in the same directory
    num_workers: int | None = None  # processes of each DataLoader; null: from the host's cores
    timing: str = "stamped"  # "drained": wait for the device after each step
    profile: ProfileConfig | None = None  # null: no trace
    emulated: EmulatedConfig = field(default_factory=EmulatedConfig)

    @property
    def entry_point(self) -> str:
        return self.entry or "payload.train:train"


_EVERY = re.compile(r"\s*(?=0*[1-9])(\d{1,9})\s*(step|epoch|s|m|h)s?\s*")
_ENTRY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def interval(text: str) -> tuple[int, str]:
    """Return a valid `checkpoint_every` as (200, "steps"), (1, "epochs") or (30, "seconds")."""
    match = _EVERY.fullmatch(text)
    assert match is not None, "`checkpoint_every` has been checked"
    number, unit = int(match[1]), match[2]
    if unit in ("step", "epoch"):
        return number, f"{unit}s"
    return number * {"s": 1, "m": 60, "h": 3600}[unit], "seconds"


Rule = tuple[Callable[[Any], bool], str]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _or_null(rule: Rule) -> Rule:
    return lambda value: value is None or rule[0](value), f"{rule[1]} or null"


def _text(pattern: re.Pattern[str], expected: str) -> Rule:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None, expected


def _one_of(*names: str) -> Rule:
    return lambda value: value in names and isinstance(value, str), " or ".join(f'"{name}"' for name in names)


_COUNT: Rule = (_is_count, "a whole number of at least 1")
_NATURAL = "a whole number of at least 0"
_BOOL: Rule = (lambda value: isinstance(value, bool), "true or false")

_EMULATED_RULES: dict[str, Rule] = {name: _or_null(_COUNT) for name in ("cores", "examples", "test_examples", "epochs")}
_PROFILE_RULES: dict[str, Rule] = {
    "start": _COUNT,
    "steps": (lambda value: _is_count(value) and value <= MOST_PROFILED, f"a whole number from 1 to {MOST_PROFILED}"),
}
_RULES: dict[str, Rule] = {
    "entry": _or_null(_text(_ENTRY, '"module:function"')),
    "options": _or_null((lambda value: isinstance(value, dict), "an object")),
    "backend": _one_of(*BACKENDS),
    "model": _one_of(*MODELS),
    "dataset": _one_of(*DATASETS),
    "data_dir": _or_null((lambda value: isinstance(value, str) and value != "", "a directory")),
    "fallback": _or_null(_one_of("sample", "synthetic")),
    "epochs": _COUNT,
    "batch_size": _COUNT,
    "cores": (lambda value: value == "all" or _is_count(value), '"all" or a whole number of at least 1'),
    "lr": (lambda value: _is_number(value) and value > 0, "a number greater than 0"),
    "momentum": (lambda value: _is_number(value) and 0 <= value < 1, "a number from 0 to less than 1"),
    "optimizer": _one_of("sgd", "adam"),
    "seed": (lambda value: _is_number(value) and isinstance(value, int) and 0 <= value < 2**32, "0 to 4294967295"),
    "precision": _one_of("fp32", "bf16", "fp16"),
    "image_size": _or_null((lambda value: _is_count(value) and value <= 4096, "a whole number from 1 to 4096")),
    "examples": _or_null(_COUNT),
    "test_examples": _or_null(_COUNT),
    "eval": _BOOL,
    "checkpoint": _BOOL,
    "checkpoint_every": _text(_EVERY, 'a number of epochs, steps or seconds, such as "1 epoch", "200 steps" or "30 s"'),
    "keep_checkpoints": _COUNT,
    "resume": _BOOL,
    "num_workers": _or_null((lambda value: (value == 0 and value is not False) or _is_count(value), _NATURAL)),
    "timing": _one_of("stamped", "drained"),
    "profile": _or_null((lambda value: isinstance(value, dict), "an object with start and steps")),
    "emulated": (lambda value: isinstance(value, dict), "an object with cores, examples, test_examples, epochs"),
}


def load(path: Path) -> Config:
    """Return the configuration in the JSON file `path`. Raises BadConfig, with the path in its message."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except ValueError as error:
        raise BadConfig(f"{path}: not JSON: {error}") from None
    try:
        return parse(data)
    except BadConfig as error:
        raise BadConfig(f"{path}: {error}") from None


def parse(data: Any) -> Config:
    """Return the configuration in parsed JSON. Raises BadConfig for an unknown key or a value out of range."""
    if not isinstance(data, dict):
        raise BadConfig(f"the configuration must be an object, not {json.dumps(data)[:40]}")
    _check(data, _RULES, "")
    nested = data.get("emulated", {})
    _check(nested, _EMULATED_RULES, "emulated.")
    traced = data.get("profile")
    _check(traced or {}, _PROFILE_RULES, "profile.")
    profile = None if traced is None else ProfileConfig(**traced)
    config = Config(**{**data, "emulated": EmulatedConfig(**nested), "profile": profile})
    if config.dataset == "idx" and config.data_dir is None and config.entry is None:
        raise BadConfig('dataset: "idx" needs data_dir, the directory with the IDX files')
    if config.fallback == "sample" and config.dataset == "fashion-mnist":
        raise BadConfig(
            'fallback: "sample" is of mnist, and there is none of fashion-mnist; it must be "synthetic" or null'
        )
    if config.profile is not None and config.entry is not None:
        raise BadConfig("profile: is of the built-in training; an entry traces its own steps")
    if config.profile is not None and config.backend == "tpu":
        raise BadConfig("profile: is not available with backend tpu; backend xla traces on the same TPU")
    if config.backend == "none" and config.entry is None:
        raise BadConfig('backend: "none" is for an entry: the built-in training needs PyTorch')
    return config


def _check(data: dict[str, Any], rules: dict[str, Rule], prefix: str) -> None:
    for key, value in data.items():
        if key not in rules:
            near = difflib.get_close_matches(key, rules, n=1)
            meant = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(rules)}"
            raise BadConfig(f"{prefix}{key}: unknown key; {meant}")
        fits, expected = rules[key]
        if not fits(value):
            raise BadConfig(f"{prefix}{key}: {json.dumps(value)[:60]} is not valid; it must be {expected}")


assert set(_RULES) == {f.name for f in fields(Config)}, "every key has a rule"
assert set(_PROFILE_RULES) == {f.name for f in fields(ProfileConfig)}, "every key of a profile has a rule"
assert set(_EMULATED_RULES) == {f.name for f in fields(EmulatedConfig)}, "every emulated key has a rule"
