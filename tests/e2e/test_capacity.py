"""Capacity that is not there, is won in a race, or is taken away: the real CLI on an emulator that is told to behave so."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli_fixture import Cli, press, wait_for

TRAIN = """
name: anywhere
tpu:
  provisioning: spot
  any_of:
    - accelerator: v5litepod-8
      zone: [us-central1-a, us-east1-c]
    - accelerator: v6e-8
      zone: [us-east4-a, us-east5-b]
    - accelerator: v5litepod-4
      zone: us-west4-a
  wait: 10m
train:
  backend: cpu
  model: mlp
  dataset: synthetic
  epochs: 12
  batch_size: 8
  checkpoint_every: 30 steps
  emulated: {cores: 1, examples: 800, test_examples: 200, epochs: 12}
env: {OMP_NUM_THREADS: "1"}
on_preemption: restart
max_restarts: 5
limits: {max_duration: 30m}
"""
RACE = """
name: race
tpu:
  accelerator: v5litepod-8
  zone: [us-central1-a, us-east1-c, us-west4-a]
  provisioning: queued
  wait: 10m
  race: true
command: echo here
"""
FULL = ["us-central1-a", "us-east1-c", "us-east4-a", "us-east5-b"]
HERE = "us-west4-a"


def losses(cli: Cli, run: dict[str, Any]) -> str:
    return (Path(cli.directory) / run["directory"] / "worker0/artifacts/losses.jsonl").read_text()


def rehearse(cli: Cli, **data: Any) -> None:
    (cli.directory / "rehearsal.json").write_text(json.dumps(data))
    said = cli("emulator", "rehearse", "rehearsal.json")
    assert said.returncode == 0, said.stderr


def queue_of(cli: Cli) -> list[Any]:
    return list(cli.admin("GET", "status").get("queued_resources", []))


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the `local` extra")
def test_a_training_survives_stockouts_a_lost_reply_and_three_preemptions_with_the_same_losses(cli: Cli) -> None:
    undisturbed = cli("run", cli.job(TRAIN), timeout_s=500)
    assert undisturbed.returncode == 0, undisturbed.stderr
    expected = losses(cli, cli.only_run())

    fault = {"operation": "nodes.create", "kind": "lost_reply", "match": {"zone": HERE}, "when": {"calls": [1]}}
    rehearse(cli, capacity=[{"zone": zone} for zone in FULL], faults=[fault])
    process = cli.start("run", "job.yaml")
    taken: list[str] = []
    try:
        for epoch in (2, 5, 8):
            cli.until(f"epoch {epoch}/12", process)
            taken.append(cli.alive()[0].rpartition("/")[2])
            assert cli("emulator", "preempt", taken[-1], "--notice", "30s").returncode == 0
        _, said = process.communicate(timeout=500)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert len(set(taken)) == 3, "a name is never used twice"
    for zone in FULL:
        assert re.search(rf"create +v\S+ {zone} spot +no capacity \(released: absent\) → next", said)
    assert said.count("lost     preempted") == said.count("what was saved goes on to 1 worker") == 3
    newest = json.loads(cli("list", "--json").stdout)[0]
    shown = json.loads(cli("show", newest["run"], "--json").stdout)
    assert losses(cli, shown) == expected
    assert [row["cause"] for row in shown["attempts"]] == ["preempted"] * 3 + [None]
    assert all({no["where"].split()[1] for no in row["tried"]} == set(FULL) for row in shown["attempts"])
    assert cli.alive() == []
    billed = {row["name"].rpartition("/")[2]: row["until"] - row["since"] for row in cli.bills()}
    for row in shown["attempts"]:
        hours = row["usd"] / 2.10144
        assert hours * 3600 == pytest.approx(billed[row["node"]], abs=30), "the bill is the meter's"


def test_the_first_zone_with_capacity_wins_the_race_and_nothing_of_the_others_is_left(cli: Cli) -> None:
    rehearse(cli, capacity=[{"zone": "us-central1-a"}, {"zone": "us-east1-c"}])
    done = cli("run", cli.job(RACE), timeout_s=240)
    assert done.returncode == 0, done.stderr
    assert "us-west4-a won in" in done.stderr
    assert cli.alive() == [] and queue_of(cli) == [] and cli.lived() == 1
    for zone in ("us-central1-a", "us-east1-c"):
        assert re.search(rf"race .* absent: out of the race, in {zone}", done.stderr)


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_kill_as_the_losers_are_told_leaves_neither_them_nor_the_winner(cli: Cli, side: str) -> None:
    rehearse(cli, capacity=[{"zone": "us-central1-a"}])
    killed = cli("run", cli.job(RACE), env={"TPUJOB_CRASH_AT": f"DeleteAll:1:{side}", "TPUJOB_GUARDIAN": "on"})
    assert killed.returncode == -signal.SIGKILL
    wait_for(lambda: cli.alive() == [] and queue_of(cli) == [], 60)
    assert cli.lived() >= 1


def test_ctrl_c_while_everybody_waits_leaves_no_request_behind(cli: Cli) -> None:
    rehearse(cli, capacity=[{"zone": "*"}])
    process = cli.start("run", cli.job(RACE))
    wait_for(lambda: len(queue_of(cli)) == 3, 90)
    press(process)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT, said
    assert queue_of(cli) == [] and cli.lived() == 0


def test_up_stands_in_the_queue_and_holds_what_it_got(cli: Cli) -> None:
    rehearse(cli, capacity=[{"zone": "*", "until_s": 4}])
    done = cli("up", "mine", "--zone", "us-central1-a", "--provisioning", "queued", "--wait", "5m")
    assert done.returncode == 0 and "queued in" in done.stderr, done.stderr
    assert [one["state"] for one in queue_of(cli)] == ["ACTIVE"]
    other = cli("up", "mine", "--spot")
    assert other.returncode == 64 and "exists with provisioning queued, not spot" in other.stderr
    assert cli("down", "mine").returncode == 0
    assert queue_of(cli) == [] and cli.alive() == [] and cli.lived() == 1


def test_ctrl_c_while_up_waits_leaves_no_request_behind(cli: Cli) -> None:
    rehearse(cli, capacity=[{"zone": "*"}])
    process = cli.start("up", "mine", "--zone", "us-central1-a", "--provisioning", "queued", "--wait", "5m")
    wait_for(lambda: len(queue_of(cli)) == 1, 60)
    press(process)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, said
    assert queue_of(cli) == [] and cli.lived() == 0


def test_who_waits_in_the_queue_when_its_command_is_killed_is_taken_out_of_it(cli: Cli) -> None:
    """L15: capacity comes hours later, and nobody is there."""
    rehearse(cli, capacity=[{"zone": "*"}])
    process = cli.start("run", cli.job(RACE), env={"TPUJOB_GUARDIAN": "on"})
    wait_for(lambda: len(queue_of(cli)) == 3, 90)
    process.kill()
    process.communicate()
    wait_for(lambda: queue_of(cli) == [], 90)
    assert cli.lived() == 0


def test_who_may_wait_gets_the_capacity_when_the_stockout_ends(cli: Cli) -> None:
    rehearse(cli, capacity=[{"zone": "us-central1-a", "until_s": 8}])
    done = cli("run", cli.job("tpu: {zone: us-central1-a, wait: 5m}\ncommand: echo hello\n"), timeout_s=240)
    assert done.returncode == 0 and "worker0 | hello" in done.stdout
    assert "no capacity (released: absent) → next" in done.stderr
    assert cli.alive() == []
