"""The files that the packer takes from a run's directory, those that it refuses, and the index that it returns."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.vm.conftest import PREFIX, Worker


@pytest.fixture
def run(worker: Worker) -> Path:
    path = worker.path()
    (path / "artifacts").mkdir(parents=True)
    (path / "work").mkdir()
    return path


def packed(worker: Worker, *patterns: str, wanted: str = "[[0, 1000000]]") -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the packed files by path, and the refused ones with the reason. The index must match the archive."""
    request = json.dumps({"attempt": "a1", "patterns": patterns})
    said = worker.output("pack", stdin=f"{request}\n{wanted}\n".encode())
    rows: list[dict[str, Any]] = []
    while not rows or "end" not in rows[-1]:
        line, _, said = said.partition(b"\n")
        rows.append(json.loads(line[len(PREFIX) :]))
    files = [row for row in rows if "sha256" in row]
    assert rows[-1] == {"end": len(files)}
    came: dict[str, bytes] = {}
    for first, after in json.loads(wanted):
        for row in files[first:after]:
            came[row["path"]], said = said[: row["size_bytes"]], said[row["size_bytes"] :]
            assert row["sha256"] == hashlib.sha256(came[row["path"]]).hexdigest()
    assert said == b""
    return came, {row["path"]: row["why"] for row in rows if "why" in row}


def test_all_artifacts_and_the_matching_files_of_the_work_directory_come(worker: Worker, run: Path) -> None:
    (run / "artifacts" / "deep" / "er").mkdir(parents=True)
    (run / "artifacts" / "deep" / "er" / "model.pt").write_bytes(b"weights")
    (run / "work" / "out").mkdir()
    for name in ("a.png", "b.txt", "out/c.png"):
        (run / "work" / name).write_text(name)
    came, refused = packed(worker, "*.png", "out/*.png")
    assert came == {"artifacts/deep/er/model.pt": b"weights", "work/a.png": b"a.png", "work/out/c.png": b"out/c.png"}
    assert refused == {}


@pytest.mark.parametrize("pattern", ["**/*.png", "**", "out", "o*"])
def test_deep_patterns_and_directories(worker: Worker, run: Path, pattern: str) -> None:
    (run / "work" / "out" / "x" / "y").mkdir(parents=True)
    (run / "work" / "out" / "x" / "y" / "c.png").write_text("c")
    assert packed(worker, pattern) == ({"work/out/x/y/c.png": b"c"}, {})


@pytest.mark.parametrize("pattern", ["../../etc/*", "/etc/*", "a/../../*"])
def test_patterns_that_lead_out_are_refused(worker: Worker, run: Path, pattern: str) -> None:
    came, refused = packed(worker, pattern)
    assert came == {}
    assert list(refused.values()) == ["the pattern leads out of the work directory"]


def test_a_link_within_comes_as_its_file_and_one_that_leads_out_is_refused(worker: Worker, run: Path) -> None:
    artifacts = run / "artifacts"
    (artifacts / "step9.pt").write_bytes(b"weights")
    (artifacts / "latest.pt").symlink_to("step9.pt")
    (artifacts / "passwd").symlink_to("/etc/passwd")
    (artifacts / "loop").symlink_to("loop")
    (artifacts / "etc").symlink_to("/etc")
    came, refused = packed(worker)
    assert came == {"artifacts/latest.pt": b"weights", "artifacts/step9.pt": b"weights"}
    assert sorted(refused) == ["artifacts/etc", "artifacts/loop", "artifacts/passwd"]


def test_patterns_never_go_through_a_link(worker: Worker, run: Path) -> None:
    (run / "work" / "etc").symlink_to("/etc")
    assert packed(worker, "etc/*", "**/passwd") == ({}, {})


def test_a_fifo_is_refused_and_does_not_hang_the_packer(worker: Worker, run: Path) -> None:
    os.mkfifo(run / "artifacts" / "pipe")
    (run / "artifacts" / "file").write_text("x")
    came, refused = packed(worker)
    assert list(came) == ["artifacts/file"]
    assert refused == {"artifacts/pipe": "not a regular file"}


def test_only_requested_files_are_sent(worker: Worker, run: Path) -> None:
    for number in range(9):
        (run / "artifacts" / f"f{number}").write_text("x")
    came, _ = packed(worker, wanted="[[0, 1], [3, 5], [8, 9]]")
    assert list(came) == [f"artifacts/f{number}" for number in (0, 3, 4, 8)]
    assert packed(worker, wanted="[]") == ({}, {})


def test_a_worker_that_hashes_a_large_file_sends_progress(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from orchestrator.vm import pack

    (run / "artifacts" / "large").write_bytes(bytes(3 << 20))
    monkeypatch.setattr(pack, "SAY_EVERY_S", 0.0)
    (row,) = pack.rows(str(run), [], pack.ActivitySignal())
    assert row["size_bytes"] == 3 << 20
    said = [json.loads(line.removeprefix("tpujob:")) for line in capfd.readouterr().out.splitlines()]
    assert said == [{"hashed": 0}, *[{"hashed": 1 << 20}] * 3], "of the directory, and of each piece"


def test_a_file_that_is_refused_for_its_size_is_not_read(run: Path) -> None:
    from orchestrator.vm import pack

    read: list[int] = []
    for name, size_bytes in (("large", 3 << 20), ("small", 10)):
        (run / "artifacts" / name).write_bytes(bytes(size_bytes))
    rows = pack.rows(str(run), [], read.append, lambda size_bytes: "too large" if size_bytes > 10 else None)
    assert {row["path"]: row.get("why") for row in rows} == {"artifacts/large": "too large", "artifacts/small": None}
    assert sum(read) == 10


def test_a_file_that_is_gone_or_shorter_when_its_turn_comes_is_filled_up_and_its_hash_tells(run: Path) -> None:
    from orchestrator.vm import pack

    for name in ("gone", "longer", "pipe", "short"):
        (run / "artifacts" / name).write_bytes(b"x" * 1000)
    files = list(pack.rows(str(run), []))
    for name in ("gone", "pipe"):
        (run / "artifacts" / name).unlink()
    os.mkfifo(run / "artifacts" / "pipe")
    (run / "artifacts" / "short").write_bytes(b"x")
    (run / "artifacts" / "longer").write_bytes(b"x" * 1001)
    came = {row["path"]: b"".join(pack.content(str(run / row["path"]), row["size_bytes"])) for row in files}
    assert came == {
        "artifacts/gone": bytes(1000),
        "artifacts/longer": b"x" * 1000,
        "artifacts/pipe": bytes(1000),
        "artifacts/short": b"x" + bytes(999),
    }


@pytest.mark.parametrize("size_bytes", [0, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_a_file_of_any_size_comes_with_its_hash(worker: Worker, run: Path, size_bytes: int) -> None:
    data = os.urandom(size_bytes)
    (run / "artifacts" / "data").write_bytes(data)
    assert packed(worker)[0] == {"artifacts/data": data}


def test_a_long_name_comes(worker: Worker, run: Path) -> None:
    name = "n" * 200
    (run / "artifacts" / name).write_text("x")
    assert packed(worker)[0] == {f"artifacts/{name}": b"x"}


def test_nothing_to_pack_is_an_empty_stream(worker: Worker, run: Path) -> None:
    assert packed(worker, "*.png") == ({}, {})
