"""Many hosts in one run, with the limits that a machine has by itself."""

import sys

import pytest

from tests.cli_fixture import Cli

JOB = """
name: large
tpu: {{accelerator: {accelerator}, zone: us-central1-a}}
command: echo "I am $TPUJOB_WORKER" | tee "$TPUJOB_ARTIFACTS/me"
"""
MOST_MB = 300
# Prints the peak of a command, which counts what its parent had when it was forked: pytest may be larger than the command.
MEASURED = """
import os, resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
sys.exit(code)
"""


@pytest.mark.exhaustive
def test_a_run_on_256_workers_brings_all_logs_and_results_with_little_memory(cli: Cli) -> None:
    before = (sys.executable, "-IS", "-c", MEASURED)
    run = cli.start("run", cli.job(JOB.format(accelerator="v5p-2048")), before=before)
    out, err = run.communicate()
    assert run.returncode == 0, err
    assert int(out) / 1e6 <= MOST_MB
    for what in ("logs/worker{}.log", "worker{}/artifacts/me"):
        texts = [path.read_text() for n in range(256) for path in cli.directory.glob(f"runs/*/{what.format(n)}")]
        assert texts == [f"I am {n}\n" for n in range(256)]


@pytest.mark.exhaustive
def test_64_workers_need_no_other_limit_of_open_files_than_that_of_macos(cli: Cli) -> None:
    soft = ("bash", "-c", 'ulimit -Sn 256; exec "$@"', "limited")
    run = cli.start("run", cli.job(JOB.format(accelerator="v5litepod-256")), before=soft)
    _, err = run.communicate()
    assert run.returncode == 0, err
    assert len(list(cli.directory.glob("runs/*/worker*/artifacts/me"))) == 64
