"""A run goes on from its bucket: the client is killed, its state is gone, and another machine makes the next attempt."""

import json
import re
import shutil

import pytest

from cloud_tpu_emulator.daemon import control
from orchestrator.places.google.objects import Objects
from orchestrator.vm.buckets.manifest import Manifest
from tests.cli_fixture import Cli
from tests.waiting import until

JOB = """
name: spot
tpu: {accelerator: v5litepod-4, zone: "us-west4-a, us-west1-c", provisioning: spot}
code: code
command: python3 train.py
bucket: gs://my-bucket/runs
on_preemption: restart
limits: {max_duration: 6m}
"""
# Like the script of docs/preemption.md. It waits at a step until the test says that it may go on.
TRAIN = """
import json, os, pathlib, time

artifacts = pathlib.Path(os.environ["TPUJOB_ARTIFACTS"])
checkpoint = artifacts / "checkpoint.json"
state = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"step": 0, "weight": 0.0}
print(f"starting after step {state['step']}", flush=True)
for step in range(state["step"] + 1, 61):
    state = {"step": step, "weight": state["weight"] + 0.1 * (1 - state["weight"])}
    if step % 10 == 0:
        with (artifacts / "losses.jsonl").open("a") as losses:
            print(json.dumps({"step": step, "loss": 1 - state["weight"]}), file=losses)
        draft = artifacts / "checkpoint.tmp"
        draft.write_text(json.dumps(state))
        draft.replace(checkpoint)
    while step == 35 and not pathlib.Path("GO").exists():
        time.sleep(0.05)
"""


@pytest.fixture
def bucket(cli: Cli) -> Objects:
    url = control.ensure_running(cli.emulator_directory).url
    cli.env["STORAGE_EMULATOR_HOST"] = url
    code = cli.directory / "code"
    code.mkdir()
    (code / "train.py").write_text(TRAIN.replace("GO", str(cli.directory / "go")))
    return Objects(emulator=url)


def saved_step(bucket: Objects) -> tuple[str, int | None] | None:
    """The run that has a manifest, and the step of its newest copy."""
    for each in bucket.list("gs://my-bucket/runs/"):
        if each.name.endswith("/manifest.json"):
            copies = Manifest.of_text(b"".join(bucket.download(f"gs://my-bucket/{each.name}"))).copies
            return each.name.split("/")[1], copies[0].step if copies else None
    return None


def losses(cli: Cli) -> str:
    (found,) = cli.directory.glob("runs/*/worker0/artifacts/losses.jsonl")
    text = found.read_text()
    shutil.rmtree(cli.directory / "runs")
    return text


@pytest.mark.ci
def test_a_run_goes_on_in_another_zone_from_its_bucket_once_its_machine_is_gone(cli: Cli, bucket: Objects) -> None:
    job = cli.job(JOB)
    (cli.directory / "go").touch()
    undisturbed = cli("run", job)
    assert undisturbed.returncode == 0, undisturbed.text
    expected = losses(cli)
    assert not [each for each in bucket.list("gs://my-bucket/runs/") if "/saved/" in each.name], "a success needs none"
    (cli.directory / "go").unlink()

    process = cli.start("run", job)
    until(lambda: (saved_step(bucket) or ("", 0))[1] == 30, "a copy in the bucket")
    run, _ = saved_step(bucket) or ("", 0)
    process.kill()
    process.wait()
    for path in cli.own_state.iterdir():
        if path.name != "emulator":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree(cli.directory / "runs")
    first = cli.alive()[0]
    assert cli("emulator", "preempt", first.rpartition("/")[2], "--notice", "0s").returncode == 0
    cli.fault("create_fails", match={"zone": "us-west4-a"})

    (cli.directory / "go").touch()
    resumed = cli("run", job, "--resume", run)
    assert resumed.returncode == 0, resumed.text
    assert f"attempt 2 goes on at step 30, in gs://my-bucket/runs/{run}/saved" in resumed.stderr
    assert "worker0 | starting after step 30" in resumed.stdout
    assert re.search(rf"saved work of step 30 from gs://my-bucket/runs/{run}/saved: \d files", resumed.stdout)
    assert "us-west1-c" in cli.bills()[-1]["name"] and first != cli.bills()[-1]["name"]
    assert losses(cli) == expected
    shown = json.loads(cli("show", run, "--json").stdout)
    assert [row["continued"] for row in shown["attempts"]] == [
        f"goes on at step 30, in gs://my-bucket/runs/{run}/saved"
    ]


@pytest.mark.ci
def test_a_detached_run_of_several_workers_saves_its_work_and_the_next_attempt_of_this_machine_has_it(
    cli: Cli, bucket: Objects
) -> None:
    job = cli.job(JOB.replace("v5litepod-4", "v5litepod-16"))
    cli.env["TPUJOB_COLLECTOR"] = "off"
    submitted = cli("run", job, "--detach")
    assert submitted.returncode == 0, submitted.text
    assert f"the job with `--resume {submitted.stdout.strip()}` goes on from what it saves" in submitted.stderr
    assert "the workers save the work to gs://my-bucket/runs/RUN/saved: their service account needs" in submitted.stderr
    run = submitted.stdout.strip()
    early = cli("run", job, "--resume", run)
    assert early.returncode == 64 and f"{run} has not ended" in early.stderr
    until(lambda: saved_step(bucket) == (run, 30), "a copy in the bucket")
    assert cli("emulator", "preempt", cli.alive()[0].rpartition("/")[2], "--notice", "0s").returncode == 0
    lost = cli("attach", run)
    assert lost.returncode == 71, lost.text
    (cli.directory / "go").touch()
    resumed = cli("submit", job, "--resume", run)
    assert (
        resumed.returncode == 0
        and f"attempt 2 goes on at step 30, in gs://my-bucket/runs/{run}/saved" in resumed.stderr
    )
    done = cli("attach", run)
    assert done.returncode == 0, done.text
    assert {f"worker{index} | starting after step 30" in done.stdout for index in range(4)} == {True}
    assert [row["state"] for row in json.loads(cli("show", run, "--json").stdout)["attempts"]] == [
        "interrupted",
        "succeeded",
    ]


def test_only_a_run_that_has_saved_its_work_in_a_bucket_goes_on(cli: Cli, bucket: Objects) -> None:
    job = cli.job(JOB)
    unknown = cli("run", job, "--resume", "0123456789")
    assert unknown.returncode == 64 and "nothing is saved in gs://my-bucket/runs/0123456789/saved" in unknown.stderr
    refused = cli("run", cli.job(JOB.replace("on_preemption: restart", "")), "--resume", "0123456789")
    assert refused.returncode == 64 and "goes on from its bucket only with `bucket:`" in refused.stderr
    assert cli.lived() == 0


@pytest.mark.ci
def test_a_run_that_restarts_by_itself_goes_on_from_the_bucket_too(cli: Cli, bucket: Objects) -> None:
    """Without a copy on this machine that is newer."""
    process = cli.start("run", cli.job(JOB))
    try:
        until(lambda: (saved_step(bucket) or ("", 0))[1] == 30, "a copy in the bucket")
        cli.admin("POST", f"nodes/{cli.alive()[0].rpartition('/')[2]}:preempt", {"notice_s": 0})
        (cli.directory / "go").touch()
        out, said = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert re.search(
        r"restart +attempt 2 goes on at step \d0, saved [\d.]+ s before the loss, in gs://my-bucket/runs/", said
    ), said
    assert re.search(r"worker0 \| tpujob: saved work of step 30 from gs://my-bucket/", out), out
    assert not [each for each in bucket.list("gs://my-bucket/runs/") if "/saved/" in each.name]
