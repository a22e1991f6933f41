"""The files of a training: what train.json may say, metrics.jsonl, and artifacts that are whole or absent."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import pytest

from payload import artifacts
from payload.config import Config, EmulatedConfig, ProfileConfig, interval, load, parse
from payload.failures import BadConfig
from payload.metrics import MetricsFile
from tests.payload.command import HAS_XLA, needs_torch, succeeds

pytest.importorskip("numpy")


def test_the_manifest_lists_every_file_with_size_and_hash(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text("{}")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "mine.txt").write_text("mine")
    (tmp_path / "link").symlink_to("metrics.json")
    artifacts.write_manifest(tmp_path)
    artifacts.write_manifest(tmp_path)  # a second time: it does not list itself
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest == {
        "schema": 1,
        "files": [
            {"path": "below/mine.txt", "size_bytes": 4, "sha256": hashlib.sha256(b"mine").hexdigest()},
            {"path": "metrics.json", "size_bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()},
        ],
    }


def test_files_of_an_earlier_run_are_removed_and_those_of_others_stay(tmp_path: Path) -> None:
    for name in (*artifacts.RUN_FILES, "mine.txt"):
        (tmp_path / name).write_text("old")
    artifacts.prepare(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_write_that_fails_leaves_the_previous_file_and_nothing_else(tmp_path: Path) -> None:
    def fail(file: IO[bytes]) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    artifacts.write_json(tmp_path / "metrics.json", {"a": 1})
    with pytest.raises(OSError, match="No space left"):
        artifacts.write_whole(tmp_path / "metrics.json", fail)
    assert json.loads((tmp_path / "metrics.json").read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.json"]


def test_provenance_names_versions_and_host() -> None:
    facts = artifacts.provenance(seed=7)
    assert facts["seed"] == 7 and facts["schema"] == 1
    assert facts["versions"]["numpy"] and facts["host"]["cpus"] >= 1


def test_only_an_unfinished_training_leaves_files_to_resume_from(tmp_path: Path) -> None:
    def left(**files: bool) -> list[str]:
        for name in (*artifacts.RUN_FILES, "checkpoint-000000010.pt", ".checkpoint.pt.tmp"):
            (tmp_path / name).write_text("old")
        if not files["manifest"]:
            (tmp_path / artifacts.MANIFEST).unlink()
        artifacts.prepare(tmp_path, resume=files["resume"])
        return sorted(path.name for path in tmp_path.iterdir())

    goes_on = [
        "checkpoint-000000010.pt", "checkpoint.json", "checkpoint.pt", "losses.jsonl", "metrics.jsonl",
        "timing.jsonl",
    ]  # fmt: skip
    assert left(manifest=False, resume=True) == goes_on
    assert left(manifest=True, resume=True) == left(manifest=False, resume=False) == []


def test_the_losses_of_an_epoch_that_is_trained_again_are_replaced(tmp_path: Path) -> None:
    artifacts.trim_losses(tmp_path, 1)
    for epoch in (1, 2, 3):
        artifacts.add_losses(tmp_path, epoch, [0.5, 0.25])
    with (tmp_path / "losses.jsonl").open("a") as file:
        file.write('{"epoch":4,"lo')  # killed here
    artifacts.trim_losses(tmp_path, 3)
    artifacts.add_losses(tmp_path, 3, [0.125])
    lines = [json.loads(line) for line in (tmp_path / "losses.jsonl").read_text().splitlines()]
    assert [(line["epoch"], line["losses"]) for line in lines] == [(1, [0.5, 0.25]), (2, [0.5, 0.25]), (3, [0.125])]


def test_the_manifest_does_not_list_what_tpujob_still_writes_beside_the_training(tmp_path: Path) -> None:
    for name in artifacts.OF_TPUJOB:
        (tmp_path / name).write_text("{}\n")
    (tmp_path / "weights.bin").write_bytes(b"1")
    artifacts.write_manifest(tmp_path)
    listed = json.loads((tmp_path / artifacts.MANIFEST).read_text())["files"]
    assert [file["path"] for file in listed] == ["weights.bin"]


def test_an_empty_configuration_is_the_defaults() -> None:
    assert parse({}) == Config()


def test_every_key_can_be_given() -> None:
    assert parse(asdict(Config())) == Config()
    given: dict[str, Any] = {
        "options": {"width": 3}, "dataset": "fashion-mnist", "data_dir": "data", "fallback": "synthetic",
        "cores": 1,
    }  # fmt: skip
    numbers: dict[str, Any] = {
        "lr": 1,
        "momentum": 0,
        "seed": 0,
        "image_size": 64,
        "examples": 100,
        "keep_checkpoints": 3,
    }
    others: dict[str, Any] = {"eval": False, "checkpoint_every": "200 steps", "timing": "drained", "precision": "bf16"}
    within = {"profile": {"start": 1, "steps": 3}, "emulated": {"cores": 2, "examples": None, "epochs": 1}}
    parts: dict[str, Any] = {"profile": ProfileConfig(start=1, steps=3), "emulated": EmulatedConfig(cores=2, epochs=1)}
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


def lines(path: Path) -> list[dict[str, float | None]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "m", after=None)
    file.write(1, {"loss": 0.5, "rate": None})
    file.write(None, {"accuracy": 0.75})
    file.write(2, {"nothing": None})
    assert lines(tmp_path / "m") == [{"step": 1, "loss": 0.5}, {"accuracy": 0.75}]


def test_a_value_that_json_lacks_is_null(tmp_path: Path) -> None:
    MetricsFile(tmp_path / "m", after=None).write(1, {"loss": float("nan"), "rate": float("inf")})
    assert lines(tmp_path / "m") == [{"step": 1, "loss": None, "rate": None}]


class OneNumber:
    """As NumPy, PyTorch and JAX have it."""

    ndim = 0

    def __float__(self) -> float:
        return 0.25

    def __int__(self) -> int:
        return 7


def test_a_number_of_numpy_torch_or_jax_is_written_as_a_plain_one(tmp_path: Path) -> None:
    MetricsFile(tmp_path / "m", after=None).write(OneNumber(), {"loss": OneNumber(), "count": 3})  # type: ignore[arg-type, dict-item]
    assert lines(tmp_path / "m") == [{"step": 7, "loss": 0.25, "count": 3}]


@pytest.mark.parametrize(("after", "kept"), [(2, [1, 2]), (0, []), (None, [1, 2, 3])])
def test_a_resumed_training_repeats_no_step(tmp_path: Path, after: int | None, kept: list[int]) -> None:
    path = tmp_path / "m"
    path.write_text("".join(f'{{"step": {step}, "loss": 1}}\n' for step in (1, 2, 3)) + '{"step": 4, "lo')
    MetricsFile(path, after=after)
    assert [line["step"] for line in lines(path)] == kept


@pytest.mark.ci
@pytest.mark.torch
@needs_torch
def test_a_training_reports_its_steps_its_rate_and_its_test(tmp_path: Path, data: Path) -> None:
    backend = "xla" if HAS_XLA else "cpu"
    done = succeeds(tmp_path, {"epochs": 2, "batch_size": 32, "lr": 0.02}, "--backend", backend, data=data)
    found = lines(done.artifacts / "metrics.jsonl")
    by_epoch = [json.loads(line)["losses"] for line in (done.artifacts / "losses.jsonl").read_text().splitlines()]
    losses = [loss for epoch in by_epoch for loss in epoch]
    steps = [(line["step"], line["loss"]) for line in found if "loss" in line]
    assert steps == list(enumerate(losses, 1))
    results = done.read("metrics.json")
    assert found[-1] == {
        "step": len(losses),
        "test_accuracy": results["test_accuracy"],
        "test_loss": results["test_loss"],
    }
    assert sum("images_per_s" in line for line in found) >= 1


ENTRY = """
def main(backend, run):
    for step in (1, 2):
        run.report(step, loss=1 / step)
    return {}
"""


@pytest.mark.torch
@needs_torch
def test_an_entry_reports_its_own_once_for_all_processes(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text(ENTRY)
    done = succeeds(tmp_path, {"entry": "mine:main", "cores": 2}, "--backend", "cpu", code=code)
    assert lines(done.artifacts / "metrics.jsonl") == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}]


def test_an_entry_without_pytorch_reports_too(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text(ENTRY.replace("return {}", "return {'loss': 0.5}"))
    done = succeeds(tmp_path, {"entry": "mine:main", "backend": "none"}, code=code)
    assert len(lines(done.artifacts / "metrics.jsonl")) == 2
