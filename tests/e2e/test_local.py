"""`on: local`: the same command, files, lines and codes, on this machine, and no cloud anywhere."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import psutil
import pytest

from tests.cli_fixture import Tpujob, press
from tests.waiting import has_ended, until

SLEEPER = """
name: sleeper
on: local
command: |
  sleep 300 &
  echo $! > child.pid
  trap 'echo saved > "$TPUJOB_ARTIFACTS/saved.txt"; exit 5' TERM
  cp child.pid "$TPUJOB_ARTIFACTS/"
  echo started
  while true; do sleep 0.1; done  # what it started may hear of the signal before the shell does
"""


def job(tpujob: Tpujob, command: str, more: str = "") -> str:
    return tpujob.job(
        f"name: here\non: local\n{more}command: |\n" + "".join(f"  {line}\n" for line in command.splitlines())
    )


def artifacts(tpujob: Tpujob) -> Path:
    (found,) = tpujob.directory.glob("runs/*/worker0/artifacts")
    return found


def test_a_local_run_leaves_what_a_run_leaves_and_starts_no_cloud(tpujob: Tpujob) -> None:
    (tpujob.directory / "code").mkdir()
    (tpujob.directory / "code" / "say.py").write_text(
        "import os; print('from', os.environ['WHO'], os.environ['TPUJOB_WORKERS'])"
    )
    text = (
        "python3 say.py\nmkdir out; echo 7 > out/x.json\ntouch $TPUJOB_ARTIFACTS/a.txt\nls > $TPUJOB_ARTIFACTS/ls.txt"
    )
    more = "code: ./code\nenv: {WHO: me}\nsetup: echo ready\nartifacts: [out/*.json]\n"
    with tpujob.starting_no_emulator():
        done = tpujob("run", job(tpujob, text, more))
    assert done.returncode == 0, done.stderr
    first, second, result, spans, cost = done.stdout.splitlines()
    assert (first, second) == ("worker0 | ready", "worker0 | from me 1")
    assert (
        result.startswith("result   succeeded · 2 artifacts") and "work/, 2 bytes, all hashes match, in runs/" in result
    )
    assert "setup" in spans and cost == "cost     none (local)"
    assert done.stderr.startswith("cloud    none: ")
    shown = tpujob.only_run()
    assert (shown["cloud"], shown["lease"], shown["state"], shown["exit_code"]) == ("local", None, "succeeded", 0)
    assert {file["path"] for file in shown["files"]} == {
        *(
            "logs/worker0.log",
            "report.html",
            "trace.json",
            "worker0/artifacts/a.txt",
            "worker0/artifacts/ls.txt",
            "/".join(("worker0", "work", "out", "x.json")),
        )
    }
    assert list((tpujob.directory / "state" / "local").iterdir()) == [], "the place where it worked is gone"
    assert tpujob("logs", "here").stdout.splitlines() == ["worker0 | ready", "worker0 | from me 1"]


def test_the_exit_code_is_the_jobs_and_its_artifacts_are_kept(tpujob: Tpujob) -> None:
    done = tpujob("run", job(tpujob, "echo 1 > $TPUJOB_ARTIFACTS/a.txt; exit 7"))
    assert done.returncode == 7 and "the job failed on worker0 with code 7" in done.stderr
    assert (artifacts(tpujob) / "a.txt").exists()
    assert (tpujob.only_run()["state"], tpujob.only_run()["exit_code"]) == ("failed", 7)


def test_a_setup_that_fails_is_called_so_and_the_job_does_not_start(tpujob: Tpujob) -> None:
    done = tpujob("run", job(tpujob, "echo never", "setup: [echo one, exit 3, echo two]\n"))
    assert done.returncode == 3 and "the setup failed on worker0 with code 3" in done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("worker0")] == ["worker0 | one"]


def test_a_manifest_that_is_not_kept_is_damage(tpujob: Tpujob) -> None:
    manifest = '{"schema": 1, "files": [{"path": "gone.bin", "size_bytes": 1, "sha256": "00"}]}'
    done = tpujob("run", job(tpujob, f"echo '{manifest}' > $TPUJOB_ARTIFACTS/manifest.json"))
    assert done.returncode == 65 and "promises it, but it did not come" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)])
def test_a_signal_stops_everything_the_job_started_and_saves_what_it_saved(tpujob: Tpujob, number: int) -> None:
    process = tpujob.start("run", tpujob.job(SLEEPER))
    tpujob.until("started", process)
    press(process, number)
    _, err = process.communicate()
    assert process.returncode == 128 + number, err
    assert (artifacts(tpujob) / "saved.txt").read_text() == "saved\n"
    assert is_gone(artifacts(tpujob))
    assert tpujob.only_run()["state"] == "interrupted"


@pytest.mark.exhaustive
def test_cancel_from_another_terminal_stops_it_and_saves_what_it_saved(tpujob: Tpujob) -> None:
    process = tpujob.start("run", tpujob.job(SLEEPER))
    tpujob.until("started", process)
    done = tpujob("cancel", "sleeper")
    assert done.returncode == 0 and "canceled; none of its processes runs any more" in done.stdout, done.stderr
    _, err = process.communicate()
    assert process.returncode == 71 and "canceled by `tpujob cancel`" in err
    assert (artifacts(tpujob) / "saved.txt").read_text() == "saved\n" and is_gone(artifacts(tpujob))
    assert tpujob.only_run()["state"] == "canceled"
    assert list((tpujob.directory / "state" / "local").iterdir()) == []
    assert "has ended already" in tpujob("cancel", "sleeper").stdout


@pytest.mark.exhaustive
def test_a_second_ctrl_c_gives_the_job_its_grace_all_the_same(tpujob: Tpujob) -> None:
    stopping, go = tpujob.directory / "stopping", tpujob.directory / "go"
    waits = f"touch {stopping}; until [ -e {go} ]; do sleep 0.05; done; echo saved >"
    process = tpujob.start("run", tpujob.job(SLEEPER.replace("echo saved >", waits)))
    tpujob.until("started", process)
    press(process)
    until(stopping.exists, "the first signal")
    press(process)
    assert process.stderr is not None
    assert any("killed after 10 s" in line for line in process.stderr)
    go.touch()
    process.communicate()
    assert process.returncode == 130
    assert (artifacts(tpujob) / "saved.txt").exists() and is_gone(artifacts(tpujob))


def test_a_killed_command_takes_its_job_along_and_the_next_one_says_so(tpujob: Tpujob) -> None:
    process = tpujob.start("run", tpujob.job(SLEEPER))
    tpujob.until("started", process)
    (pid_file,) = (tpujob.directory / "state" / "local").glob("*/artifacts/child.pid")
    child = int(pid_file.read_text())
    process.kill()
    process.communicate()
    until(lambda: has_ended(child), "the end of the job")
    shown = tpujob.only_run()
    assert (shown["state"], shown["detail"]) == ("interrupted", "the process that ran it was killed")
    until(lambda: not workers_of(tpujob), "the end of its worker")
    assert tpujob("run", job(tpujob, "true")).returncode == 0
    assert list((tpujob.directory / "state" / "local").iterdir()) == [], "and clears up what it left"


def workers_of(tpujob: Tpujob) -> list[psutil.Process]:
    return tpujob.local("orchestrator.vm")


def is_gone(directory: Path) -> bool:
    return has_ended(int((directory / "child.pid").read_text()))


@pytest.mark.parametrize("words", [["--detach"], ["--keep", "10m"], ["--cloud", "emulated"], ["--project", "acme-123"]])
def test_what_only_a_cloud_can_do_is_refused(tpujob: Tpujob, words: list[str]) -> None:
    done = tpujob("run", job(tpujob, "echo never"), *words)
    assert done.returncode == 64 and "uses no cloud" in done.stderr and "never" not in done.stdout


def test_a_tpu_section_is_said_to_mean_nothing_and_a_bucket_is_refused(tpujob: Tpujob) -> None:
    done = tpujob("run", job(tpujob, "true", "tpu: {zone: us-central1-a}\n"))
    assert done.returncode == 0 and "job.yaml:3: tpu: has no effect with `on: local`" in done.stderr
    done = tpujob("run", job(tpujob, "true", "bucket: gs://some-bucket/x\n"))
    assert done.returncode == 64 and "job.yaml:3: bucket: has no use with `on: local`" in done.stderr


def test_the_plan_of_a_local_job_asks_no_cloud_for_anything(tpujob: Tpujob) -> None:
    done = tpujob("plan", job(tpujob, "true"))
    assert (done.returncode, done.stdout) == (0, "")
    assert "plan     this machine: no cloud is asked for anything\n" in done.stderr
    shape = json.loads(tpujob("plan", job(tpujob, "true"), "--json").stdout)
    assert (shape["cloud"], shape["candidates"], shape["request"], shape["worst_case_usd"]) == ("local", [], None, 0.0)


def test_a_secret_of_the_person_is_in_no_log_of_a_local_job(tpujob: Tpujob) -> None:
    done = tpujob(
        "run", job(tpujob, "echo my $KEY", "env: {KEY: '${env:THE_KEY}'}\n"), env={"THE_KEY": "hunter2-hunter2"}
    )
    assert done.returncode == 0 and "hunter2" not in done.stdout + done.stderr
    (log,) = tpujob.directory.glob("runs/*/logs/*")
    assert "my " in log.read_text() and "hunter2" not in log.read_text()
