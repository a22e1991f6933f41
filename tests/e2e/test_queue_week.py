"""A week of a queue in a minute: a day without capacity, four preemptions, five dead runners, and three machines."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cloud_tpu_emulator.daemon import control
from orchestrator.places.google.objects import Objects
from orchestrator.queue.record import NAME, Queue, from_json
from orchestrator.vm.buckets.manifest import Manifest
from tests.cli_fixture import Cli, Command
from tests.faults.kills import machine, settings

STORE, BUCKET = "gs://my-bucket/queue", "gs://my-bucket/runs"
MOST_USD = 3.0
SLOTS = 2
ALONE, RATES = ("first", "second", "third"), ("0.1", "0.2", "0.3", "0.4", "0.5", "0.6")
TAKEN_AWAY = ("first", "second", "third", "0.4")
JOB = """
name: {name}
tpu: {{accelerator: v5litepod-4, zone: us-west4-a, provisioning: spot}}
code: code
command: python3 train.py {argument}
bucket: gs://my-bucket/runs
on_preemption: restart
limits: {{max_duration: 6m}}
"""
SWEEP = f"matrix: {{rate: [{', '.join(RATES)}]}}\n"
# It saves its state as that of docs/preemption.md does. Those that lose their slice wait for that, behind a step that is saved.
TRAIN = """
import json, os, pathlib, sys, time

name, here = sys.argv[1], pathlib.Path("HERE")
artifacts = pathlib.Path(os.environ["TPUJOB_ARTIFACTS"])

def tell(*what):
    with (here / "told").open("a") as file:
        print(name, *what, file=file)

rate = float(name) if name[0].isdigit() else len(name) / 100
checkpoint = artifacts / "checkpoint.json"
state = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"step": 0, "weight": 0.0}
tell("begins after step", state["step"])
for step in range(state["step"] + 1, 61):
    state = {"step": step, "weight": state["weight"] + rate * (1 - state["weight"]) / 10}
    if step % 10 == 0:
        for file in ("metrics.jsonl", "losses.jsonl"):
            with (artifacts / file).open("a") as lines:
                print(json.dumps({"step": step, "loss": 1 - state["weight"]}), file=lines)
        draft = artifacts / "checkpoint.tmp"
        draft.write_text(json.dumps(state))
        draft.replace(checkpoint)
    while step == 35 and not (here / f"go-{name}").exists():
        time.sleep(0.05)
tell("ends")
"""


class Week:
    """The queue on three machines, and the only runner there is."""

    def __init__(self, cli: Cli) -> None:
        self.cli, self.url = cli, control.ensure_running(cli.emulator_directory).url
        self.bucket = Objects(emulator=self.url)
        env = {"TPUJOB_OWNER": "alice", "STORAGE_EMULATOR_HOST": self.url}
        cli.env |= env
        self.machines = [cli, *(machine(cli.directory / f"other{n}", cli.emulator_directory, **env) for n in (1, 2))]
        for each in self.machines:
            settings(each, f"{{store: {STORE}, slots: {SLOTS}, max_cost: {MOST_USD}}}")
        self.runner, self.kills, self.left = self.run(), 0, list(TAKEN_AWAY)

    def run(self) -> Command:
        return self.machines[0].begin("queue", "run", "--forever", "--every", "10s")

    def kill_the_runner(self, *, moves: bool = False) -> None:
        """Kill it; another one takes over, on another machine if it `moves`."""
        assert not self.runner.ended, self.runner.said
        self.runner.kill()
        self.kills += 1
        if moves:
            self.machines = [*self.machines[1:], self.machines[0]]
        self.runner = self.run()

    # -- what is there --

    @property
    def queue(self) -> Queue:
        return from_json(self.bucket.read(f"{STORE}/{NAME}")[0], STORE)

    def report(self) -> dict[str, Any]:
        """What a user sees. The bound holds whenever one looks."""
        said = self.machines[0]("queue", "--json")
        assert said.returncode == 0, said.text
        found: dict[str, Any] = json.loads(said.stdout)
        billed = sum(row["usd"] for row in self.cli.bills())
        assert found["max_cost"] == MOST_USD and max(found["committed_usd"], billed) <= MOST_USD
        return found

    def job(self, name: str) -> Any:
        (found,) = (
            each for each in self.queue.jobs if name in (each.name, (each.sweep.variant or "").removeprefix("rate="))
        )
        return found

    def told(self) -> Counter[str]:
        file = self.cli.directory / "told"
        return Counter(file.read_text().splitlines() if file.exists() else ())

    # -- what happens --

    def wait(self, question: Any, what: str) -> None:
        self.runner.until_true(question, what)

    def is_saved(self, name: str) -> bool:
        """Whether the bucket has the newest state of a job that waits behind it."""
        run = self.job(name).id
        for each in self.bucket.list(f"{BUCKET}/{run}/saved/manifest.json"):
            copies = Manifest.of_text(b"".join(self.bucket.download(f"gs://my-bucket/{each.name}"))).copies
            return bool(copies) and copies[0].step == 30
        return False

    def processes_on(self, node: str) -> list[int]:
        rows = self.cli.admin("GET", "processes")["nodes"]
        return [pid for row in rows if row["name"].endswith(f"/{node}") for pid in row["pids"]]

    def take_a_slice(self) -> str:
        """Preempt a job that waits, and return its name. From then on it may go on behind the step that is saved."""
        self.wait(lambda: any(map(self.is_saved, self.left)), f"a copy of one of {self.left} in the bucket")
        name = next(filter(self.is_saved, self.left))
        self.left.remove(name)
        node = self.job(name).turn.leases[-1]["node"]
        assert self.cli("emulator", "preempt", node, "--notice", "0s").returncode == 0
        self.wait(lambda: not self.processes_on(node), "the end of its processes")
        (self.cli.directory / f"go-{name}").touch()
        return name


def refusals(cli: Cli) -> int:
    return len(cli.requests("nodes.create", "client"))


def undisturbed(directory: Path, name: str) -> str:
    """The losses of the same training by itself."""
    (directory / name).mkdir(parents=True)
    env = {"TPUJOB_ARTIFACTS": str(directory / name)}
    subprocess.run([sys.executable, directory / "train.py", name], env=env, check=True)
    return (directory / name / "losses.jsonl").read_text()


@pytest.mark.exhaustive
@pytest.mark.long
@pytest.mark.timeout(900)
def test_in_a_week_of_trouble_every_job_ends_once(cli: Cli) -> None:
    code, alone = cli.directory / "code", cli.directory / "alone"
    for directory in (code, alone):
        directory.mkdir()
        (directory / "train.py").write_text(TRAIN.replace("HERE", str(cli.directory if directory == code else alone)))
    for name in {*ALONE, *RATES}:
        (alone / f"go-{name}").touch()
        if name not in TAKEN_AWAY:
            (cli.directory / f"go-{name}").touch()

    week = Week(cli)
    assert cli("emulator", "capacity", "set", "*/*", "none").returncode == 0
    files = [cli.job(JOB.format(name=name, argument=name), f"{name}.yaml") for name in ALONE]
    files.append(cli.job(JOB.format(name="rates", argument="${params.rate}") + SWEEP, "rates.yaml"))
    added = cli("queue", "add", *files)
    assert added.returncode == 0 and len(added.stdout.splitlines()) == 9, added.text
    week.wait(lambda: refusals(cli) >= 2, "two refusals")
    week.kill_the_runner()
    before = refusals(cli)
    week.wait(lambda: refusals(cli) > before, "a refusal of another runner")
    assert {job["state"] for job in week.report()["jobs"]} <= {"waiting", "starting", "undoing"} and cli.alive() == []

    assert cli("emulator", "capacity", "clear").returncode == 0
    week.wait(cli.alive, "a slice")
    week.kill_the_runner()
    week.take_a_slice()
    week.take_a_slice()
    week.kill_the_runner(moves=True)
    week.take_a_slice()
    week.report()
    week.kill_the_runner(moves=True)
    last = week.take_a_slice()
    week.wait(lambda: week.told()[f"{last} begins after step 30"], "another life")
    week.kill_the_runner()
    week.wait(lambda: all(job.end is not None and job.turn is None for job in week.queue.jobs), "the end of every job")
    week.runner.press()
    assert week.runner.code() == 130 and week.kills == 5

    jobs = week.report()["jobs"]
    ends = [(job["state"], job["exit_code"], job["why"]) for job in jobs]
    assert ends == [("succeeded", 0, "")] * 9
    told, expected = week.told(), Counter[str]()
    for name in (*ALONE, *RATES):
        assert week.job(name).losses == int(name in TAKEN_AWAY), name
        expected += Counter([f"{name} begins after step 0", f"{name} ends"])
        expected += Counter([f"{name} begins after step 30"] if name in TAKEN_AWAY else [])
    assert told == expected
    for name in (*ALONE, *RATES):
        (found,) = cli.directory.glob(f"**/runs/*-{week.job(name).id}/worker0/artifacts/losses.jsonl")
        assert found.read_text() == undisturbed(alone, name), name
    assert cli.alive() == []
    for each in week.machines:
        finished = each("gc", "--local")
        assert finished.returncode == 0, finished.text
        assert not [lease for lease in each.leases() if lease.open]
