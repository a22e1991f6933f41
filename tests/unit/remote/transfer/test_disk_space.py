"""What may still be collected, where several workers share one disk."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.remote.transfer import disk_space
from orchestrator.remote.transfer.disk_space import RESERVED_BYTES, DiskSpace


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """10,000 bytes beyond what stays free."""
    free = SimpleNamespace(free=RESERVED_BYTES + 10_000)
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda path: free)
    return free


def test_workers_do_not_promise_themselves_the_same_room(disk: SimpleNamespace, tmp_path: Path) -> None:
    shared = DiskSpace(tmp_path)
    assert shared.take(0, 6_000) is None
    assert "no room for 6 KB" in (shared.take(1, 6_000) or "")
    assert shared.take(1, 4_000) is None


def test_what_has_arrived_is_the_disks_to_count(disk: SimpleNamespace, tmp_path: Path) -> None:
    shared = DiskSpace(tmp_path)
    assert shared.take(0, 6_000) is None
    shared.arrived(0, 6_000)
    disk.free -= 6_000
    assert shared.take(1, 4_000) is None and shared.take(1, 1) is not None


def test_a_refusal_says_what_is_free_and_what_must_stay_free(disk: SimpleNamespace, tmp_path: Path) -> None:
    disk.free = RESERVED_BYTES // 2
    refusal = DiskSpace(tmp_path).take(0, 30_000_000)
    assert refusal == f"no room for 30.0 MB: {tmp_path} has 8.4 MB, of which 16.8 MB must stay free"


def test_a_try_that_ended_leaves_its_room_to_others(disk: SimpleNamespace, tmp_path: Path) -> None:
    shared = DiskSpace(tmp_path)
    assert shared.take(0, 9_000) is None
    shared.end(0)
    assert shared.take(1, 9_000) is None


def test_the_jobs_own_limit_counts_what_is_there_already_and_a_worker_once(
    disk: SimpleNamespace, tmp_path: Path
) -> None:
    shared = DiskSpace(tmp_path, most_bytes=5_000)
    for _ in range(3):
        shared.begin(0)
        shared.has(0, 2_000)
        assert shared.take(0, 2_000) is None
    assert "limits.max_results" in (shared.take(1, 1_001) or "") and shared.take(1, 1_000) is None


def test_nothing_but_an_empty_file_fits_on_a_full_disk(disk: SimpleNamespace, tmp_path: Path) -> None:
    disk.free = RESERVED_BYTES // 2
    assert DiskSpace(tmp_path).take(0, 1) is not None and DiskSpace(tmp_path).take(0, 0) is None
