"""The same job by every way to its workers, and on this machine (`on: local`), where no cloud is asked."""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator.promise.obtain.login_key import create_key
from tests.cli_fixture import Tpujob, press
from tests.contract.hosts.fixture import through_bastion
from tests.waiting import has_ended, ran, until

JOB = """
name: way
tpu: {zone: us-central1-a, accelerator: v5litepod-16}
command: |
  seq 1 3000
  echo done > "$TPUJOB_ARTIFACTS/result"
"""
ENDLESS = """
name: endless
tpu: {zone: us-central1-a}
command: echo begun; sleep 1000
"""
EXPECTED = [str(number) for number in range(1, 3001)]
PROFILE = "/v1/users/developer@emulated.example/loginProfile"


@pytest.fixture
def bastion(tpujob: Tpujob, tmp_path: Path) -> str:
    """The ProxyCommand through the emulator's bastion."""
    if shutil.which("ssh") is None:
        pytest.skip("OpenSSH is not installed")
    return through_bastion(tpujob.emulator, create_key(tmp_path / "bastion"), tmp_path / "bastion", max_startups=10)


@pytest.fixture
def no_external(tpujob: Tpujob) -> None:
    tpujob.settings(forbid_external_ips=True)


def keys(tpujob: Tpujob) -> dict[str, object]:
    """Return the keys in the OS Login profile of the account."""
    found: dict[str, object] = tpujob.emulator.request("GET", PROFILE).get("sshPublicKeys", {})
    return found


def assert_ran(tpujob: Tpujob, directory: Path) -> None:
    """Everything arrived from all four workers, each byte once, and nothing is left."""
    for worker in range(4):
        log = (directory / "logs" / f"worker{worker}.log").read_text().splitlines()
        assert log == EXPECTED
        assert (directory / f"worker{worker}" / "artifacts" / "result").read_text() == "done\n"
    assert tpujob.alive() == [] and keys(tpujob) == {}


def run_directory(tpujob: Tpujob) -> Path:
    (found,) = (tpujob.directory / "runs").glob("way-*")
    return found


def test_a_policy_against_external_addresses_is_learned_once_and_the_job_goes_through_iap(
    tpujob: Tpujob, no_external: None
) -> None:
    done = tpujob("run", tpujob.job(JOB))
    assert done.returncode == 0, done.text
    told = "access   constraints/compute.vmExternalIpAccess forbids external addresses: the workers are reached through"
    assert f"{told} Identity-Aware Proxy\n" in done.stderr
    assert_ran(tpujob, run_directory(tpujob))
    assert tpujob.lived() == 1, "the refused create made nothing"
    planned = tpujob("plan", "job.yaml")
    assert "the workers are reached through Identity-Aware Proxy" in planned.text
    (candidate,) = json.loads(tpujob("plan", "job.yaml", "--json").stdout)["candidates"]
    assert not candidate["request"]["body"]["networkConfig"].get("enableExternalIps")  # left out, it is false
    again = tpujob("run", "job.yaml")
    assert again.returncode == 0 and "access " not in again.stderr  # it does not ask for one first


def test_an_external_address_that_the_job_asks_for_is_refused_with_the_policy_and_the_keys(
    tpujob: Tpujob, no_external: None
) -> None:
    with tpujob.creating_nothing():
        done = tpujob("run", tpujob.job(JOB), "--set", "access.via=external")
    assert done.returncode == 64 and "compute.vmExternalIpAccess" in done.stderr
    assert "`via: iap` or `via: internal` in `access:`" in done.stderr


def test_a_job_runs_by_internal_addresses_through_a_bastion(tpujob: Tpujob, no_external: None, bastion: str) -> None:
    job = tpujob.job(JOB + f"access: {{ssh_proxy_command: {json.dumps(bastion)}}}\n")
    planned = tpujob("plan", job)
    assert f"by their internal addresses, through `{bastion}`" in planned.text
    done = tpujob("run", job)
    assert done.returncode == 0, done.text
    assert_ran(tpujob, run_directory(tpujob))
    assert tpujob.admin("GET", "bastion")["dropped"] == 0


def test_where_os_login_is_required_the_key_of_the_slice_is_in_the_profile_as_long_as_the_slice(tpujob: Tpujob) -> None:
    tpujob.settings(require_os_login=True)
    done = tpujob("up", "mine", "--zone", "us-central1-a")
    assert done.returncode == 0, done.text
    (key,) = keys(tpujob).values()
    lease = json.loads(tpujob("status", "--json").stdout)["slices"][0]
    assert isinstance(key, dict) and key["key"].endswith(lease["node"].rpartition("-")[2])
    before = int(key["expirationTimeUsec"])
    assert tpujob("extend", "mine", "--by", "1h").returncode == 0
    (extended,) = keys(tpujob).values()
    assert isinstance(extended, dict) and int(extended["expirationTimeUsec"]) - before == pytest.approx(3600e6)
    done = tpujob("run", tpujob.job(JOB.replace("v5litepod-16", "v5litepod-8")))
    assert done.returncode == 0, done.text
    assert tpujob("down", "mine").returncode == 0
    assert keys(tpujob) == {} and tpujob.alive() == []


@pytest.fixture(params=["refused", "bastion", "iap", "os-login"])
def way(request: pytest.FixtureRequest, tpujob: Tpujob) -> Iterator[str]:
    """The keys of `access:` for each way."""
    tpujob.settings(forbid_external_ips=True, require_os_login=request.param == "os-login")
    access = {"refused": "{}", "iap": "{via: iap}", "os-login": "{}"}.get(request.param)
    if access is None:
        access = f"{{via: internal, ssh_proxy_command: {json.dumps(request.getfixturevalue('bastion'))}}}"
    yield access


@pytest.mark.exhaustive
def test_a_killed_run_leaves_nothing_by_any_way(tpujob: Tpujob, way: str) -> None:
    process = tpujob.start("run", tpujob.job(ENDLESS + f"access: {way}\n"), env={"TPUJOB_GUARDIAN": "on"})
    tpujob.until("begun", process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: tpujob.alive() == [], "the guardian")
    until(lambda: keys(tpujob) == {}, "the removal of its key")
    listed = ran(["ps", "-eo", "args"], check=True).stdout
    assert str(tpujob.directory / "bastion") not in listed, "a proxy command is left"


def test_a_held_slice_says_how_it_is_reached_and_is_not_used_for_a_job_that_says_otherwise(tpujob: Tpujob) -> None:
    assert tpujob("up", "mine", "--accelerator", "v5litepod-4").returncode == 0
    job = "name: shy\ntpu: {zone: us-central1-a, accelerator: v5litepod-4}\ncommand: 'true'\n"
    done = tpujob("run", tpujob.job(job))
    words = " ".join(done.stderr.split())
    assert done.returncode == 0 and "held slice of `tpujob up`; its workers are reached by their ext" in words
    tagged = tpujob.job(f"{job}access: {{tags: [ssh]}}\n", "tagged.yaml")
    for chosen, why in ((("--set", "access.via=iap", tpujob.job(job)), "its workers"), ((tagged,), "it was created")):
        done = tpujob("run", *chosen)
        words = " ".join(done.stderr.split())
        assert done.returncode == 0 and f"(mine): {why}" in words and "held slice of" not in words, done.text
    assert tpujob("down", "mine").returncode == 0


def test_a_key_that_os_login_does_not_remove_is_removed_by_a_later_command(tpujob: Tpujob) -> None:
    tpujob.settings(require_os_login=True)
    assert tpujob("up", "mine", "--zone", "us-central1-a").returncode == 0
    fault = tpujob.fault("status", "osLogin.deleteSshPublicKey", status=403)
    done = tpujob("down", "mine")
    assert done.returncode == 0 and "or a later command removes it" in done.stderr, done.text
    still = tpujob("status")
    assert still.returncode == 0 and len(keys(tpujob)) == 1 and "OS Login" not in still.stderr
    tpujob.admin("DELETE", f"faults/{fault}")
    assert tpujob("status").returncode == 0 and keys(tpujob) == {}
    assert [*(tpujob.own_state / "leases").iterdir()] == []


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
            "again.tar.gz",
            "logs/worker0.log",
            "made.json",
            "report.html",
            "trace.json",
            "worker0/artifacts/a.txt",
            "worker0/artifacts/ls.txt",
            "/".join(("worker0", "work", "out", "x.json")),
        )
    }
    assert list((tpujob.directory / "state" / "local").iterdir()) == [], "the place where it worked is gone"
    assert tpujob("logs", "here").stdout.splitlines() == ["worker0 | ready", "worker0 | from me 1"]


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
