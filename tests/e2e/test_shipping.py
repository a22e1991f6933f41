"""What a run ships, with the real CLI: only what it should, only what changed, and safely so."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli_fixture import Cli, Tpujob, in_ci
from tests.waiting import ran, until

JOB = """
name: mine
tpu: {zone: us-central1-a}
code: project
command: cat train.py
"""


def project(directory: Path) -> Path:
    """Return a directory with a script, and caches that are not shipped."""
    place = directory / "project"
    (place / "caches").mkdir(parents=True)
    (place / "caches" / "big").write_bytes(bytes(300_000))
    (place / ".gitignore").write_text("caches/\n")
    (place / "train.py").write_text("one")
    (place / "README.md").write_text("of the project")
    (place / "__init__.py").touch()
    return place


def stage(said: str, name: str) -> list[str]:
    return [line for line in said.splitlines() if line.split(" ", 1)[0] == name]


def test_only_what_changed_travels_to_a_held_slice_and_the_line_says_so(tpujob: Tpujob) -> None:
    directory = project(tpujob.directory)
    job = tpujob.job(JOB)
    assert tpujob("up", "mine", "--zone", "us-central1-a").returncode == 0
    (first,) = stage(tpujob("run", job).stderr, "ship")
    assert first.startswith("ship     4 files, ") and "→ 1 worker in " in first
    assert "(caches/ 300 KB left out by .gitignore:1)" in first
    (directory / "train.py").write_text("two")
    said = tpujob("run", job)
    assert "worker0 | two" in said.stdout
    assert stage(said.stderr, "ship")[0].startswith("ship     1 of 4 files, 3 bytes changed (caches/ 300 KB")
    (again,) = stage(tpujob("run", job).stderr, "ship")
    assert "nothing new" in again
    assert tpujob("down", "mine").returncode == 0


def test_plan_says_what_is_shipped_what_is_left_out_and_by_which_rule(tpujob: Tpujob) -> None:
    project(tpujob.directory)
    job = tpujob.job(JOB)
    said = tpujob("plan", job)
    assert "ships 4 files, " in said.stderr and "caches/ 300 KB (.gitignore:1)" in said.stderr
    ship = json.loads(tpujob("plan", job, "--json").stdout)["ship"]
    assert ship["files"] == 4
    assert {"path": "caches/", "size_bytes": 300_000, "rule": ".gitignore:1", "complete": True} in ship["left_out"]


@pytest.mark.parametrize("command", ["run", "run here", *in_ci("submit")])
def test_a_job_that_misses_a_file_ends_with_why_and_its_run_is_neither_shipped_nor_seen_by_git(
    tpujob: Tpujob, command: str
) -> None:
    directory = project(tpujob.directory)
    (directory / "runs" / "tensorboard").mkdir(parents=True)
    (directory / "runs" / "tensorboard" / "events").write_text("x")
    text = JOB.replace("tpu: {zone: us-central1-a}", "on: local") if command == "run here" else JOB
    job = tpujob.job(text.replace("cat train.py", "cat caches/big"))
    settings = tpujob.directory / "home" / ".config" / "tpujob" / "settings.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"runs_dir: {directory}/runs\n")
    git = ["git", "-C", str(directory)]
    subprocess.run([*git, "init", "-q"], check=True)
    untracked = subprocess.run([*git, "status", "-s"], check=True, capture_output=True).stdout
    said = tpujob(command.removesuffix(" here"), job)
    assert "caches/ 300 KB left out by .gitignore:1" in said.stderr
    if command == "submit":
        said = tpujob("attach", said.stdout.strip())
    assert said.returncode == 1
    assert "hint: `caches/big` exists here and was left out by .gitignore:1; the line" in said.stderr
    assert subprocess.run([*git, "status", "-s"], check=True, capture_output=True).stdout == untracked
    ship = json.loads(tpujob("plan", job, "--json").stdout)["ship"]
    assert ship["files"] == 5
    run = f"runs/{Path(tpujob.only_run()['directory']).name}/"
    assert [one["path"] for one in ship["left_out"] if one["rule"] == "of tpujob"] == [run]


def test_a_secret_is_refused_before_anything_is_created(tpujob: Tpujob) -> None:
    directory = project(tpujob.directory)
    (directory / ".env").write_text("TOKEN=1")
    job = tpujob.job(JOB)
    with tpujob.creating_nothing():
        for command in ("plan", "run", "submit"):
            said = tpujob(command, job)
            assert said.returncode == 64 and ".env looks like a secret (an environment file)" in said.stderr
            assert ".tpujobignore, or allow it there with `!.env`" in said.stderr
    (directory / ".tpujobignore").write_text("!.env\n")
    assert tpujob("plan", job).returncode == 0


@pytest.mark.ci
def test_a_command_killed_while_it_ships_leaves_nothing_that_is_used(cli: Cli) -> None:
    directory = project(cli.directory)
    (directory / "noise").write_bytes(os.urandom(150 << 20))
    job = cli.job(JOB.replace("cat train.py", "sha256sum noise"))
    assert cli("up", "mine", "--zone", "us-central1-a").returncode == 0
    command = cli.start("run", job)
    homes = cli.emulator_directory.glob

    def arriving() -> bool:
        return any(draft.stat().st_size > 1 << 20 for draft in homes("vms/*/worker0/home/tpujob/store/drafts/*"))

    try:
        until(arriving, "the first bytes on the worker")
    finally:
        command.send_signal(signal.SIGKILL)
        command.communicate()
    assert not [path for path in homes("vms/*/worker0/home/tpujob/store/objects/*/*") if path.stat().st_size > 1 << 20]
    said = cli("run", job)
    assert said.returncode == 0, said.stderr
    real = ran(["sha256sum", "noise"], cwd=directory, check=True).stdout
    assert f"worker0 | {real.strip()}" in said.stdout
    assert cli("down", "mine").returncode == 0
