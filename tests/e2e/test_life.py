"""The whole life, with the real CLI, the real emulator and real SSH; and one run, changed by options."""

import json
import signal
from pathlib import Path

import pytest

from tests.cli_fixture import Cli, Tpujob, press

HELLO = """
name: hello
tpu: {zone: us-central1}
command: |
  echo "worker $TPUJOB_WORKER of $TPUJOB_WORKERS on $TPU_NAME"
  echo result > "$TPUJOB_ARTIFACTS/result.txt"
"""
SLEEP = """
name: sleep
tpu: {zone: us-central1-a}
command: |
  echo started
  sleep 300
"""


def test_a_run_takes_a_slice_of_its_own_and_ends_with_its_proven_absence(cli: Cli) -> None:
    done = cli("run", cli.job(HELLO))
    assert done.returncode == 0, done.stderr
    assert "worker0 | worker 0 of 1 on tpujob-" in done.stdout
    *_, result, spans, cost, released = done.stdout.splitlines()
    assert result.startswith("result   succeeded") and spans.startswith("spans ") and cost.startswith("cost     ")
    assert released.startswith("released tpujob-") and "absent (checked" in released
    assert "EMULATED" in done.stderr.splitlines()[0]
    assert cli.alive() == [] and cli.lived() == 1
    (artifact,) = cli.directory.glob("runs/hello-*/worker0/artifacts/result.txt")
    assert artifact.read_text() == "result\n"


def test_up_run_down_in_that_order_uses_one_slice(tpujob: Tpujob) -> None:
    up = tpujob("up", "alice", "--zone", "us-central1")
    assert up.returncode == 0, up.stderr
    again = tpujob("up", "alice")
    assert again.returncode == 0 and "already ready" in again.stderr
    run = tpujob("run", tpujob.job(HELLO))
    assert run.returncode == 0 and "alice is kept until" in run.stdout
    assert len(tpujob.alive()) == 1
    typo = tpujob("down", "alcie")
    assert typo.returncode == 64 and "alive: alice" in typo.stderr
    down = tpujob("down", "alice")
    assert down.returncode == 0 and "absent (checked" in down.stdout
    assert tpujob.alive() == [] and tpujob.lived() == 1
    again = tpujob("down", "alice")
    assert (again.returncode, again.stdout) == (0, "nothing to release named alice\n")


@pytest.mark.exhaustive
def test_two_ups_of_one_name_at_once_make_one_slice(tpujob: Tpujob) -> None:
    both = [tpujob.start("up", "alice", "--zone", "us-central1-a") for _ in range(2)]
    for process in both:
        _, err = process.communicate()
        assert process.returncode == 0, err
    assert len(tpujob.alive()) == 1 and tpujob.lived() == 1


def test_stop_start_and_ssh_on_a_held_slice(tpujob: Tpujob) -> None:
    assert tpujob("up", "alice", "--zone", "us-central1-a").returncode == 0
    assert tpujob("ssh", "alice", "--", "echo $((6 * 7)) > answer; cat answer").stdout == "42\n"
    assert tpujob("ssh", "alice", "--", "false").returncode == 1
    assert "STOPPED" in tpujob("stop", "alice").stdout
    assert json.loads(tpujob("status", "--json").stdout)["slices"][0]["state"] == "STOPPED"
    refused = tpujob("ssh", "alice")
    assert refused.returncode == 64 and "alice is STOPPED" in refused.stderr
    assert "hint: `tpujob up alice`" in refused.stderr
    assert "started" in tpujob("up", "alice").stderr
    assert tpujob("ssh", "alice", "--", "cat answer").stdout == "42\n"
    assert tpujob("down", "--all").returncode == 0
    assert tpujob.alive() == []


@pytest.mark.parametrize(("code", "passed_on"), [(7, 7), (75, 63), (2, 2)])  # 75 is ours; 2 is no mistake of the user's
def test_a_job_that_fails_passes_its_code_on_and_is_released(tpujob: Tpujob, code: int, passed_on: int) -> None:
    done = tpujob("run", tpujob.job(f"name: bad\ntpu: {{zone: us-central1-a}}\ncommand: 'echo broken; exit {code}'\n"))
    assert done.returncode == passed_on
    assert "worker0 | broken" in done.stdout and f"the job failed on worker0 with code {code}" in done.stderr
    assert tpujob.alive() == []
    assert tpujob.only_run()["state"] == "failed"


@pytest.mark.exhaustive
def test_logs_that_follow_end_once_nothing_reads_them(tpujob: Tpujob) -> None:
    job = "name: chatty\ntpu: {zone: us-central1-a}\ncommand: while true; do echo line; sleep 0.1; done\n"
    run = tpujob.start("run", tpujob.job(job))
    tpujob.until("line", run)
    logs = tpujob.start("logs", "--follow")
    assert logs.stdout is not None and "line" in logs.stdout.readline()
    logs.stdout.close()
    assert logs.wait() == 0 and run.poll() is None
    press(run, signal.SIGINT)
    assert run.wait() == 130 and tpujob.alive() == []


def test_one_worker_that_fails_stops_all(tpujob: Tpujob) -> None:
    command = "'test $TPUJOB_WORKER-of-$TPUJOB_WORKERS != 2-of-4 || exit 9; sleep 300'"
    job = f"tpu: {{accelerator: v5litepod-16, zone: us-central1-a}}\ncommand: {command}\n"
    done = tpujob("run", tpujob.job(job))
    assert done.returncode == 9 and "worker2" in done.stderr
    assert tpujob.alive() == [] and tpujob.admin("GET", "processes")["nodes"] == []


def test_a_kept_slice_serves_the_next_run(tpujob: Tpujob) -> None:
    assert tpujob("run", tpujob.job(HELLO), "--keep", "30m").returncode == 0
    assert len(tpujob.alive()) == 1
    ended = tpujob("cancel", "hello")
    assert ended.returncode == 0 and "`tpujob down hello` releases it" in ended.stderr
    assert tpujob("run", tpujob.job(HELLO)).returncode == 0
    assert tpujob.lived() == 1
    assert tpujob("down", "--all").returncode == 0


@pytest.mark.exhaustive
def test_down_without_a_name_and_stop_leave_the_slice_of_a_running_job_alone(tpujob: Tpujob) -> None:
    process = tpujob.start("run", tpujob.job(SLEEP))
    tpujob.until("started", process)
    (before,), shown, (after,) = (
        json.loads(tpujob(*words, "--json").stdout) for words in (("list",), ("show", "sleep"), ("list",))
    )
    assert 0 < before["cost_usd"] < shown["cost_usd"] < after["cost_usd"], "a run that goes on costs something"
    (alive,) = json.loads(tpujob("status", "--json").stdout)["slices"]
    assert after["cost_usd"] < alive["usd_so_far"] < after["cost_usd"] + 0.1 and alive["run"] == shown["run"]
    down = tpujob("down")
    assert down.returncode == 64 and "alive: sleep (tpujob-" in down.stderr
    stop = tpujob("stop", "sleep")
    assert stop.returncode == 64 and "in use" in stop.stderr
    assert len(tpujob.alive()) == 1
    assert "is the slice of a running job" in tpujob("up", "sleep").stderr
    assert tpujob("down", "sleep").returncode == 0
    out, err = process.communicate()
    assert process.returncode == 71 and "canceled by `tpujob down`" in err and "absent (checked" in out
    assert tpujob.alive() == []


@pytest.mark.exhaustive
def test_a_letter_that_stdout_cannot_show_silences_nothing(tpujob: Tpujob) -> None:
    job = tpujob.job("tpu: {zone: us-central1-a}\ncommand: 'echo grüß; echo after'\n")
    done = tpujob.as_process("run", job, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and "worker0 | gr\\xfc\\xdf" in done.stdout and "released " in done.stdout


@pytest.mark.exhaustive
def test_ctrl_c_while_an_old_teardown_is_finished_starts_nothing_new(tpujob: Tpujob) -> None:
    tpujob.as_process("run", tpujob.job(HELLO), env={"TPUJOB_CRASH_AT": "StartPhase:1:after"})
    tpujob.settings(unreachable=["us-central1-a"])  # no list is complete, so the old teardown finds no end
    process = tpujob.start("run", tpujob.job(HELLO))
    assert process.stderr is not None
    assert any(line.startswith("recover ") for line in process.stderr)
    press(process)
    assert any("already deleting" in line for line in process.stderr)
    tpujob.settings(unreachable=[])
    process.communicate()
    assert process.returncode == 130 and tpujob.lived() == 1


def test_options_that_an_existing_slice_does_not_have_are_not_passed_over(tpujob: Tpujob) -> None:
    assert tpujob("up", "alice", "--zone", "us-central1-a").returncode == 0
    dry = tpujob("up", "bob", "--zone", "us-central1-a", "--runtime", "v2-alpha-tpuv6e", "--dry-run")
    assert "warning  --runtime `v2-alpha-tpuv6e` is for v6e, and v5litepod-8 is v5e" in dry.stderr
    for words in (["--spot"], ["--runtime", "other"], ["--accelerator", "v5litepod-4"]):
        refused = tpujob("up", "alice", *words)
        assert refused.returncode == 64 and "alice exists with" in refused.stderr
    assert tpujob("down", "alice").returncode == 0


@pytest.mark.parametrize(("text", "why"), [
    ("command: ls\ncode: nowhere\n", "3: code: nowhere is not a directory"),
    ("command: python3 missing.py\n", "2: command: `missing.py` is not on the workers: the job ships no code"),
    ("command: [set -e, python3 train.py]\n", "2: command: `set -e` is no program: a list is the words of one program"),
    ("command: ls\nrequirements: [x @ file:///croot/x]\n", "3: requirements: `x @ file:///croot/x` names /croot/x, where"),
    ("command: ls\nenv:\n  BIG: '${env:BIG}'\n", "4: env.BIG: has 131,077 bytes, and Linux takes 131,072"),
])  # fmt: skip
def test_what_cannot_run_is_named_by_its_line_in_plan_and_run(tpujob: Tpujob, text: str, why: str) -> None:
    job = tpujob.job(f"tpu: {{zone: us-central1-a}}\n{text}")
    for command in ("plan", "run"):
        with tpujob.promising_nothing():
            done = tpujob(command, job, env={"BIG": "x" * (128 << 10)} if "BIG" in text else {})
        assert done.returncode == 64 and f"job.yaml:{why}" in done.stderr and "plan  " not in done.stderr
    assert not (tpujob.directory / "runs").exists() and not list((tpujob.directory / "state").glob("leases/*"))


@pytest.mark.parametrize("there", ["a file has this name", "it is a link that leads nowhere"])
def test_runs_that_is_no_directory_is_the_persons_mistake(tpujob: Tpujob, there: str) -> None:
    runs = tpujob.directory / "runs"
    runs.write_text("") if "file" in there else runs.symlink_to("gone")
    done = tpujob("run", tpujob.job(HELLO))
    assert done.returncode == 64 and f"{runs} cannot be created: {there}\n" in done.stderr


@pytest.mark.exhaustive
def test_logs_of_a_run_that_was_killed_end(tpujob: Tpujob) -> None:
    tpujob.as_process("run", tpujob.job(HELLO), env={"TPUJOB_CRASH_AT": "StartCollection:1:before"})
    assert "worker 0 of 1" in tpujob("logs", "hello", "-f").stdout


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


def test_results_that_the_run_left_which_took_the_slice_over_are_its_own(tpujob: Tpujob) -> None:
    job = tpujob.job(
        "name: fragile\ntpu: {zone: us-central1-a}\nkeep_on_failure: 5m\nenv: {CODE: 3}\n"
        "limits: {max_results: 1kB, linger: 5m}\n"
        'command: "[ $CODE = 0 ] || exit $CODE; head -c 5000 /dev/zero >$TPUJOB_ARTIFACTS/out"\ntpu_metrics: false\n'
    )
    assert tpujob("run", job).returncode == 3
    assert tpujob("run", job, "--env", "CODE=0").returncode == 65 and len(tpujob.alive()) == 1
    second, first = json.loads(tpujob("list", "--json").stdout)
    (row,) = json.loads(tpujob("status", "--json").stdout)["slices"]
    assert row["run"] == second["run"] and f"results of {second['run']} are on it" in row["remark"]
    assert tpujob("collect", first["run"]).returncode == 3 and len(tpujob.alive()) == 1, "nothing of it is left there"
    assert tpujob("collect", "fragile", "--max-results", "none").returncode == 0
    assert [file.stat().st_size for file in tpujob.directory.glob("runs/*/worker0/artifacts/out")] == [5000]
    assert tpujob.alive() == [] and tpujob.lived() == 1


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
