"""What docs/sweeps.md, docs/preemption.md and docs/teams-and-ci.md show works: their files and commands, with the real CLI."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.cli_fixture import Cli
from tests.waiting import until

FILE = re.compile(r"^```\w*\n# (?P<name>[\w/]+\.\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.exhaustive


def files_of(page: str, cli: Cli) -> Path:
    """Return a directory with the files that the page shows."""
    directory = cli.directory / "project"
    directory.mkdir()
    for found in FILE.finditer((ROOT / "docs" / page).read_text(encoding="utf-8")):
        (directory / found["name"]).write_text(found["text"])
    return directory


def test_the_sweep_of_the_page_is_compared_over_its_seeds(cli: Cli) -> None:
    files_of("sweeps.md", cli)
    swept = cli("run", "project/sweep.yaml")
    assert (swept.returncode, cli.lived(), cli.alive()) == (0, 2, []), swept.text
    table = cli("compare", "lr-sweep", "--over", "seed").stdout.splitlines()
    assert table[:2] == ["lr\t0.01\t0.03\t0.1", "runs\t2\t2\t2"]
    assert table[2] == "loss\t0.8329 ± 0.0071\t0.5588 ± 0.0071\t0.1366 ± 0.0071"
    again = cli("run", "project/sweep.yaml")
    assert (again.returncode, cli.lived()) == (0, 2), "what succeeded is not run again"


def test_the_script_of_the_page_goes_on_after_a_preemption(cli: Cli) -> None:
    files_of("preemption.md", cli)
    process = cli.start("run", "project/spot.yaml")
    cli.until("starting after step 0", process)
    (node,) = (row["node"] for row in json.loads(cli("status", "--json").stdout)["slices"])
    until(lambda: any(cli.emulator_directory.glob("vms/**/artifacts/checkpoint.json")), "a checkpoint")
    # Long enough on any machine: the script saves its work and ends, which ends the slice, too.
    assert cli("emulator", "preempt", node, "--notice", "1h").returncode == 0
    printed, said = process.communicate()
    assert process.returncode == 0, said
    (step,) = re.findall(r"restart +attempt 2 goes on at step (\d+), saved", said)
    assert int(step) >= 10 and f"worker0 | starting after step {step}\n" in printed
    shown = cli.only_run()
    assert [row["cause"] for row in shown["attempts"]] == ["preempted", None]
    checkpoint = json.loads((Path(shown["directory"]) / "worker0/artifacts/checkpoint.json").read_text())
    assert (checkpoint["step"], cli.alive()) == (300, [])


def test_the_tests_of_the_page_pass(cli: Cli) -> None:
    directory = files_of("teams-and-ci.md", cli)
    (directory / "job.yaml").write_text("tpu: {accelerator: v5e-8, zone: us-central1-a}\ncommand: echo trained\n")
    programs = cli.directory / "bin"
    programs.mkdir()
    (programs / "tpujob").write_text(f'#!/bin/sh\nexec {shlex.join(cli.program)} "$@"\n')
    (programs / "tpujob").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", "test_job.py"],
        cwd=directory,
        env={**os.environ, **cli.env, "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
