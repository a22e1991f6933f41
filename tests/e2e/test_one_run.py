"""One run, changed: without a job file, with options, and again on the slice on which it failed."""

import json
from pathlib import Path

import pytest

from tests.cli_fixture import Tpujob

SCRIPT = """\
import argparse, os, pathlib, sys

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    print("lr", parser.parse_args().lr, "N", os.environ.get("N"), "in", sorted(os.listdir()))
    pathlib.Path(os.environ["TPUJOB_ARTIFACTS"], "result.txt").write_text("result")
"""


@pytest.fixture
def project(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tpujob.directory / "project"
    directory.mkdir()
    (directory / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(directory)
    return directory


def test_a_script_runs_without_a_job_file(tpujob: Tpujob, project: Path) -> None:
    options = ("--accelerator", "v5e-8", "--zone", "us-central1", "--env", "N=007")
    done = tpujob("run", *options, "--", "python", "train.py", "--lr", "3e-4")
    assert done.returncode == 0, done.stderr
    assert "worker0 | lr 0.0003 N 007 in ['train.py']" in done.stdout
    assert "v5litepod-8 · us-central1-a" in done.stderr and tpujob.alive() == []
    (result,) = project.glob("runs/train-*/worker0/artifacts/result.txt")
    assert result.read_text() == "result"
    (run,) = json.loads(tpujob("list", "--json").stdout)
    assert run["name"] == "train" and run["job"] is None is json.loads(tpujob("show", "train", "--json").stdout)["job"]
    assert "The job as it was run, without a job file" in next(project.glob("runs/*/report.html")).read_text()


def test_a_job_file_that_init_wrote_is_changed_for_one_run(tpujob: Tpujob, project: Path) -> None:
    made = tpujob("init")
    assert (made.returncode, made.stdout) == (0, "train.yaml\n")
    changes = ("--zone", "us-east5", "--spot", "--set", "limits.max_duration=2h")
    shape = json.loads(tpujob("plan", "train.yaml", *changes, "--json").stdout)
    assert {(one["zone"][:8], one["provisioning"]) for one in shape["candidates"]} == {("us-east5", "spot")}
    assert shape["max_duration_s"] == 7200
    done = tpujob("run", "train.yaml", "--zone", "us-central1-a", "--", "python", "train.py", "--lr", "1")
    assert done.returncode == 0 and "lr 1.0 N None" in done.stdout


def test_a_failed_setup_keeps_its_slice_and_the_next_run_uses_and_releases_it(tpujob: Tpujob) -> None:
    job = tpujob.job(
        "name: fragile\ntpu: {zone: us-central1-a}\nkeep_on_failure: 5m\nenv: {CODE: 3}\n"
        "setup: exit $CODE\ncommand: echo worked > $TPUJOB_ARTIFACTS/out\n"
    )
    failed = tpujob("run", job)
    assert failed.returncode == 3 and len(tpujob.alive()) == 1
    held = [line for line in failed.stderr.splitlines() if line.startswith("held ")]
    assert "for 5 m" in held[0] and "emulated, not billed; on Google Cloud $0.80 more at most" in held[0]
    assert "`tpujob ssh fragile`" in held[1] and "`tpujob down fragile`" in held[1]
    (row,) = json.loads(tpujob("status", "--json").stdout)["slices"]
    assert "failed on it: the next `tpujob run` of this job uses it" in row["remark"]
    again = tpujob("run", job, "--env", "CODE=0")
    assert again.returncode == 0, again.stderr
    assert "fragile, held since this job failed on it" in again.stderr
    assert tpujob.alive() == [] and tpujob.lived() == 1
    assert tpujob("collect", "fragile").returncode == 0


def test_cancel_ends_the_run_that_took_the_slice_over_and_releases_it(tpujob: Tpujob) -> None:
    job = tpujob.job("name: fragile\ntpu: {zone: us-central1-a}\nkeep_on_failure: 5m\ncommand: exit 3\n")
    assert tpujob("run", job).returncode == 3
    process = tpujob.start("run", job, "--", "echo started; sleep 300")
    tpujob.until("started", process)
    canceled = tpujob("cancel", "fragile")
    assert canceled.returncode == 0 and "absent (checked" in canceled.stdout, canceled.text
    process.communicate()
    assert process.returncode == 71 and tpujob.alive() == [] and tpujob.lived() == 1


def test_another_job_leaves_the_slice_of_a_failed_one_alone(tpujob: Tpujob) -> None:
    failing = tpujob.job("name: fragile\ntpu: {zone: us-central1-a}\ncommand: exit 3\n")
    assert tpujob("run", failing, "--keep-on-failure").returncode == 3
    other = tpujob.job("name: other\ntpu: {zone: us-central1-a}\ncommand: 'true'\n", "other.yaml")
    assert tpujob("run", other).returncode == 0
    assert len(tpujob.alive()) == 1 and tpujob.lived() == 2
    assert tpujob("down", "fragile").returncode == 0 and tpujob.alive() == []
