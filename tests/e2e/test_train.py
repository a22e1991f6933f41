"""A `train:` job from YAML to proven absence, on real torch_xla, by every way to its worker."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import ROOT
from tests.cli_fixture import NO_DELAYS, Cli, Said, Tpujob, kill_all
from tests.e2e.test_access import bastion, keys, way
from tests.programs_fixture import needs_xla
from tests.unit.test_docs import reference
from tests.waiting import until

pytestmark = [pytest.mark.torch, needs_xla]

JOB = """
name: tiny
tpu: {zone: us-central1-a}
train:
  model: mlp
  dataset: synthetic
  epochs: 9
  batch_size: 64
  emulated: {cores: 2, examples: 256, test_examples: 512, epochs: 1}
env: {OMP_NUM_THREADS: "1"}
limits: {max_duration: 30m}
"""
AS_A_STRANGER = {"TPUJOB_GUARDIAN": "on", **dict.fromkeys(NO_DELAYS, "0.3")}  # each step takes long enough to be listed


@pytest.mark.long
def test_the_first_command_of_the_readme_trains_and_prints_what_the_readme_shows(cli: Cli) -> None:
    """The transcript is of such a run with all of its images; `make transcript` writes it anew."""
    transcript = reference("transcript")
    (cli.directory / "jobs").mkdir()
    shutil.copy(ROOT / "jobs" / "mnist.yaml", cli.directory / "jobs")
    without_network = ("--env", "https_proxy=http://127.0.0.1:9", "--env", "no_proxy=")  # nothing listens there
    few = ("--set", "train.emulated.examples=768", "--env", "OMP_NUM_THREADS=1")
    process = cli.start(*transcript.RUN, *few, *without_network, env=AS_A_STRANGER, stderr=subprocess.STDOUT)
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    shown = transcript.transcript_of((ROOT / "README.md").read_text(encoding="utf-8"))
    assert transcript.shape(printed) == transcript.shape(shown), "run `make transcript`"
    run = cli.only_run()
    assert run["metrics"]["world"]["processes"] == 2 and run["metrics"]["dataset"]["name"] == "mnist-sample"
    assert run["metrics"]["test_examples"] == 2000
    names = {file["path"].removeprefix("worker0/artifacts/") for file in run["files"]}
    assert {"timing.jsonl", "metrics.json", "provenance.json", "checkpoint.pt", "manifest.json"} <= names
    (timing,) = cli.directory.glob("runs/*/worker0/artifacts/timing.jsonl")
    header, *lines = [json.loads(line) for line in timing.read_text().splitlines()]
    assert header["schema"] == 1 and sum("step" in line for line in lines) == 3 * 768 // 128
    assert cli.alive() == []


def test_without_torch_the_missing_extra_is_named_and_nothing_is_created(cli: Cli) -> None:
    hidden = cli.directory / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name.partition('.')[0] == 'torch_xla' else find(name, *a)\n"
    )
    path = f"{hidden}:{cli.env['PYTHONPATH']}"
    done = cli("run", cli.job(JOB), env={"PYTHONPATH": path})
    assert done.returncode == 64 and "has no torch_xla" in done.stderr and "pip install" in done.stderr
    assert not cli.emulator_directory.exists()


__all__ = ["bastion", "way"]

WITHOUT_NETWORK = ("--env", "https_proxy=http://127.0.0.1:9", "--env", "no_proxy=")  # nothing listens there
FEW = ("--set", "train.emulated.examples=768", "--env", "OMP_NUM_THREADS=1", *WITHOUT_NETWORK)
BEGUN = "images · batch 128"  # the training's first line after torch is there
_direct: list[Any] = []


@pytest.fixture
def mnist(tpujob: Tpujob) -> Path:
    (tpujob.directory / "jobs").mkdir()
    return Path(shutil.copy(ROOT / "jobs" / "mnist.yaml", tpujob.directory / "jobs"))


def by(mnist: Path, access: str) -> str:
    """Write the job with these keys of `access:`."""
    mnist.write_text((ROOT / "jobs" / "mnist.yaml").read_text() + f"\naccess: {access}\n")
    return str(mnist)


def losses(directory: Path) -> list[Any]:
    text = (directory / "worker0" / "artifacts" / "metrics.jsonl").read_text()
    return [(row.get("step"), row.get("loss"), row.get("accuracy")) for row in map(json.loads, text.splitlines())]


def direct_losses(tpujob: Tpujob, mnist: Path) -> list[Any]:
    """The losses of the same training by an external address, which the policies of this cloud do not refuse here."""
    if not _direct:
        before = tpujob.admin("GET", "settings")
        tpujob.settings(forbid_external_ips=False, require_os_login=False)
        run = train(tpujob, by(mnist, "{via: external}"))
        assert run.returncode == 0, run.text
        (directory,) = (tpujob.directory / "runs").glob("mnist-*")
        _direct.extend(losses(directory))
        shutil.rmtree(directory)
        tpujob.settings(**{name: before[name] for name in ("forbid_external_ips", "require_os_login")})
    return _direct


def train(tpujob: Tpujob, job: str, *more: str) -> Said:
    return tpujob.as_process("run", job, *FEW, *more)


def assert_nothing_is_left(tpujob: Tpujob) -> None:
    """No node, no key in the profile, no process of tpujob, no proxy command."""
    until(lambda: tpujob.alive() == [], "the end of the node")
    until(lambda: keys(tpujob) == {}, "the end of its key")
    until(lambda: not tpujob.local(), "the end of the last local process")
    until(lambda: not proxies(tpujob), "the end of the last proxy command")


def proxies(tpujob: Tpujob) -> list[psutil.Process]:
    """The processes of the proxy commands, and those that keep them."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(tpujob.directory / "bastion") in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.exhaustive
def test_the_training_is_the_same_by_every_way_and_its_log_is_that_of_the_worker(
    tpujob: Tpujob, mnist: Path, way: str
) -> None:
    expected = direct_losses(tpujob, mnist)
    if way == "{via: iap}":
        tpujob.admin("POST", "faults", {"kind": "relay_cut", "after_bytes": 2_000, "when": {"first": 8}})
    run = train(tpujob, by(mnist, way), "--keep", "30m")
    assert run.returncode == 0, run.text
    (directory,) = (tpujob.directory / "runs").glob("mnist-*")
    assert len(expected) > 12 and losses(directory) == expected
    (log,) = tpujob.state_dir.glob("vms/*/worker0/home/**/main/log")
    assert (directory / "logs" / "worker0.log").read_bytes() == log.read_bytes() != b""
    if way == "{via: iap}":
        began = log.with_name("started.json").stat().st_mtime
        again = [row["at"] for row in tpujob.requests() if row["path"].startswith("/v4/reconnect")]
        assert len([at for at in again if at > began]) >= 2, "two cuts in mid-run"
    assert tpujob("down", "mnist").returncode == 0
    assert_nothing_is_left(tpujob)


@pytest.mark.exhaustive
def test_a_proxy_command_that_dies_in_mid_run_costs_nothing_of_the_log(
    tpujob: Tpujob, mnist: Path, request: pytest.FixtureRequest
) -> None:
    command = request.getfixturevalue("bastion")
    access = f"{{via: internal, ssh_proxy_command: {json.dumps(command)}}}"
    process = tpujob.start("run", by(mnist, access), *FEW, "--keep", "30m")
    tpujob.until(BEGUN, process)
    killed = [each for each in proxies(tpujob) if each.name() == "ssh"]
    kill_all(killed)
    out, err = process.communicate()
    assert killed and process.returncode == 0, out + err
    (directory,) = (tpujob.directory / "runs").glob("mnist-*")
    (log,) = tpujob.state_dir.glob("vms/*/worker0/home/**/main/log")
    assert (directory / "logs" / "worker0.log").read_bytes() == log.read_bytes() != b""
    assert tpujob("down", "mnist").returncode == 0
    assert_nothing_is_left(tpujob)
