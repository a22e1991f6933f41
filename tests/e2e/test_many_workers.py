"""Many workers in one run: what is shown, why a hidden one failed, and one that dies in the middle."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cli_fixture import Cli, Tpujob
from tests.waiting import HANG_S, until

JOB = """
name: many
tpu: {{accelerator: v5litepod-32, zone: us-central1-a}}
command: |
  echo "begin $TPUJOB_WORKER"
  {command}
"""
# Worker 5 fails once all have written their line: emulated workers share a disk.
ONE_FAILS = """\
touch "$BEGUN/$TPUJOB_WORKER"
  if [ "$TPUJOB_WORKER" != 5 ]; then exec sleep 300; fi
  until [ "$(ls "$BEGUN" | wc -l)" -eq 8 ]; do sleep 0.02; done
  echo "FileNotFoundError: shard 5"; exit 3
env: {BEGUN: %s}
"""


def test_a_hidden_worker_that_fails_says_why_and_files_and_json_have_all(tpujob: Tpujob, tmp_path: Path) -> None:
    (tmp_path / "begun").mkdir()
    done = tpujob("run", tpujob.job(JOB.format(command=ONE_FAILS % json.dumps(str(tmp_path / "begun")))))
    assert done.returncode == 3, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if " | " in line] == [
        "worker0 | begin 0",
        "worker5 | begin 5",
        "worker5 | FileNotFoundError: shard 5",
    ]
    assert "logs     showing worker0; the logs of the other 7 are in runs/many-" in done.stderr
    assert "failed   worker5 ended with 3; the end of its log (runs/many-" in done.stderr
    assert "workers  worker5 ended with 3: FileNotFoundError: shard 5" in lines
    assert "workers  worker0 to worker4, worker6 and worker7 were stopped" in lines
    report = json.loads(tpujob("show", "--json").stdout)
    assert [(each["worker"], each["stopped"]) for each in report["workers"]] == [(n, n != 5) for n in range(8)]
    logged = tpujob("logs", "many")
    assert logged.stdout == "worker0 | begin 0\n" and "--worker all shows them" in logged.stderr
    assert len(tpujob("logs", "many", "--worker", "all").stdout.splitlines()) == 9
    assert len(tpujob("logs", "many", "--json").stdout.splitlines()) == 9
    assert tpujob("logs", "many", "--worker", "5").stdout == "begin 5\nFileNotFoundError: shard 5\n"


def test_a_worker_that_is_not_there_is_refused_before_anything_is_created(tpujob: Tpujob) -> None:
    for more in ("", "matrix: {lr: [1, 2]}\n"):
        done = tpujob(
            "run", tpujob.job(JOB.format(command="echo ${params.lr}" if more else "true") + more), "--logs", "8"
        )
        assert done.returncode == 64 and tpujob.leases() == []
        assert done.stderr.splitlines()[-1] == "--logs: there is no worker8; there are worker0 to worker7"


LARGE = """
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
    run = cli.start("run", cli.job(LARGE.format(accelerator="v5p-2048")), before=before)
    out, err = run.communicate()
    assert run.returncode == 0, err
    assert int(out) / 1e6 <= MOST_MB
    for what in ("logs/worker{}.log", "worker{}/artifacts/me"):
        texts = [path.read_text() for n in range(256) for path in cli.directory.glob(f"runs/*/{what.format(n)}")]
        assert texts == [f"I am {n}\n" for n in range(256)]


@pytest.mark.exhaustive
def test_64_workers_need_no_other_limit_of_open_files_than_that_of_macos(cli: Cli) -> None:
    soft = ("bash", "-c", 'ulimit -Sn 256; exec "$@"', "limited")
    run = cli.start("run", cli.job(LARGE.format(accelerator="v5litepod-256")), before=soft)
    _, err = run.communicate()
    assert run.returncode == 0, err
    assert len(list(cli.directory.glob("runs/*/worker*/artifacts/me"))) == 64


SILENT = """
name: silent
tpu: {accelerator: v5litepod-16, zone: us-central1-a}
command: |
  for i in $(seq 30); do echo "line $i"; sleep 0.5; done
  echo done > "$TPUJOB_ARTIFACTS/done"
"""


@pytest.mark.exhaustive
def test_a_worker_that_dies_is_named_and_holds_up_neither_logs_nor_collection(cli: Cli) -> None:
    run = cli.start("run", cli.job(SILENT))
    errors: list[str] = []
    reader = threading.Thread(target=_read, args=(run, errors), daemon=True)
    reader.start()
    logged = lambda worker: "".join(path.read_text() for path in cli.directory.glob(f"runs/*/logs/worker{worker}.log"))  # noqa: E731
    until(lambda: "line 1\n" in logged(3), "the first line of worker3")
    (node,) = cli.alive()
    cli.admin("POST", f"nodes/{node}:worker", {"worker": 3, "condition": "frozen"})
    until(
        lambda: any("waiting for worker3 (1 of 4): nothing came for" in line for line in errors), "the name of worker3"
    )
    until(lambda: all("line 30\n" in logged(worker) for worker in range(3)), "the logs of the others")
    assert "line 30\n" not in logged(3)
    cli.admin("POST", f"nodes/{node}:worker", {"worker": 3, "condition": "well"})
    assert run.wait(HANG_S) == 0, errors
    reader.join()
    assert any("worker3 answers again" in line for line in errors)
    assert len(list(cli.directory.glob("runs/*/worker*/artifacts/done"))) == 4
    assert logged(3).splitlines() == [f"line {number}" for number in range(1, 31)]


def _read(process: subprocess.Popen[str], into: list[str]) -> None:
    threading.Thread(target=process.stdout.read, daemon=True).start()
    into.extend(iter(process.stderr.readline, ""))
