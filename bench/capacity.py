"""What it takes to get capacity and to keep it: from a stockout to the next zone's request, a race of five zones, recovery.

On the emulator without delays, so that what is left is ours; the emulator's request log has the times. Steps lost to a
preemption without notice are counted by a real training.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from harness.processes import timed
from harness.results import Report, options, spread, verdict
from harness.sandbox import Sandbox, sandbox, tpujob, wait_for

from cloud_tpu_emulator.daemon import control

FULL, FREE = "us-central1-a", "us-east1-c"
ZONES = ("us-central1-a", "us-east1-c", "us-west4-a", "us-east5-b", "europe-west4-a")
HELLO = "name: hello\ntpu: {tpu}\ncommand: echo hello\n{rest}"
QUEUED = "{{accelerator: v5litepod-8, zone: [{zones}], provisioning: queued, wait: 5m, race: {race}}}"
LASTING = (
    "name: lasting\ntpu: {zone: us-east1-c, spot: true}\ncommand: 'echo here; sleep 600'\non_preemption: restart\n"
)
TRAIN = """
name: train
tpu: {{zone: us-east1-c, spot: true}}
train: {{backend: cpu, model: mlp, dataset: synthetic, epochs: 400, batch_size: 8, checkpoint_every: {every},
  emulated: {{cores: 1, examples: 800, test_examples: 100}}}}
env: {{OMP_NUM_THREADS: "1"}}
on_preemption: restart
"""
LOST_FOR_S = 25.0  # how long a training runs before its slice is taken away
STEPS_AN_EPOCH = 100


def main() -> None:
    arguments = options(str(__doc__), rounds=5)
    report = Report("capacity.py", "getting a slice, and keeping a run", ["what", "measured", "target"])
    with sandbox() as here:
        here.emulator()
        rounds = range(arguments.rounds)
        proven, bare = zip(*(after_stockout(here) for _ in rounds), strict=True)
        report.row("from a create that failed to the next zone's create, s", spread(bare), verdict(bare, 0.5))
        report.row("… of which: asking for the proof that the first is gone", spread(proven), "")
        one, five = ([race(here, ZONES[:count]) for _ in rounds] for count in (1, 5))
        report.row("one queued zone, all of `run`, s", spread(one), "")
        report.row("a race of five queued zones, all of `run`, s", spread(five), "")
        again = [recovery(here) for _ in rounds]
        report.row("from PREEMPTED to the job running again on another slice, s", spread(again), "")
        for every in ("10 steps", "100 steps"):
            lost = [float(steps_lost(here, every)) for _ in range(min(arguments.rounds, 3))]
            report.row(
                f"steps of a training lost to a preemption without notice, `checkpoint_every: {every}`",
                spread(lost, 0),
                "",
            )
    report.notes = [
        "Without delays of the emulator: creating, deleting and getting capacity take no time there.",
        "A training's work is saved every 5 minutes (emulated: 10 s), so this interval, too, bounds what is lost; the "
        "steps are those of a tiny network, some thousand of them in 10 s. With notice (30 s on Google) it saves what it has.",
    ]
    report.publish(arguments)


def rehearse(here: Sandbox, **data: Any) -> None:
    control.request(control.ensure_running(here.emulator_directory), "PUT", "/_emulator/rehearsal", data)


def requests(here: Sandbox, since: float) -> list[dict[str, Any]]:
    return [row for row in here.admin("requests")["requests"] if row["at"] >= since]


def run(here: Sandbox, job: Path) -> tuple[float, str]:
    """Wall seconds and everything that was said."""
    output = here.directory / "output"
    output.mkdir(exist_ok=True)
    spent = timed(tpujob("run", str(job)), here.environment(), output)
    return spent.wall_s, spent.stdout


def after_stockout(here: Sandbox) -> tuple[float, float]:
    """Seconds of asking for the proof, and seconds in all between the failed operation and the next create."""
    rehearse(here, capacity=[{"zone": FULL}])
    began = time.time()
    run(here, here.write("stockout.yaml", HELLO.format(tpu=f"{{zone: [{FULL}, {FREE}]}}", rest="")))
    rows = requests(here, began)
    second = next(row for row in rows if row["operation"] == "nodes.create" and FREE in row["path"])
    first = next(row for row in rows if row["operation"] == "nodes.create" and FULL in row["path"])
    between = [row for row in rows if first["at"] < row["at"] < second["at"]]
    # The operation's last answer before the delete told of the stockout.
    delete = next(row for row in between if row["operation"] == "nodes.delete")
    told = max(row["at"] for row in between if row["operation"] == "operations.get" and row["at"] <= delete["at"])
    proof = [row for row in between if row["at"] >= delete["at"]]
    return sum(row["seconds"] or 0.0 for row in proof), second["at"] - told


def race(here: Sandbox, zones: tuple[str, ...]) -> float:
    rehearse(here)
    tpu = QUEUED.format(zones=", ".join(zones), race="true" if len(zones) > 1 else "false")
    wall_s, _ = run(here, here.write("race.yaml", HELLO.format(tpu=tpu, rest="")))
    return wall_s


def recovery(here: Sandbox) -> float:
    rehearse(here)
    process = start(here, here.write("lasting.yaml", LASTING))
    try:
        follow(process, "worker0 | here")
        [node] = here.nodes()
        taken_at = time.time()
        take(here, node["name"])
        follow(process, "worker0 | here")
        return time.time() - taken_at
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def steps_lost(here: Sandbox, every: str) -> int:
    rehearse(here)
    process = start(here, here.write("train.yaml", TRAIN.format(every=every)))
    try:
        follow(process, "epoch 1/")
        time.sleep(LOST_FOR_S)
        [node] = here.nodes()
        take(here, node["name"])
        seen = follow(process, "resuming after step")
        done = [int(epoch) * STEPS_AN_EPOCH for line in seen if (epoch := _whole_epoch(line)) is not None]
        resumed = int(seen[-1].partition("after step ")[2].partition(" ")[0].replace(",", ""))
        return max(done) - resumed
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def _whole_epoch(line: str) -> str | None:
    found = re.search(r"epoch (\d+)/\d+  loss", line)
    return found[1] if found else None


def start(here: Sandbox, job: Path) -> subprocess.Popen[str]:
    output = here.directory / "output"
    output.mkdir(exist_ok=True)
    return subprocess.Popen(
        tpujob("run", str(job)),
        cwd=output,
        env=here.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def follow(process: subprocess.Popen[str], until: str) -> list[str]:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if until in line:
            return seen
    raise RuntimeError("".join(seen))


def take(here: Sandbox, name: str) -> None:
    said = subprocess.run(
        tpujob("emulator", "preempt", name.rpartition("/")[2], "--notice", "0s"),
        env=here.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    # It may be deleted already by the time of the look.
    wait_for(
        "the node is taken", lambda: (name, "READY") not in [(node["name"], node["state"]) for node in here.nodes()]
    )


if __name__ == "__main__":
    main()
