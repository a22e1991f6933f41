"""HBM use and duty cycle as the workers' files have them, whatever is in the files."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.report.files.tpu_metrics import NAME, TpuUse, read_run
from orchestrator.vm import tpu_metrics as sampler

GB = 10**9


def write(directory: Path, *lines: Any, worker: int = 0) -> None:
    path = directory / f"worker{worker}" / "artifacts" / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))


def sample(used: Any, duty: Any, *, total: Any = None, every_s: float = 10.0) -> dict[str, Any]:
    total = [16 * GB] * len(used) if total is None else total
    return {"at": 1.0, "every_s": every_s, "hbm_used_bytes": used, "hbm_total_bytes": total, "duty_cycle_percent": duty}


def read(directory: Path) -> TpuUse:
    found = read_run(directory)
    assert found is not None
    return found


def test_the_reader_knows_the_name_that_the_sampler_writes() -> None:
    assert NAME == sampler.NAME


def test_the_peak_is_of_one_chip_and_the_mean_of_all(tmp_path: Path) -> None:
    write(tmp_path, {"schema": 1}, sample([1 * GB, 2 * GB], [10.0, 30.0]), sample([1 * GB, 5 * GB], [50.0, 70.0]))
    write(tmp_path, {"schema": 1}, sample([7 * GB, 3 * GB], [100.0, 100.0]), worker=1)
    found = read(tmp_path)
    assert (found.hbm_peak_bytes, found.hbm_total_bytes, found.chips, found.samples) == (7 * GB, 16 * GB, 4, 3)
    assert found.duty_cycle_percent == pytest.approx((10 + 30 + 50 + 70 + 200) / 6)


def test_a_sample_counts_for_the_time_that_it_stands_for(tmp_path: Path) -> None:
    write(tmp_path, sample([1], [100.0], every_s=10.0), sample([1], [0.0], every_s=30.0))
    assert read(tmp_path).duty_cycle_percent == pytest.approx(25.0)


def test_what_was_not_measured_is_none_and_never_zero(tmp_path: Path) -> None:
    assert read_run(tmp_path) is None
    write(tmp_path, {"schema": 1})
    found = read(tmp_path)
    assert (found.hbm_peak_bytes, found.duty_cycle_percent, found.samples, found.absent) == (None, None, 0, None)
    write(tmp_path, {"absent": "the job's python3 has no libtpu.sdk: \x1b[31mModuleNotFoundError"})
    assert read(tmp_path).absent is not None and "\x1b" not in str(read(tmp_path).absent)


@pytest.mark.parametrize("line", [
    "not json", "[]", "7", "null", sample(["1"], ["2"]), sample([-1], [-2.0]), sample([True], [False]),
    sample([1e300], [101.0]), sample([1, 2], [], total=[5]), sample([0], [], total=[0]),
    sample([3, 20], [], total=[16, 16]), sample({"a": 1}, "much", total=[]), sample([1] * 5000, [1.0] * 5000),
])  # fmt: skip
def test_a_line_that_makes_no_sense_is_left_out(tmp_path: Path, line: Any) -> None:
    write(tmp_path, line)
    found = read(tmp_path)
    assert (found.samples, found.hbm_peak_bytes, found.duty_cycle_percent) == (0, None, None)


def test_neither_a_link_nor_a_directory_is_read(tmp_path: Path) -> None:
    write(tmp_path / "else", sample([1], [1.0]))
    place = tmp_path / "run" / "worker0" / "artifacts"
    place.mkdir(parents=True)
    (place / NAME).symlink_to(tmp_path / "else" / "worker0" / "artifacts" / NAME)
    assert read_run(tmp_path / "run") is None
    (place / NAME).unlink()
    (place / NAME).mkdir()
    assert read_run(tmp_path / "run") is None
