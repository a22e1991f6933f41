"""train.json: what is accepted, and the one line that each mistake gets."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from payload.config import Config, EmulatedConfig, ProfileConfig, interval, load, parse
from payload.failures import BadConfig


def test_an_empty_configuration_is_the_defaults() -> None:
    assert parse({}) == Config()


def test_every_key_can_be_given() -> None:
    assert parse(asdict(Config())) == Config()
    given = {
        "options": {"width": 3}, "dataset": "fashion-mnist", "data_dir": "data", "fallback": "synthetic",
        "cores": 1,
    }  # fmt: skip
    numbers = {"lr": 1, "momentum": 0, "seed": 0, "image_size": 64, "examples": 100, "keep_checkpoints": 3}
    others = {"eval": False, "checkpoint_every": "200 steps", "timing": "drained", "precision": "bf16"}
    within = {"profile": {"start": 1, "steps": 3}, "emulated": {"cores": 2, "examples": None, "epochs": 1}}
    parts = {"profile": ProfileConfig(start=1, steps=3), "emulated": EmulatedConfig(cores=2, epochs=1)}
    assert parse({**given, **numbers, **others, **within}) == Config(**given, **numbers, **others, **parts)


@pytest.mark.parametrize(("given", "words"), [
    ({"epoch": 3}, "epoch: unknown key; did you mean `epochs`?"),
    ({"zzz": 3}, "zzz: unknown key; known: entry, options"),
    ({"emulated": {"core": 2}}, "emulated.core: unknown key; did you mean `cores`?"),
    ({"emulated": {"cores": 0}}, "emulated.cores: 0 is not valid; it must be a whole number of at least 1 or null"),
    ({"emulated": None}, "emulated: null is not valid"),
    ({"epochs": 0}, "epochs: 0 is not valid; it must be a whole number of at least 1"),
    ({"epochs": 2.5}, "epochs: 2.5 is not valid"), ({"epochs": True}, "epochs: true is not valid"),
    ({"epochs": "3"}, 'epochs: "3" is not valid'), ({"batch_size": -1}, "batch_size: -1 is not valid"),
    ({"model": "resnet"}, 'model: "resnet" is not valid; it must be "mnist_cnn" or "alexnet" or "mlp"'),
    ({"backend": "gpu"}, 'backend: "gpu" is not valid; it must be "xla" or "cuda"'),
    ({"entry": "main"}, 'entry: "main" is not valid; it must be "module:function" or null'),
    ({"options": [1]}, "options: [1] is not valid; it must be an object or null"),
    ({"image_size": 5000}, "image_size: 5000 is not valid"),
    ({"checkpoint_every": "often"}, 'checkpoint_every: "often" is not valid; it must be a number of epochs, steps'),
    ({"checkpoint_every": 5}, "checkpoint_every: 5 is not valid"),
    ({"checkpoint_every": "0 steps"}, 'checkpoint_every: "0 steps" is not valid'),
    ({"keep_checkpoints": 0}, "keep_checkpoints: 0 is not valid"),
    ({"num_workers": False}, "num_workers: false is not valid"),
    ({"dataset": "idx"}, 'dataset: "idx" needs data_dir, the directory with the IDX files'),
    ({"dataset": ["mnist"]}, 'dataset: ["mnist"] is not valid; it must be "mnist" or "fashion-mnist"'),
    ({"cores": "some"}, 'cores: "some" is not valid; it must be "all" or a whole number of at least 1'),
    ({"cores": True}, "cores: true is not valid"),
    ({"lr": 0}, "lr: 0 is not valid; it must be a number greater than 0"),
    ({"lr": float("nan")}, "lr: NaN is not valid"),
    ({"momentum": 1}, "momentum: 1 is not valid; it must be a number from 0 to less than 1"),
    ({"optimizer": "lion"}, 'optimizer: "lion" is not valid; it must be "sgd" or "adam"'),
    ({"seed": -1}, "seed: -1 is not valid"), ({"seed": 1.0}, "seed: 1.0 is not valid"),
    ({"precision": "fp8"}, 'precision: "fp8" is not valid; it must be "fp32" or "bf16" or "fp16"'),
    ({"examples": 0}, "examples: 0 is not valid; it must be a whole number of at least 1 or null"),
    ({"fallback": "mnist"}, 'fallback: "mnist" is not valid; it must be "sample" or "synthetic" or null'),
    ({"fallback": "sample", "dataset": "fashion-mnist"},
     'fallback: "sample" is of mnist, and there is none of fashion-mnist; it must be "synthetic" or null'),
    ({"data_dir": ""}, 'data_dir: "" is not valid; it must be a directory or null'),
    ({"eval": 1}, "eval: 1 is not valid; it must be true or false"),
    ({"profile": 100}, "profile: 100 is not valid; it must be an object with start and steps or null"),
    ({"profile": {"begin": 1}}, "profile.begin: unknown key; known: start, steps"),
    ({"profile": {"start": 0}}, "profile.start: 0 is not valid; it must be a whole number of at least 1"),
    ({"profile": {"start": False}}, "profile.start: false is not valid"),
    ({"profile": {"steps": 0}}, "profile.steps: 0 is not valid; it must be a whole number from 1 to 100"),
    ({"profile": {"steps": 101}}, "profile.steps: 101 is not valid; it must be a whole number from 1 to 100"),
    ({"profile": {}, "entry": "mine:main"}, "profile: is of the built-in training; an entry traces its own steps"),
    ({"profile": {}, "backend": "tpu"}, "profile: is not available with backend tpu; backend xla traces on the same"),
    ({"timing": "wall"}, 'timing: "wall" is not valid; it must be "stamped" or "drained"'),
    ([1], "the configuration must be an object, not [1]"),
])  # fmt: skip
def test_a_mistake_names_the_key_and_the_accepted_values(given: object, words: str) -> None:
    with pytest.raises(BadConfig) as caught:
        parse(given)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    with pytest.raises(BadConfig, match=r"train\.json: cannot be read: No such file"):
        load(path)
    path.write_text("{")
    with pytest.raises(BadConfig, match=r"train\.json: not JSON"):
        load(path)
    path.write_bytes(b"\xff\xfe{")
    with pytest.raises(BadConfig, match=r"train\.json: cannot be read"):
        load(path)
    path.write_text(json.dumps({"epochs": 0}))
    with pytest.raises(BadConfig, match=r"train\.json: epochs: 0"):
        load(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1 epoch", (1, "epochs")), ("200 steps", (200, "steps")), ("30 s", (30, "seconds")), ("5m", (300, "seconds"))],
)
def test_an_interval_is_steps_epochs_or_seconds(text: str, expected: tuple[int, str]) -> None:
    assert interval(parse({"checkpoint_every": text}).checkpoint_every) == expected


@pytest.mark.parametrize("entry", ["mine:main", "payload.train:train"])
def test_an_entry_can_be_given(entry: str) -> None:
    assert parse({"entry": entry}).entry_point == entry


def test_a_profile_may_leave_out_where_it_starts_and_how_long_it_is() -> None:
    assert parse({"profile": {}}).profile == ProfileConfig(start=10, steps=5)
    assert parse({"profile": None}).profile is None
