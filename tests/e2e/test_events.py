"""What is shown of a run while it goes on: many workers, of which one fails or dies, and the events of `--json`."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cli_fixture import Cli, Said, Tpujob, press
from tests.waiting import HANG_S, until

JOB = """
name: hello
tpu: {zone: us-central1-a}
command: |
  echo "hello from $TPUJOB_WORKER"
  echo result > "$TPUJOB_ARTIFACTS/result.txt"
"""


def strict(text: str) -> Any:
    """The value of the JSON text; NaN and Infinity are not JSON."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def events(done: Said) -> list[dict[str, Any]]:
    """Every line of stdout."""
    return [strict(line) for line in done.stdout.splitlines()]


def log(rows: list[dict[str, Any]]) -> list[str]:
    return [line for row in rows if row["event"] == "log" for line in row["lines"]]


def test_a_run_streams_its_events_and_ends_with_its_result(tpujob: Tpujob) -> None:
    done = tpujob("run", tpujob.job(JOB), "--json")
    assert done.returncode == 0, done.stderr
    rows = events(done)
    assert log(rows) == ["hello from 0"]
    assert {"event": "notice", "stage": "ready"}.items() <= next(r for r in rows if r.get("stage") == "ready").items()
    result = rows[-1]
    assert [row["event"] for row in rows].count("result") == 1 and result["event"] == "result"
    assert {
        "name": "hello",
        "state": "succeeded",
        "exit_code": 0,
        "attempt_count": 1,
        "restarts": 0,
        "emulated": True,
        "released": True,
        "detached": False,
        "error": None,
    }.items() <= result.items()
    assert result["release"].startswith("tpujob-") and "absent (checked" in result["release"]
    assert 0 < result["job_s"] < result["ended_at"] - result["started_at"]
    assert result["cost_usd"] > 0 and result["ended_at"] > result["started_at"]
    assert result["artifacts"] == [f"{result['directory']}/worker0/artifacts/result.txt"]
    assert " ".join(result) == (
        "event run name state exit_code directory started_at ended_at attempt_count restarts emulated "
        "accelerator zone job_s cost_usd metrics artifacts results workers report released release detached error"
    )
    assert "hello from" not in done.stderr and f"tpujob show {result['run']}" in done.stderr
    assert done.stderr.startswith("cloud    EMULATED")


def test_a_job_that_fails_keeps_its_code_and_the_result_has_its_error(tpujob: Tpujob) -> None:
    done = tpujob("run", tpujob.job("tpu: {zone: us-central1-a}\ncommand: 'echo broken; exit 7'\n"), "--json")
    assert done.returncode == 7
    rows = events(done)
    assert log(rows) == ["broken"]
    failure = next(row for row in rows if row["event"] == "failure")
    assert failure["message"] == "the job failed on worker0 with code 7" and failure["exit_code"] == 7
    error = rows[-1]["error"]
    assert (rows[-1]["state"], rows[-1]["exit_code"], rows[-1]["released"]) == ("failed", 7, True)
    assert (error["type"], error["message"], error["exit_code"]) == ("PayloadFailed", failure["message"], 7)
    assert "the job failed on worker0 with code 7" in done.stderr


def test_ctrl_c_ends_the_stream_with_the_result_of_a_proven_release(tpujob: Tpujob) -> None:
    process = tpujob.start("run", tpujob.job("name: s\non: local\ncommand: 'echo started; sleep 300'\n"), "--json")
    tpujob.until("started", process)
    press(process, signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    result = json.loads(out.splitlines()[-1])
    assert (result["event"], result["state"], result["exit_code"]) == ("result", "interrupted", 130)
    assert result["error"]["type"] == "Interrupted" and result["released"]


def test_secrets_are_hidden_in_events_result_and_log(tpujob: Tpujob) -> None:
    text = "env: {KEY: '${env:THE_KEY}'}\nname: here\non: local\ncommand: |\n"
    save = """printf '{"note": "%s", "test_accuracy": 0.5, "loss": NaN}' "$KEY" > "$TPUJOB_ARTIFACTS/metrics.json"\n"""
    done = tpujob("run", tpujob.job(text + '  echo "my $KEY"\n  ' + save), "--json", env={"THE_KEY": "hunter2-hunter2"})
    assert done.returncode == 0, done.stderr
    rows = events(done)
    assert len(log(rows)) == 1 and rows[-1]["metrics"]["test_accuracy"] == 0.5
    assert rows[-1]["metrics"]["loss"] is strict(tpujob("show", "here", "--json").stdout)["metrics"]["loss"] is None
    (kept,) = tpujob.directory.glob("runs/*/logs/*")
    assert "hunter2" not in done.stdout + done.stderr + kept.read_text() and "my " in kept.read_text()


def test_a_mistake_is_the_only_event(tpujob: Tpujob) -> None:
    with tpujob.starting_no_emulator():
        done = tpujob("run", "missing.yaml", "--json")
    (failure,) = events(done)
    assert done.returncode == failure["exit_code"] == 64
    assert failure["event"] == "failure" and failure["message"] == "missing.yaml: there is no such file"
    assert done.stderr == "missing.yaml: there is no such file\n"


MEASURED = """
name: measured
tpu: {zone: us-central1-a}
metrics: {rate: '([0-9.]+) images/s'}
command: |
  m="$TPUJOB_ARTIFACTS/metrics.jsonl"
  echo '{"step": 10, "loss": 0.5}' > "$m"
  echo "rate: 671.5 images/s"
  until [ -e ../go ]; do sleep 0.02; done
  echo '{"step": 20, "loss": 0.25, "note": "x"}' >> "$m"
"""


def test_figures_of_any_job_are_streamed_while_it_runs_and_are_in_its_result_show_and_compare(tpujob: Tpujob) -> None:
    process = tpujob.start("run", tpujob.job(MEASURED), "--json")
    try:
        assert process.stdout is not None
        seen: list[dict[str, Any]] = []
        for line in process.stdout:
            row = json.loads(line)
            seen += [row] if row["event"] == "metrics" else []
            values = {name: value for each in seen for name, value in each["values"].items()}
            if values == {"loss": 0.5, "rate": 671.5}:
                break
        (attempt,) = tpujob.state_dir.glob("vms/*/*/home/tpujob/runs/*/main")
        (attempt.parent / "go").touch()
        out, said = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 0, said
    rows = [json.loads(line) for line in out.splitlines()]
    assert {"event": "metrics", "worker": 0, "step": 20, "values": {"loss": 0.25}, "diverged": {}} in rows
    assert rows[-1]["metrics"] == {"rate": 671.5, "loss": 0.25}
    shown = tpujob("show", "measured").stdout
    assert "metric   loss: 0.25 at step 20 · best 0.25 at step 20 · 2 values" in shown
    assert "metric   rate: 671.5" in shown and "figure   whole job (s): " in shown
    table = json.loads(tpujob("compare", "measured", "--json").stdout)["runs"][0]
    assert (table["metrics"]["loss"]["last"], table["restarts"], table["exit_code"]) == (0.25, 0, 0)


MANY = """
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
    done = tpujob("run", tpujob.job(MANY.format(command=ONE_FAILS % json.dumps(str(tmp_path / "begun")))))
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
            "run", tpujob.job(MANY.format(command="echo ${params.lr}" if more else "true") + more), "--logs", "8"
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
LONGEST = """
import os, resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
sys.exit(code)
"""


@pytest.mark.exhaustive
def test_a_run_on_256_workers_brings_all_logs_and_results_with_little_memory(cli: Cli) -> None:
    before = (sys.executable, "-IS", "-c", LONGEST)
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
