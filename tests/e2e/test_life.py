"""The whole life, with the real CLI, the real emulator and real SSH."""

import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.emulator import control
from tests.cli_fixture import Cli, press, wait_for
from tests.disk import holding

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
    assert result.startswith("result   succeeded") and spans.startswith("spans ") and cost.startswith("cost     $0.00")
    assert released.startswith("released tpujob-") and "absent (checked" in released
    assert "EMULATED" in done.stderr.splitlines()[0]
    assert cli.alive() == [] and cli.lived() == 1
    (artifact,) = cli.directory.glob("runs/hello-*/worker0/artifacts/result.txt")
    assert artifact.read_text() == "result\n"


def test_up_run_down_in_that_order_uses_one_slice(cli: Cli) -> None:
    up = cli("up", "alice", "--zone", "us-central1")
    assert up.returncode == 0, up.stderr
    again = cli("up", "alice")
    assert again.returncode == 0 and "already ready" in again.stderr
    run = cli("run", cli.job(HELLO))
    assert run.returncode == 0 and "alice is kept until" in run.stdout
    assert len(cli.alive()) == 1
    down = cli("down", "alice")
    assert down.returncode == 0 and "absent (checked" in down.stdout
    assert cli.alive() == [] and cli.lived() == 1
    assert cli("down", "alice").stdout == "nothing to release named alice\n"


def test_up_says_when_the_slice_really_ends_whatever_ttl_is_asked_of_one_that_exists(cli: Cli) -> None:
    first, again = (cli("up", "alice", "--zone", "us-central1-a", "--ttl", ttl).stderr for ttl in ("6m", "5h"))
    ends = [line.partition("`tpujob down alice`, ")[2] for text in (first, again) for line in text.splitlines()[-1:]]
    assert ends[0].endswith("Z at the latest") and ends[1] == ends[0]
    assert cli("down", "alice").returncode == 0


def test_a_run_on_a_slice_that_is_taken_away_says_what_became_of_the_slice(cli: Cli) -> None:
    assert cli("up", "alice", "--zone", "us-central1-a").returncode == 0
    process = cli.start("run", cli.job(SLEEP))
    cli.until("started", process)
    assert cli("down", "alice").returncode == 0
    out, _ = process.communicate(timeout=40)
    assert process.returncode == 71 and "nothing was created" not in out
    assert re.search(r"released .*tpujob-\S+ (absent \(checked|is being deleted)", out)


def test_two_ups_of_one_name_at_once_make_one_slice(cli: Cli) -> None:
    both = [cli.start("up", "alice", "--zone", "us-central1-a") for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert len(cli.alive()) == 1 and cli.lived() == 1


def test_stop_start_and_ssh_on_a_held_slice(cli: Cli) -> None:
    assert cli("up", "alice", "--zone", "us-central1-a").returncode == 0
    assert cli("ssh", "alice", "--", "echo $((6 * 7)) > answer; cat answer").stdout == "42\n"
    assert cli("ssh", "alice", "--", "false").returncode == 1
    assert "STOPPED" in cli("stop", "alice").stdout
    assert json.loads(cli("status", "--json").stdout)["slices"][0]["state"] == "STOPPED"
    assert "started" in cli("up", "alice").stderr
    assert cli("ssh", "alice", "--", "cat answer").stdout == "42\n"
    assert cli("down", "--all").returncode == 0
    assert cli.alive() == []


def test_four_workers_run_the_same_command_and_each_brings_its_artifacts(cli: Cli) -> None:
    job = cli.job(HELLO.replace("tpu: {zone: us-central1}", "tpu: {accelerator: v5litepod-16, zone: us-central1-a}"))
    done = cli("run", job)
    assert done.returncode == 0, done.stderr
    for worker in range(4):
        assert f"worker{worker} | worker {worker} of 4 on tpujob-" in done.stdout
    assert len(list(cli.directory.glob("runs/*/worker3/artifacts/result.txt"))) == 1


def test_when_a_zone_is_full_the_next_one_is_asked_after_the_first_is_proven_empty(cli: Cli) -> None:
    cli.settings(no_capacity=["us-east1-b/v5litepod-8"])
    done = cli("run", cli.job(HELLO.replace("us-central1", "us-east1")))
    assert done.returncode == 0, done.stderr
    assert "us-east1-b   no capacity (released: absent) → next" in done.stderr
    assert "ready    v5litepod-8 us-east1-c" in done.stderr
    assert cli.alive() == []


def test_when_every_zone_is_full_nothing_is_left_and_the_code_says_so(cli: Cli) -> None:
    cli.settings(no_capacity=["*/*"])
    done = cli("up", "--zone", "us-east1")
    assert done.returncode == 69 and "no capacity in any zone" in done.stderr and "hint: " in done.stderr
    assert cli.alive() == []


def test_a_job_that_fails_passes_its_code_on_and_is_released(cli: Cli) -> None:
    done = cli("run", cli.job("name: bad\ntpu: {zone: us-central1-a}\ncommand: 'echo broken; exit 7'\n"))
    assert done.returncode == 7
    assert "worker0 | broken" in done.stdout and "the job failed on worker0 with code 7" in done.stderr
    assert cli.alive() == []
    assert cli.only_run()["state"] == "failed"


def test_a_code_that_means_something_of_ours_is_passed_on_as_63(cli: Cli) -> None:
    assert cli("run", cli.job("tpu: {zone: us-central1-a}\ncommand: exit 75\n")).returncode == 63


def test_one_worker_that_fails_stops_all(cli: Cli) -> None:
    job = "tpu: {accelerator: v5litepod-16, zone: us-central1-a}\ncommand: 'test $TPUJOB_WORKER != 2 || exit 9; sleep 300'\n"
    done = cli("run", cli.job(job))
    assert done.returncode == 9 and "worker2" in done.stderr
    assert cli.alive() == [] and cli.admin("GET", "processes")["nodes"] == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_while_the_job_runs_releases_the_slice(cli: Cli, number: int, code: int) -> None:
    process = cli.start("run", cli.job(SLEEP))
    cli.until("started", process)
    press(process, number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert "absent (checked" in out and "interrupted" in err
    assert cli.alive() == [] and cli.only_run()["state"] == "interrupted"


def test_ctrl_c_while_the_slice_is_created_releases_it(cli: Cli) -> None:
    cli.settings(provision_s=60)
    process = cli.start("up", "--zone", "us-central1-a")
    wait_for(cli.alive)
    press(process)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert cli.alive() == []


def test_leaving_a_teardown_by_force_is_said_and_the_next_command_finishes_it(cli: Cli) -> None:
    assert cli("up", "alice", "--zone", "us-central1-a").returncode == 0
    cli.settings(unreachable=["us-central1-a"])  # no list is complete, so nothing can be proven
    process = cli.start("down", "alice")
    wait_for(lambda: not cli.alive())
    assert process.stderr is not None
    for said in ("2 more to leave", "1 more to leave"):
        press(process)
        assert any(said in line for line in process.stderr)
    press(process)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 75
    assert "!! NOT VERIFIED GONE: tpujob-" in err
    cli.settings(unreachable=[])
    after = cli("list")
    assert after.returncode == 0 and "absent (checked" in after.stderr


def test_an_artifact_that_is_refused_costs_65_and_none_of_the_others(cli: Cli) -> None:
    command = 'ln -s /etc/passwd "$TPUJOB_ARTIFACTS/link"; echo fine > "$TPUJOB_ARTIFACTS/fine.txt"'
    done = cli("run", cli.job(f"tpu: {{zone: us-central1-a}}\ncommand: '{command}'\n"))
    assert done.returncode == 65, done.stderr
    assert [path.name for path in cli.directory.glob("runs/*/worker0/artifacts/*")] == ["fine.txt"]
    assert cli.alive() == []


def test_code_and_environment_travel_and_secrets_stay_off_the_disk(cli: Cli) -> None:
    (cli.directory / "code").mkdir()
    (cli.directory / "code" / "main.py").write_text(
        "import os; print('the secret has', len(os.environ['TOKEN']), 'letters')"
    )
    job = "tpu: {zone: us-central1-a}\ncode: code\nenv: {TOKEN: '${env:MY_TOKEN}'}\ncommand: python3 main.py\n"
    done = cli("run", cli.job(job), env={"MY_TOKEN": "s3cr3t-s3cr3t"})
    assert "the secret has 13 letters" in done.stdout, done.stderr
    assert holding(cli.directory, b"s3cr3t-s3cr3t") == []


def test_a_kept_slice_serves_the_next_run(cli: Cli) -> None:
    assert cli("run", cli.job(HELLO), "--keep", "30m").returncode == 0
    assert len(cli.alive()) == 1
    ended = cli("cancel", "hello")
    assert ended.returncode == 0 and "`tpujob down hello` releases it" in ended.stderr
    assert cli("run", cli.job(HELLO)).returncode == 0
    assert cli.lived() == 1
    assert cli("down", "--all").returncode == 0


def test_a_mistake_in_the_file_is_one_line_and_creates_nothing(cli: Cli) -> None:
    done = cli("run", cli.job("name: x\ntpu:\n  acclerator: v5litepod-8\ncommand: ls\n"))
    assert done.returncode == 64
    assert done.stderr.startswith("job.yaml:3: tpu.acclerator: unknown key; did you mean `accelerator`?")
    assert "Traceback" not in done.stderr and not (cli.directory / "state" / "emulator").exists()


def test_state_and_keys_are_private(cli: Cli) -> None:
    assert cli("up", "--zone", "us-central1-a").returncode == 0
    state = cli.directory / "state"
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    (key,) = state.glob("leases/*/id_ed25519")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert cli("down").returncode == 0
    assert list(state.glob("leases/*")) == []


def test_without_a_home_for_state_nothing_is_created(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    done = cli("up", env={"TPUJOB_STATE_DIR": str(tmp_path / "link")})
    assert done.returncode == 64 and "hint: " in done.stderr


def test_down_without_a_name_leaves_the_slice_of_a_running_job_alone(cli: Cli) -> None:
    process = cli.start("run", cli.job(SLEEP))
    cli.until("started", process)
    down = cli("down")
    assert down.returncode == 0 and "nothing to release; sleep runs on tpujob-" in down.stdout
    assert len(cli.alive()) == 1
    assert "is the slice of a running job" in cli("up", "sleep").stderr
    assert cli("down", "sleep").returncode == 0
    out, err = process.communicate(timeout=40)
    assert process.returncode == 71 and "another tpujob command" in err and "absent (checked" in out
    assert cli.alive() == []


def test_a_name_that_never_was_is_a_mistake_but_one_that_is_gone_is_not(cli: Cli) -> None:
    assert cli("up", "alice", "--zone", "us-central1-a").returncode == 0
    typo = cli("down", "alcie")
    assert typo.returncode == 64 and "alive: alice" in typo.stderr
    assert cli("down", "alice").returncode == 0
    assert cli("down", "alice").returncode == 0


def test_a_run_survives_a_restart_of_the_emulator_and_still_releases_on_ctrl_c(cli: Cli) -> None:
    process = cli.start("run", cli.job(SLEEP))
    cli.until("started", process)
    endpoint = control.running(cli.emulator_directory)
    assert endpoint is not None
    os.kill(endpoint.pid, signal.SIGKILL)
    wait_for(lambda: control.running(cli.emulator_directory) is None)
    press(process)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "absent (checked" in out and cli.alive() == []


def test_a_job_may_end_with_2_which_is_not_a_mistake_on_the_command_line(cli: Cli) -> None:
    assert cli("run", cli.job("tpu: {zone: us-central1-a}\ncommand: exit 2\n")).returncode == 2


def test_a_letter_that_stdout_cannot_show_silences_nothing(cli: Cli) -> None:
    job = cli.job("tpu: {zone: us-central1-a}\ncommand: 'echo grüß; echo after'\n")
    done = cli("run", job, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and "worker0 | gr\\xfc\\xdf" in done.stdout and "released " in done.stdout


@pytest.mark.parametrize("stream", [">&-", "2>&-", ">/dev/full", "2>/dev/full"])
def test_streams_that_cannot_be_written_end_no_run(cli: Cli, stream: str) -> None:
    if "full" in stream and not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    words = f"{shlex.quote(sys.executable)} -m orchestrator.cli run {cli.job(HELLO)} {stream}"
    done = subprocess.run(  # noqa: PLW1510
        ["bash", "-c", words],
        cwd=cli.directory,
        env={**os.environ, **cli.env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert cli.alive() == [] and cli.only_run()["state"] == "succeeded"


def test_ctrl_c_while_an_old_teardown_is_finished_starts_nothing_new(cli: Cli) -> None:
    cli("run", cli.job(HELLO), env={"TPUJOB_CRASH_AT": "StartPhase:1:after"})
    cli.settings(delete_s=2)
    process = cli.start("run", cli.job(HELLO))
    assert process.stderr is not None
    assert any(line.startswith("recover ") for line in process.stderr)
    press(process)
    process.communicate(timeout=30)
    assert process.returncode == 130 and cli.lived() == 1


def test_what_is_in_use_is_not_stopped(cli: Cli) -> None:
    process = cli.start("run", cli.job(SLEEP))
    cli.until("started", process)
    stop = cli("stop", "sleep")
    assert stop.returncode == 64 and "in use" in stop.stderr
    press(process)
    process.communicate(timeout=30)


def test_ssh_to_a_stopped_slice_says_what_to_do(cli: Cli) -> None:
    assert cli("up", "alice", "--zone", "us-central1-a").returncode == 0
    assert cli("stop", "alice").returncode == 0
    refused = cli("ssh", "alice")
    assert (
        refused.returncode == 64
        and "alice is STOPPED" in refused.stderr
        and "hint: `tpujob up alice`" in refused.stderr
    )
    assert cli("down", "alice").returncode == 0


def test_options_that_an_existing_slice_does_not_have_are_not_passed_over(cli: Cli) -> None:
    assert cli("up", "alice", "--zone", "us-central1-a").returncode == 0
    for words in (["--spot"], ["--runtime", "other"], ["--accelerator", "v5litepod-4"]):
        refused = cli("up", "alice", *words)
        assert refused.returncode == 64 and "alice exists with" in refused.stderr
    assert cli("down", "alice").returncode == 0


def test_a_missing_code_directory_is_named_by_its_line_in_plan_and_run(cli: Cli) -> None:
    job = cli.job("tpu: {zone: us-central1-a}\ncommand: ls\ncode: nowhere\n")
    for command in ("plan", "run"):
        done = cli(command, job)
        assert done.returncode == 64 and done.stderr.startswith("job.yaml:3: code: nowhere is not a directory")
    assert not (cli.directory / "runs").exists() and not list((cli.directory / "state").glob("leases/*"))


def test_runs_that_is_a_file_is_the_persons_mistake(cli: Cli) -> None:
    (cli.directory / "runs").write_text("")
    done = cli("run", cli.job(HELLO))
    assert done.returncode == 64 and "cannot be made" in done.stderr


def test_logs_of_a_run_that_was_killed_end(cli: Cli) -> None:
    cli("run", cli.job(HELLO), env={"TPUJOB_CRASH_AT": "Collect:1:before"})
    assert "worker 0 of 1" in cli("logs", "hello", "-f").stdout
