"""Files are whole or absent, and the manifest lists exactly what is there."""

import hashlib
import json
from pathlib import Path
from typing import IO

import pytest

pytest.importorskip("numpy")

from payload import artifacts


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
    (tmp_path / artifacts.TPU_METRICS).write_text("{}\n")
    (tmp_path / "weights.bin").write_bytes(b"1")
    artifacts.write_manifest(tmp_path)
    listed = json.loads((tmp_path / artifacts.MANIFEST).read_text())["files"]
    assert [file["path"] for file in listed] == ["weights.bin"]
