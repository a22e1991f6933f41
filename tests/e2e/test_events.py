"""`run --json` and `submit --json`: stdout is a stream of events, one JSON object a line, and the last one is the result."""

import json
import signal
from typing import Any

from tests.cli_fixture import Said, Tpujob, press

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
        "event run name state exit_code directory started_at ended_at attempt_count restarts emulated job_s "
        "cost_usd metrics artifacts results workers report released release detached error"
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
