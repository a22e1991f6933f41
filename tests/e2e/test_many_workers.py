"""Eight workers and more: the log of worker 0, why a hidden one failed, and what is alike said once."""

import json
from pathlib import Path

from tests.cli_fixture import Tpujob

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
