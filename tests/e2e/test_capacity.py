"""What the cloud refuses: capacity, literal refusals through the whole command, and a network with no route out."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.cli_fixture import Cli, Tpujob
from tests.programs_fixture import needs_torch
from tests.waiting import until

ONE_ZONE = """
name: spot
tpu: {accelerator: v5litepod-4, zone: us-west4-a, provisioning: spot}
"""
TRAIN = """
code: code
train:
  entry: waiting:main
  options: {waits_at: WAITS_AT}
  backend: BACKEND
  model: mlp
  dataset: synthetic
  epochs: EPOCHS
  batch_size: 8
  checkpoint_every: 3 steps
  eval: false
  emulated: {cores: 1, examples: 80, test_examples: 80, epochs: EPOCHS}
env: {OMP_NUM_THREADS: "1"}
on_preemption: restart
"""
WAITING = '''
"""The built-in training. At the end of some epochs it waits until it is asked to stop, however fast the machine is."""

import re
import time
from dataclasses import replace

from payload import train
from payload.data import sources


def main(backend, run):
    def say(line):
        run.say(line)
        epoch = re.match(r"epoch (\\d+)/\\d+  loss", line)
        if epoch and int(epoch[1]) in run.options["waits_at"]:
            run.say(f"waits at epoch {epoch[1]}")
            while not run.stopping():
                time.sleep(0.02)

    job = replace(run.job, source=sources.resolve(run.config, run.say_here))
    return train.train(backend, replace(run, job=job, say=say))
'''
RACE = """
name: race
tpu:
  accelerator: v5litepod-8
  zone: [us-central1-a, us-east1-c, us-west4-a]
  provisioning: queued
  wait: 1h
  race: true
command: echo here
"""


def losses(cli: Cli, run: dict[str, Any]) -> str:
    return (Path(cli.directory) / run["directory"] / "worker0/artifacts/losses.jsonl").read_text()


def newest_run(cli: Cli) -> dict[str, Any]:
    newest = json.loads(cli("list", "--json").stdout)[0]
    return json.loads(cli("show", newest["run"], "--json").stdout)


def rehearse(cli: Cli, **data: Any) -> None:
    (cli.directory / "rehearsal.json").write_text(json.dumps(data))
    said = cli("emulator", "rehearse", "rehearsal.json")
    assert said.returncode == 0, said.stderr


def queue_of(cli: Cli) -> list[Any]:
    return list(cli.admin("GET", "status").get("queued_resources", []))


def training(cli: Cli, where: str, backend: str, epochs: int, waits_at: list[int]) -> str:
    code = cli.directory / "code"
    code.mkdir(exist_ok=True)
    (code / "waiting.py").write_text(WAITING)
    text = where + TRAIN.replace("BACKEND", backend).replace("EPOCHS", str(epochs))
    return cli.job(text.replace("WAITS_AT", str(waits_at)))


def preempted(cli: Cli, job: str, at: list[int]) -> tuple[list[str], str]:
    """Run the job, and take its node from it as it waits at each of these epochs. The nodes, and what was said on stderr.

    The notice is long enough on any machine: what saves the work ends the slice, too.
    """
    process = cli.start("run", job)
    taken = []
    try:
        for epoch in at:
            cli.until(f"waits at epoch {epoch}", process)
            taken.append(cli.alive()[0].rpartition("/")[2])
            assert cli("emulator", "preempt", taken[-1], "--notice", "1h").returncode == 0
        _, said = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert (
        said.count("lost     preempted")
        == len(re.findall(r"restart +attempt \d goes on at step \d+, saved", said))
        == len(at)
    ), said
    return taken, said


@pytest.mark.ci
@pytest.mark.torch
@needs_torch
@pytest.mark.parametrize("backend", ["cpu", pytest.param("xla", marks=pytest.mark.exhaustive)])
def test_a_training_that_is_preempted_goes_on_elsewhere_with_the_same_losses(cli: Cli, backend: str) -> None:
    undisturbed = cli("run", training(cli, ONE_ZONE, backend, 3, []))
    assert undisturbed.returncode == 0, undisturbed.stderr
    expected = losses(cli, cli.only_run())

    taken, _ = preempted(cli, training(cli, ONE_ZONE, backend, 3, [2]), [2])
    shown = newest_run(cli)
    assert losses(cli, shown) == expected
    (first, second) = shown["attempts"]
    assert (first["cause"], [first["node"]], second["cause"]) == ("preempted", taken, None)
    assert cli.alive() == []


def test_the_first_zone_with_capacity_wins_the_race_and_nothing_of_the_others_is_left(tpujob: Tpujob) -> None:
    rehearse(tpujob, capacity=[{"zone": "us-central1-a"}, {"zone": "us-east1-c"}])
    done = tpujob("run", tpujob.job(RACE))
    assert done.returncode == 0, done.stderr
    assert "us-west4-a won in" in done.stderr
    assert tpujob.alive() == [] and queue_of(tpujob) == [] and tpujob.lived() == 1
    for zone in ("us-central1-a", "us-east1-c"):
        assert re.search(rf"race .* absent: out of the race, in {zone}", done.stderr)


def test_up_stands_in_the_queue_and_holds_what_it_got(tpujob: Tpujob) -> None:
    rehearse(tpujob, capacity=[{"zone": "*"}])
    process = tpujob.start("up", "mine", "--zone", "us-central1-a", "--provisioning", "queued", "--wait", "1h")
    until(lambda: queue_of(tpujob), "a request in the queue")
    tpujob.admin("DELETE", "capacity")
    _, said = process.communicate()
    assert process.returncode == 0 and "queued in" in said, said
    assert [one["state"] for one in queue_of(tpujob)] == ["ACTIVE"]
    other = tpujob("up", "mine", "--spot")
    assert other.returncode == 64 and "exists with provisioning queued, not spot" in other.stderr
    assert tpujob("down", "mine").returncode == 0
    assert queue_of(tpujob) == [] and tpujob.alive() == [] and tpujob.lived() == 1


def test_who_may_wait_gets_the_capacity_when_the_stockout_ends(tpujob: Tpujob) -> None:
    rehearse(tpujob, capacity=[{"zone": "us-central1-a"}])
    job = tpujob.job("tpu: {zone: us-central1-a, wait: 1h}\ncommand: echo hello\n")
    process = tpujob.start("run", job, stderr=subprocess.STDOUT)
    tpujob.until("no capacity (released: absent) → next", process)
    tpujob.admin("DELETE", "capacity")
    out, _ = process.communicate()
    assert process.returncode == 0 and "worker0 | hello" in out, out
    assert tpujob.alive() == []


SAVING = """
import json, os, time
from pathlib import Path

artifacts = Path(os.environ["TPUJOB_ARTIFACTS"])
checkpoint = artifacts / "checkpoint.json"
begins = json.loads(checkpoint.read_text())["step"] if checkpoint.exists() else 0
print(f"begins at step {begins}", flush=True)
with (artifacts / "metrics.jsonl").open("a") as metrics:
    for step in range(begins + 1, begins + 29):
        print(json.dumps({"step": step, "loss": 1 / step}), file=metrics, flush=True)
        if step % 20 == 0:
            draft = artifacts / ".draft"
            draft.write_text(json.dumps({"step": step}))
            draft.rename(checkpoint)
if begins == 0:
    print("waits", flush=True)
    time.sleep(3600)
"""


@pytest.mark.ci
def test_a_restart_says_from_which_checkpoint_it_goes_on_though_the_metrics_are_ahead_of_it(cli: Cli) -> None:
    """The slice goes without a notice, as soon as the work so far has been copied once."""
    code = cli.directory / "code"
    code.mkdir()
    (code / "train.py").write_text(SAVING)
    process = cli.start("run", cli.job(ONE_ZONE + "code: code\ncommand: python3 train.py\non_preemption: restart\n"))
    try:
        cli.until("waits", process)
        saved = "runs/spot-*/saved/worker0/artifacts/metrics.jsonl"
        until(lambda: any('"step": 28' in path.read_text() for path in cli.directory.glob(saved)), "a copy of the work")
        cli.admin("POST", f"nodes/{cli.alive()[0].rpartition('/')[2]}:preempt", {"notice_s": 0})
        out, said = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 0, said
    goes_on = re.search(
        r"restart +attempt 2 (goes on at step 20, saved [\d.]+ (s|m \d+ s) before the loss) · at most", said
    )
    assert goes_on and "worker0 | begins at step 20" in out, said
    events = re.sub(r"event +\S+ +\S+ +", "", cli("show").stdout)
    assert events.count("run began\n") == 2 and events.count("proven gone") == 2 and "preempted" in events, events
    shown = newest_run(cli)
    assert [row["continued"] for row in shown["attempts"]] == [None, goes_on[1]]
    assert goes_on[1] in [event["what"] for event in shown["events"]]


LINES = (ROOT / "tests/contract/clouds/literal_replies.jsonl").read_text(encoding="utf-8").splitlines()
ROWS = {row["id"]: row for row in map(json.loads, LINES)}
FIRST, SECOND = "us-central1-a", "us-west4-a"
FULL = f"no capacity in any zone that was asked for ({FIRST}, {SECOND})"


def refused_in_the_first_zone(tpujob: Tpujob, name: str) -> None:
    """Let creates in FIRST get the literal answer of a row."""
    row = ROWS[name]
    (tpujob.directory / "answer.json").write_text(json.dumps(row["body"]))
    call, _, operation = row["call"].partition("/")
    how = ("create_fails",) if operation else ("status", f"status={row['http_status']}")
    words = (*how, f"literal=@{tpujob.directory / 'answer.json'}", "--on", call, "--zone", FIRST)
    added = tpujob("emulator", "fault", "add", *words)
    assert added.returncode == 0, added.text


def zones_asked(tpujob: Tpujob) -> list[str]:
    creates = [*tpujob.requests("nodes.create"), *tpujob.requests("queuedResources.create")]
    return [re.search(r"/locations/([^/]+)/", row["path"])[1] for row in creates]  # type: ignore[index]


@pytest.mark.parametrize(("name", "zones", "code", "said"), [
    ("tpu-stockout-queue-hint", [FIRST, SECOND], 69, FULL),
    ("tpu-reservation-not-found", [FIRST, SECOND], 69, FULL),
    ("tpu-type-notfound-v4-128", [FIRST, SECOND], 69, f"no capacity in {SECOND}; refused: "),
    ("tpu-flex-not-supported", [FIRST, SECOND], 69, f"no capacity in {SECOND}; refused: "),
    ("tpu-quota-zone-429", [FIRST, SECOND], 69, f"no capacity in {SECOND}; quota: Quota 'TPUV5sLitepodServingPer"),
    ("tpu-location-policy", [FIRST, SECOND], 69, f"no capacity in {SECOND}; no permission: "),
    ("tpu-shielded-policy", [FIRST], 77, "constraints/compute.requireShieldedVm requires secure boot"),
    ("tpu-free-trial", [FIRST], 77, "console.cloud.google.com/billing/linkedaccount?project=emulated"),
    ("tpu-node-arch-denied", [FIRST], 64, "the old TPU Node architecture"),
])  # fmt: skip
def test_a_refusal_of_a_place_leads_to_the_next_and_one_of_the_project_ends_the_search(
    tpujob: Tpujob, name: str, zones: list[str], code: int, said: str
) -> None:
    queued = "queuedResources" in ROWS[name]["call"]
    refused_in_the_first_zone(tpujob, name)
    tpujob.fault("create_fails", match={"zone": SECOND})
    how = "provisioning: flex-start, " if queued else ""
    ended = tpujob("run", tpujob.job(f"tpu: {{{how}zone: [{FIRST}, {SECOND}]}}\ncommand: 'true'\n"))
    assert (ended.returncode, zones_asked(tpujob)) == (code, zones), ended.text
    assert said in ended.text and tpujob.alive() == []


def test_what_one_place_does_not_offer_the_next_one_has_and_a_wait_changes_nothing(tpujob: Tpujob) -> None:
    refused_in_the_first_zone(tpujob, "tpu-type-notfound-v4-128")
    job = f"tpu: {{wait: 1h, accelerator: v4-8, zone: [{FIRST}, us-central2-b]}}\ncommand: 'true'\n"
    ended = tpujob("run", tpujob.job(job))
    assert ended.returncode == 0 and zones_asked(tpujob) == [FIRST, "us-central2-b"], ended.text
    asked = (
        f"the table of offers has no v4-8 (on-demand) in {FIRST}, but in us-central2-b; the cloud is asked all the same"
    )
    assert asked in " ".join(ended.text.split()), ended.text


def test_a_fresh_slice_whose_addresses_and_whose_role_at_the_relay_come_late_is_waited_for(tpujob: Tpujob) -> None:
    tpujob.fault("few_endpoints", match={"state": "READY"}, when={"first": 2})
    tpujob.fault("relay_refuse", "relay.connect", close_code=4033, when={"first": 3})
    job = f"access: {{via: iap}}\ntpu: {{accelerator: v5e-4x4, zone: {FIRST}}}\ncommand: 'true'\n"
    ended = tpujob("run", tpujob.job(job))
    assert ended.returncode == 0 and tpujob.alive() == [], ended.text
    assert [fault["hits"] for fault in tpujob.admin("GET", "faults")["faults"]] == [2, 3]


def test_a_job_may_ask_for_secure_boot(tpujob: Tpujob) -> None:
    planned = tpujob(
        "plan", "--json", tpujob.job(f"access: {{secure_boot: true}}\ntpu: {{zone: {FIRST}}}\ncommand: ls\n")
    )
    (candidate,) = json.loads(planned.stdout)["candidates"]
    assert candidate["request"]["body"]["shieldedInstanceConfig"] == {"enableSecureBoot": True}


JOB = """
name: offline
tpu: {zone: us-central1-a, accelerator: v5litepod-8}
requirements: [alpha]
env: {PIP_RETRIES: 0, PIP_CONFIG_FILE: /dev/null, UV_HTTP_RETRIES: 0, PIP_INDEX_URL: "https://index.invalid/simple"}
access: {via: iap}
command: echo never
"""


@pytest.fixture
def no_route(tpujob: Tpujob) -> None:
    tpujob.settings(cloud_nat=False)


def test_a_worker_without_a_route_out_says_so_and_how_to_give_it_one(tpujob: Tpujob, no_route: None) -> None:
    done = tpujob("run", tpujob.job(JOB))
    assert done.returncode == 71, done.text
    assert "the setup failed on worker0 with code" in done.stderr
    assert "the worker does not reach index.invalid:443 (the proxy 127.0.0.1:9: connection refused)" in done.stderr
    assert "Cloud NAT gives it a route out (`gcloud compute routers create NETWORK-router" in done.stderr
    assert "--region=us-central1 --project=emulated" in done.stderr and "PIP_INDEX_URL" in done.stderr
    assert tpujob.alive() == []
    (run,) = json.loads(tpujob("list", "--json").stdout)
    assert json.loads(tpujob("show", run["run"], "--json").stdout)["attempts"][-1]["state"] == "error"


def test_a_setup_that_fails_by_itself_is_its_own_failure_there_too(tpujob: Tpujob, no_route: None) -> None:
    job = JOB.replace("requirements: [alpha]", "setup: echo mistake; exit 3")
    done = tpujob("run", tpujob.job(job))
    assert done.returncode == 3, done.text
    assert "the setup failed on worker0 with code 3" in done.stderr and "does not reach" not in done.stderr


def test_an_external_address_is_a_route_out(tpujob: Tpujob, no_route: None, tmp_path: Path) -> None:
    job = JOB.replace("access: {via: iap}", "").replace("requirements: [alpha]", 'setup: test -z "$HTTPS_PROXY"')
    done = tpujob("run", tpujob.job(job), env={"HTTPS_PROXY": ""})
    assert done.returncode == 0, done.text
