"""Capacity that is not there, is won in a race, or is taken away: the real CLI on an emulator that is told to behave so."""

import importlib.util
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli_fixture import Cli, Tpujob
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
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the `local` extra")
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
    shown = newest_run(cli)
    assert [row["continued"] for row in shown["attempts"]] == [None, goes_on[1]]
    assert goes_on[1] in [event["what"] for event in shown["events"]]
