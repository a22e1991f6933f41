"""What a run was made with, and what its hosts did, as the files of its directory say it: whatever is in them."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.report.files import host, made
from orchestrator.report.files.made import Made
from orchestrator.vm.agent import host as sampler

TOLD: dict[str, Any] = {
    "schema": 1,
    "tpujob": "0.1.0",
    "client": {"python": "3.12.1", "platform": "Linux"},
    "command": "python train.py",
    "git": {"commit": "a" * 40, "branch": "trunk", "dirty": ["train.py", "b.py"], "untracked": ["c.py"], "cut": True},
    "code": {"sha256": "f" * 64, "files": 3, "size_bytes": 120, "not_kept": "", "directory": "/home/me/code"},
    "lock": {"sha256": "e" * 64},
    "again_of": "r0",
    "missing": "",
}
PACKAGES = {"schema": 1, "python": "3.10.12", "packages": {"numpy": "1.26.4", "torch": "2.9.0", "wheel": "1"}}


def write(directory: Path, told: Any = None, packages: Any = None, *, archive: bool = True) -> Path:
    artifacts = directory / "worker0" / "artifacts"
    artifacts.mkdir(parents=True, exist_ok=True)
    for path, value in ((directory / made.NAME, told), (artifacts / made.PACKAGES, packages)):
        if value is not None:
            path.write_text(value if isinstance(value, str) else json.dumps(value))
    if archive:
        (directory / made.ARCHIVE).touch()
    return directory


def test_what_was_recorded_is_said(tmp_path: Path) -> None:
    found = made.read(write(tmp_path, TOLD, PACKAGES))
    assert found is not None and found.git is not None and found.code is not None
    assert (found.git.dirty, found.git.cut, found.git.withheld) == (("train.py", "b.py"), True, ())
    assert (found.code.files, found.code.not_kept, found.missing, found.packages["torch"]) == (3, "", "", "2.9.0")
    assert dict(made.lines(found)) == {
        "made": "by tpujob 0.1.0 on Linux · lock eeeeeeeeeeee",
        "packages": "3 · Python 3.10.12 · numpy 1.26.4, torch 2.9.0",
        "git": "aaaaaaaaaaaa · trunk · 2 files changed, 1 file not in git",
        "again": "of r0",
    }


def test_of_an_older_run_nothing_is_said(tmp_path: Path) -> None:
    assert made.read(tmp_path) is None and made.lines(None) == []


def test_what_was_not_kept_cannot_be_run_again(tmp_path: Path) -> None:
    found = made.read(write(tmp_path, TOLD, archive=False))
    assert found is not None and found.missing.startswith("again.tar.gz, which has its job")
    assert ("again", f"`run --again` cannot repeat it: {found.missing}") in made.lines(found)


def test_packages_alone_are_something(tmp_path: Path) -> None:
    found = made.read(write(tmp_path, packages=PACKAGES))
    assert found is not None and found.git is None and len(found.packages) == 3


@pytest.mark.parametrize("told", [None, "{", {**TOLD, "schema": 2}])
def test_a_run_of_which_it_cannot_be_read_how_it_was_made_cannot_be_run_again(tmp_path: Path, told: Any) -> None:
    """Else it would run with what is in the archive, which may be without its code."""
    found = made.read(write(tmp_path, told, PACKAGES))
    assert found is not None and found.missing == "its made.json is not there, or this tpujob cannot read it"


@pytest.mark.parametrize("told", [
    "", "{", "[]", "7", '{"schema": 2}', "[" * 100_000, {"schema": 1},
    {**TOLD, "git": 3, "code": [], "lock": "x", "client": None},
    {**TOLD, "git": {"commit": 7, "branch": [], "dirty": "all", "untracked": [None, {}, 4], "withheld": {"a": 1}, "cut": "no"}},
    {**TOLD, "code": {"files": -1, "size_bytes": 1e99, "sha256": {}, "not_kept": []}, "command": [1], "again_of": {}},
])  # fmt: skip
def test_damaged_files_are_no_error(tmp_path: Path, told: Any) -> None:
    for packages in (
        None,
        told,
        {"schema": 1, "python": [], "packages": [1]},
        {"schema": 1, "packages": {"a": 1, "b": None}},
    ):
        found = made.read(write(tmp_path, told, packages))
        assert found is None or (isinstance(found, Made) and found.packages == {})
        assert all(isinstance(text, str) for line in made.lines(found) for text in line)


def test_hostile_text_is_bounded_and_has_no_control_characters(tmp_path: Path) -> None:
    evil = "\x1b[31m" + "x" * 1_200
    told = {**TOLD, "tpujob": evil, "git": {**TOLD["git"], "branch": evil, "dirty": [evil] * 2000}}
    found = made.read(write(tmp_path, told, {**PACKAGES, "packages": {evil: evil}}))
    assert found is not None and found.git is not None
    texts = [found.tpujob, found.git.branch, *found.git.dirty, *found.packages, *found.packages.values()]
    assert all("\x1b" not in text and len(text) <= 1000 for text in texts) and len(found.git.dirty) == 1000


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "elsewhere", TOLD)
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / made.NAME).symlink_to(elsewhere / made.NAME)
    assert made.read(directory) is None


# -- hosts -------------------------------------------------------------------------------------------------------------


def sample(at: Any, cpu: Any, used: int = 10, **more: Any) -> str:
    line = {
        "at": at,
        "every_s": 5.0,
        "cpu_percent": cpu,
        "cpus": 4,
        "memory_used_bytes": used,
        "memory_total_bytes": 100,
    }
    return json.dumps(line | more)


def sampled(directory: Path, *lines: str, worker: int = 0) -> Path:
    path = directory / f"worker{worker}" / "artifacts" / host.NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in ('{"schema": 1}', *lines)))
    return directory


def test_the_mean_is_over_time_and_the_peaks_are_those_of_any_worker(tmp_path: Path) -> None:
    sampled(tmp_path, sample(10, 20, 30), sample(25, 80, 20, every_s=15.0))
    use = host.read_run(sampled(tmp_path, sample(10, 0, 90, memory_total_bytes=200), worker=1))
    assert use is not None and (use.workers, use.samples, use.cpus) == (2, 3, 4)
    assert (use.cpu_percent, use.cpu_peak_percent) == (52.0, 80)
    assert (use.memory_peak_bytes, use.memory_total_bytes) == (90, 200)
    assert "this machine" in host.line(use, emulated=True) and "this machine" not in host.line(use, emulated=False)
    assert host.curves(tmp_path) == [(5.0, 20.0, 30.0), (20.0, 80.0, 20.0)]


def test_while_a_run_goes_on_the_copy_of_the_samples_is_read(tmp_path: Path) -> None:
    collected = sampled(tmp_path, sample(10, 20)) / "worker0" / "artifacts" / host.NAME
    (tmp_path / "logs").mkdir()
    copy = collected.rename(tmp_path / "logs" / f"worker0.{host.NAME}")
    use = host.read_run(tmp_path)
    assert use is not None and (use.workers, use.samples) == (1, 1) and len(host.curves(tmp_path)) == 1
    sampled(tmp_path, sample(10, 20), sample(15, 20))
    assert copy.exists() and len(host.curves(tmp_path)) == 2, "what was collected is whole"


def test_a_clock_that_was_set_back_moves_no_sample(tmp_path: Path) -> None:
    found = host.curves(sampled(tmp_path, sample(5000, 20), sample(10, 80), sample(15, 40)))
    assert [percent for _, percent, _ in sorted(found)] == [20, 80, 40] and found == sorted(found)


@pytest.mark.parametrize("line", [
    "{", "[]", '"x"', sample(10, 101), sample(10, -1), sample(10, 5, 200), sample(10, 5, every_s=0), sample("now", 5),
    sample(10, 5, memory_total_bytes=0), sample(10, True), "x" * 10_000,
])  # fmt: skip
def test_a_line_that_makes_no_sense_is_left_out(tmp_path: Path, line: str) -> None:
    assert host.read_run(sampled(tmp_path, line)) is None
    use = host.read_run(sampled(tmp_path, line, sample(10, 50)))
    assert use is not None and use.samples == 1


def test_a_file_that_the_job_made_under_that_name_is_no_measurement(tmp_path: Path) -> None:
    path = sampled(tmp_path) / "worker0" / "artifacts" / host.NAME
    path.write_text(f"{sample(10, 50)}\n{sample(15, 50)}\n")
    assert host.read_run(tmp_path) is None and host.curves(tmp_path) == []


def test_the_reader_knows_the_head_that_the_sampler_writes() -> None:
    assert (host.NAME, host.HEAD) == (sampler.NAME, sampler.HEAD)


def test_a_long_curve_keeps_its_peaks(tmp_path: Path) -> None:
    lines = [sample(5.0 * number, 99 if number == 1234 else 1) for number in range(5000)]
    found = host.curves(sampled(tmp_path, *lines))
    assert len(found) <= host.MOST_POINTS and max(row[1] for row in found) == 99
