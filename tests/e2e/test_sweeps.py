"""Sweeps through the real CLI, on the emulated cloud and on this machine."""

import json
import signal
import subprocess
from typing import Any

import pytest

from tests.cli_fixture import Tpujob, press

# Six quick commands; whether the last one fails is in a variable, which is no part of the job.
SWEEP = """
name: lr-sweep
parallel: 2
matrix:
  lr: [1e-4, 3e-4, 1e-3]
  seed: [1, 2]
tpu: {zone: us-central1-a}
command: echo "trains with ${params.lr} ${params.seed}"; test ${params.lr}-${params.seed} != 1e-3-2 || exit 9
"""


def runs(tpujob: Tpujob) -> list[dict[str, Any]]:
    return json.loads(tpujob("list", "--json").stdout)


def last_event(text: str) -> dict[str, Any]:
    return json.loads(text.splitlines()[-1])


def test_six_jobs_run_over_two_slices_and_only_what_failed_is_run_again(tpujob: Tpujob) -> None:
    done = tpujob("run", tpujob.job(SWEEP, "s.yaml"), "--json")
    assert done.returncode == 9, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    sweep = events[-1]
    assert (sweep["event"], sweep["name"], sweep["exit_code"]) == ("sweep", "lr-sweep", 9)
    rows = [(row["name"], row["variant"], row["params"], row["state"]) for row in sweep["variants"]]
    assert rows[0] == ("lr-sweep-1", "lr=1e-4 seed=1", {"lr": 1e-4, "seed": 1}, "succeeded")
    assert rows[5] == ("lr-sweep-6", "lr=1e-3 seed=2", {"lr": 1e-3, "seed": 2}, "failed")
    assert [row[3] for row in rows] == ["succeeded"] * 5 + ["failed"]
    lines = [event["lines"] for event in events if event["event"] == "log" and event["variant"] == "lr=3e-4 seed=1"]
    assert lines == [["trains with 3e-4 1"]]
    assert sorted(event["variant"] for event in events if event["event"] == "result") == sorted(row[1] for row in rows)
    assert [event["event"] for event in events].count("sweep") == 1 and "variant" not in sweep
    assert (tpujob.lived(), tpujob.alive()) == (2, []), "two slices, each for one job after the other"
    assert {lease.state for lease in tpujob.leases()} == {"gone"}

    again = tpujob("run", "s.yaml")
    assert again.returncode == 9 and "5 of them done before" in again.stderr
    assert tpujob.lived() == 3 and len(runs(tpujob)) == 7, "only what had failed"
    assert all(f"lr-sweep-{number}" in json.dumps(runs(tpujob)) for number in range(1, 7))

    figures = json.loads(tpujob("compare", "lr-sweep", "--json").stdout)["runs"]
    assert [(row["title"], row["params"]) for row in figures] == [(row[0], row[2]) for row in rows]
    table = [line.split("\t") for line in again.stdout.splitlines()]
    assert table[0][:3] == ["", "lr", "seed"] and table[1][:3] == ["lr-sweep-1", "1e-4", "1"], "the table is on stdout"
    assert table[6][:3] == ["lr-sweep-6", "1e-3", "2"]

    over_seeds = [line.split("\t") for line in tpujob("compare", "lr-sweep", "--over", "seed").stdout.splitlines()]
    assert over_seeds[:2] == [["lr", "1e-4", "3e-4", "1e-3"], ["runs", "2", "2", "1 of 2"]]
    over_all = json.loads(tpujob("compare", "lr-sweep", "--over", "seed,lr", "--json").stdout)["groups"]
    assert [(row["params"], row["runs"], row["left_out"], row["job_s"]["count"]) for row in over_all] == [({}, 5, 1, 5)]
    mistaken = tpujob("compare", "lr-sweep", "--over", "sed")
    assert (mistaken.returncode, "did you mean `seed`?" in mistaken.stderr) == (64, True)


SLOW = SWEEP.replace("command: ", "command: test ${params.lr} = 1e-4 || { echo waits; sleep 300; }; ")


def two_wait(tpujob: Tpujob) -> subprocess.Popen[str]:
    """Start the sweep, and return its command once two of its jobs wait."""
    process = tpujob.start("run", tpujob.job(SLOW, "s.yaml"))
    assert process.stderr is not None  # stdout is for the table
    waiting = 0
    while waiting < 2:
        waiting += "worker0 | waits" in next(process.stderr)
    return process


def test_ctrl_c_releases_every_slice_and_the_same_command_goes_on(tpujob: Tpujob) -> None:
    process = two_wait(tpujob)
    status = json.loads(tpujob("status", "--json").stdout)
    (sweep,) = status["sweeps"]
    assert [row["state"] for row in sweep["variants"]] == ["succeeded"] * 2 + ["running"] * 2 + ["queued"] * 2
    assert [row["run"] is None for row in sweep["variants"]] == [False] * 4 + [True] * 2
    shown = tpujob("status").stdout
    assert "sweep lr-sweep: 2 of 6 done, 2 running, 2 queued" in shown and "lr-sweep-6\tlr=1e-3 seed=2\tqueued" in shown
    assert "lr-sweep-6\tqueued" in tpujob("list").stdout
    assert tpujob("run", "s.yaml").returncode == 64, "it is being run already"
    ended = tpujob("cancel", "lr-sweep-1")
    assert "has ended already: succeeded" in ended.stdout and ended.stderr == "", "its slice is that of another run now"
    assert tpujob("extend", "lr-sweep-1", "--by", "5m").returncode == 64
    press(process, signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert err.count("SIGINT") == 1 and "SIGINT: stopping 2 runs and deleting every slice" in err
    assert tpujob.alive() == [] and {lease.state for lease in tpujob.leases()} == {"gone"}
    assert err.count(" absent (checked ") == 2
    assert json.loads(tpujob("status", "--json").stdout)["sweeps"] == []

    tpujob.job(SLOW.replace("sleep 300", "sleep 0"), "other.yaml")
    tpujob.job(SLOW, "s.yaml")
    done = tpujob("run", "s.yaml", "--set", "matrix.lr=[1e-4]")
    assert done.returncode == 0 and "2 variants, 2 of them done before" in done.stderr
    done = tpujob("run", "other.yaml")
    assert done.returncode == 9 and "done before" not in done.stderr, "another command is another job"


@pytest.mark.ci
def test_a_sweep_is_canceled_from_another_terminal(tpujob: Tpujob) -> None:
    process = two_wait(tpujob)
    done = tpujob("cancel", "lr-sweep")
    assert done.returncode == 0, done.text
    (line,) = done.stdout.splitlines()
    assert line.startswith("lr-sweep canceled: 2 of 6 done, 2 canceled, 2 not started; ")
    assert line.count(" absent (checked ") == 2
    assert json.loads(tpujob("status", "--json").stdout)["sweeps"] == [], "it has ended, and can be run again"
    _, err = process.communicate()
    assert process.returncode == 71 and "stopped; 4 of 6 are left" in err, err
    assert tpujob.alive() == [] and {lease.state for lease in tpujob.leases()} == {"gone"}
    assert tpujob.lived() == 2 and len(runs(tpujob)) == 4, "nothing began after the end"
    again = tpujob("cancel", "lr-sweep")
    assert again.returncode == 0 and again.stdout.startswith("lr-sweep has ended already: 2 of 6 done, 2 canceled"), (
        again
    )


@pytest.mark.ci
def test_the_slice_of_a_killed_sweep_is_proven_gone_by_its_name(tpujob: Tpujob) -> None:
    job = tpujob.job(SLOW.replace("parallel: 2", "parallel: 1"), "s.yaml")
    process = tpujob.start("run", job, env={"TPUJOB_GUARDIAN": "off"})
    assert process.stderr is not None
    assert any("worker0 | waits" in line for line in process.stderr)
    process.kill()
    process.communicate()
    assert len(tpujob.alive()) == 1
    done = tpujob("cancel", "lr-sweep", "--json")
    shape = json.loads(done.stdout)
    assert done.returncode == 0 and (shape["name"], shape["had_ended"], shape["released"]) == ("lr-sweep", True, True)
    assert [each["absent"] for each in shape["slices"]] == [True] and tpujob.alive() == []
    states = ["succeeded"] * 2 + ["interrupted"] + ["queued"] * 3
    assert [each["state"] for each in shape["variants"]] == states


LOCAL = """
name: mixed
on: local
variants:
  first: {command: "true"}
  second: {command: exit 3}
  third: {command: "echo third"}
"""


def test_jobs_on_this_machine_run_one_at_a_time_and_a_failure_is_its_own(tpujob: Tpujob) -> None:
    tpujob.job(LOCAL + "parallel: 3\n", "m.yaml")
    with tpujob.starting_no_emulator():
        done = tpujob("run", "m.yaml")
    assert done.returncode == 3 and "worker0 | third" in done.stderr
    assert "3 of 3 done (1 failed)" in done.stderr and "2 running" not in done.stderr
    found = {run["name"]: (run["state"], run["sweep"], run["variant"]) for run in runs(tpujob)}
    assert found["mixed-second"] == ("failed", "mixed", "second") and found["mixed-third"][0] == "succeeded"


@pytest.mark.parametrize(("words", "told"), [
    (("run", "s.yaml", "--keep", "30m"), "neither kept nor detached"),
    (("run", "s.yaml", "--watch-nodes"), "--watch-nodes is for one job"),
    (("run", "one.yaml", "--again"), "--again is for a run, or for a sweep"),
    (("run", "s.yaml", "--set", "matrix.lr=[]"), "--set matrix.lr=[]: is an empty list"),
    (("run", "late.yaml"), "late.yaml:4: code: nowhere is not a directory"),
    (("plan", "late.yaml"), "late.yaml:4: code: nowhere is not a directory"),
])  # fmt: skip
def test_what_cannot_be_run_is_told_before_the_first_job(tpujob: Tpujob, words: tuple[str, ...], told: str) -> None:
    tpujob.job(SWEEP, "s.yaml")
    tpujob.job("command: ls\n", "one.yaml")
    tpujob.job("command: ls\nvariants:\n  good: {on: local}\n  bad: {code: ./nowhere}\n", "late.yaml")
    with tpujob.promising_nothing():
        done = tpujob(*words)
    assert done.returncode == 64 and told in done.stderr
    assert runs(tpujob) == []


def test_plan_shows_the_jobs_and_what_all_of_them_cost_at_most(tpujob: Tpujob) -> None:
    tpujob.job(SWEEP + "limits: {max_duration: 1h}\n", "s.yaml")
    with tpujob.promising_nothing():
        done = tpujob("plan", "s.yaml")
        shape = json.loads(tpujob("plan", "s.yaml", "--json").stdout)
    assert done.returncode == 0 and "6 variants, over 2 slices, at most $57.60 emulated together" in done.stderr
    assert done.stdout.splitlines()[0].split("\t")[:3] == ["lr-sweep-1", "lr=1e-4 seed=1", "v5litepod-8"]
    assert shape["worst_case_usd"] == pytest.approx(57.6) and len(shape["variants"]) == 6


def test_without_a_file_a_list_of_values_makes_a_sweep(tpujob: Tpujob) -> None:
    source = tpujob.directory / "src"
    source.mkdir()
    (source / ".tpujobignore").write_text("runs/\n")
    tpujob.monkeypatch.chdir(source)
    words = ("--set", "on=local", "--set", "matrix.n=[1, 2]", "--name", "quick", "--", "echo", "n is ${params.n}")
    done = tpujob("run", *words)
    assert done.returncode == 0 and "worker0 | n is 2" in done.stderr, done.stderr
    assert last_event(tpujob("run", "--json", *words).stdout)["variants"][0]["done_before"] is True
