"""Real runners of a queue, killed at random: `python -m tests.faults.kills --kills 200` (a quarter of an hour of two cores).

Jobs are added all the time, and each tells in a file outside of its slice when it began and ended. One to three runners carry
the queue on, in two state directories with a store in the emulator's Cloud Storage, or (`--store directory`) in one. SIGKILL
hits a runner, its process group, a guardian, or all processes of a state directory; some runners stand still for seconds. After
the last kill, runners go on undisturbed. Then each job has ended, by itself, once; it had at most one life at a time, as the
emulator's meter shows; and nothing is alive. Prints what it counted and every violation; ends with 1 if there is one.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from cloud_tpu_emulator.daemon import control
from tests.cli_fixture import NO_DELAYS, Cli, Command, kill_all, sandbox, signal_all
from tests.waiting import LOOK_S

SPEED = 30.0  # a turn whose runner says nothing is free after ten seconds; a slice that no job has, gone after thirty
SLOTS, MOST_OPEN, ADDED_AT_ONCE = 4, 10, 3
PAUSES_S, STANDS_S = (0.3, 4.0), (1.0, 9.0)
REST_S, NOTHING_ENDS_S = (
    600.0,
    120.0,
)  # how long undisturbed runners may take, and how long none of the jobs may end meanwhile
KINDS = {"runner": 5, "group": 2, "guardian": 1, "machine": 2, "stop": 3}  # weights
JOB = """name: {name}
tpu: {{accelerator: v5litepod-4, zone: us-central1-a}}
limits: {{max_duration: 30m}}
command: |
  tell() {{ echo "$1 $TPUJOB_RUN $TPUJOB_ATTEMPT $TPU_NAME $(date +%s.%N)" >> {told}; }}
  tell began
  sleep {seconds:.2f}
  echo result > "$TPUJOB_ARTIFACTS/result.txt"
  tell ended
"""


def machine(directory: Path, cloud: Path, **env: str) -> Cli:
    """Return a machine with a state directory of its own, beside others of the emulator in `cloud`."""
    directory.mkdir(parents=True)
    made = Cli(directory, sandbox(directory) | env)
    made.own_state.mkdir(mode=0o700)
    made.emulator_directory.symlink_to(cloud)
    return made


def settings(made: Cli, queue: str) -> None:
    """Write the settings of a machine."""
    path = Path(made.env["XDG_CONFIG_HOME"], "tpujob", "settings.yaml")
    path.parent.mkdir(parents=True)
    path.write_text(f"queue: {queue}\n")


class Told(NamedTuple):
    """A line of a job."""

    what: str
    run: str
    attempt: str
    node: str
    at: float


@dataclass
class World:
    """The machines, the jobs, and what runs."""

    directory: Path
    store: str
    dice: random.Random
    machines: list[Cli] = field(default_factory=list)
    runners: list[Command] = field(default_factory=list)
    adders: list[Command] = field(default_factory=list)
    standing: list[tuple[float, psutil.Process]] = field(default_factory=list)  # until when
    bills: dict[tuple[str, float], dict[str, Any]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    jobs: int = 0

    def __post_init__(self) -> None:
        cloud = self.directory / "cloud"
        endpoint = control.ensure_running(cloud)
        control.request(endpoint, "PATCH", "/_emulator/settings", dict.fromkeys(_DELAYS, 0))
        env = {
            "TPUJOB_OWNER": "alice",
            "TPUJOB_GUARDIAN": "on",
            "TPUJOB_EMULATED_SPEED": f"{SPEED:g}",
            "STORAGE_EMULATOR_HOST": endpoint.url,
        }
        of_bucket = self.store == "bucket"
        for number in range(1 + of_bucket):
            made = machine(self.directory / f"machine{number}", cloud, **env)
            settings(made, f"{{{'store: gs://queue/all, ' if of_bucket else ''}slots: {SLOTS}}}")
            self.machines.append(made)
        self.told_in = self.directory / "told"
        self.told_in.touch()

    # -- what goes on --

    @property
    def told(self) -> list[Told]:
        rows = (line.split() for line in self.told_in.read_text().splitlines())
        return [Told(what, run, attempt, node, float(at)) for what, run, attempt, node, at in rows]

    def report(self) -> list[dict[str, Any]]:
        """The jobs of the queue."""
        said = self.machines[0]("queue", "--json")
        if said.returncode != 0:
            raise AssertionError(said.text)
        return list(json.loads(said.stdout)["jobs"])

    def meter(self) -> list[str]:
        """Take down what was billed so far; return what is alive."""
        rows = self.machines[0].bills()
        self.bills |= {(row["name"], row["since"]): row for row in rows}
        return [row["name"] for row in rows if row["until"] is None]

    def add(self) -> None:
        made = self.dice.choice(self.machines)
        files = []
        for _ in range(ADDED_AT_ONCE):
            self.jobs += 1
            text = JOB.format(name=f"job{self.jobs}", told=self.told_in, seconds=self.dice.uniform(0.2, 3.0))
            files.append(made.job(text, f"job{self.jobs}.yaml"))
        self.adders.append(made.begin("queue", "add", *files, "--json"))

    def added(self) -> set[str]:
        """The ids of the jobs that were added, as the commands said."""
        done = [each for each in self.adders if each.ended]
        return {job["id"] for each in done if each.process.returncode == 0 for job in json.loads(each.out)}

    def keep_adding(self) -> None:
        going = [each for each in self.adders if not each.ended]
        ended = {each.run for each in self.told if each.what == "ended"}
        if not going and len(self.added() - ended) < MOST_OPEN:
            self.add()

    def keep_running(self, wanted: int) -> None:
        for each in [each for each in self.runners if each.ended]:
            self.runners.remove(each)
            self._ended(each)
        while len(self.runners) < wanted:
            words = ("--forever", "--every", "10s") if self.dice.random() < 0.3 else ()
            made = self.dice.choice(self.machines)
            self.runners.append(made.begin("queue", "run", *words, start_new_session=True))

    def _ended(self, runner: Command) -> None:
        code = runner.process.returncode
        self.counts[f"runners that ended with {code}"] += 1
        if code not in (0, -signal.SIGKILL) or "Traceback" in runner.err:
            self.notes.append(f"a runner ended with {code}: {runner.err[-3000:]}")

    def strike(self) -> int:
        """Kill something, or make it stand still. Return how many kills that was."""
        kind = self.dice.choices(list(KINDS), list(KINDS.values()))[0]
        living = [each for each in self.runners if not each.ended]
        if kind == "guardian":
            found = [each for made in self.machines for each in made.local("orchestrator.promise.guardian_process")]
        elif kind == "machine":
            found = self.dice.choice(self.machines).local()
        elif not living:
            found = []
        else:
            found = [psutil.Process(self.dice.choice(living).process.pid)]
        if not found:
            return 0
        self.counts[f"{kind}: struck"] += 1
        if kind == "stop":
            signal_all(found, signal.SIGSTOP)
            self.standing.append((time.monotonic() + self.dice.uniform(*STANDS_S), found[0]))
            return 0
        if kind == "group":
            with suppress(ProcessLookupError):
                os.killpg(found[0].pid, signal.SIGKILL)
        elif kind == "guardian":
            kill_all([self.dice.choice(found)])
        else:
            kill_all(found)
        return 1

    def let_go(self, *, all_of_them: bool = False) -> None:
        for each in list(self.standing):
            if all_of_them or each[0] < time.monotonic():
                signal_all([each[1]], signal.SIGCONT)
                self.standing.remove(each)

    def rest(self) -> str:
        """Let runners go on undisturbed until every job has ended; return what is left then."""
        self.let_go(all_of_them=True)
        for each in self.adders:
            each.process.wait(REST_S)
        for each in self.runners:
            each.press(signal.SIGTERM)
            each.process.wait(REST_S)
        self.runners = []
        give_up_at, quiet_since, before = time.monotonic() + REST_S, time.monotonic(), -1
        while True:
            self.runners += [made.begin("queue", "run") for made in self.machines]
            for each in self.runners:
                each.process.wait(REST_S)
            self.keep_running(0)
            self.meter()
            left = [job for job in self.report() if job["ended_at"] is None or job["since"] is not None]
            if not left:
                return ""
            if len(left) != before:
                before, quiet_since = len(left), time.monotonic()
            if time.monotonic() > min(give_up_at, quiet_since + NOTHING_ENDS_S):
                return "\n  ".join(f"{job['id']} {job['state']}: {job['why']}" for job in left)
            time.sleep(1.0)

    def close(self) -> None:
        self.let_go(all_of_them=True)
        for each in [*self.runners, *self.adders]:
            each.kill()
        for made in self.machines:
            while found := made.local():
                kill_all(found)
                psutil.wait_procs(found, LOOK_S)
        control.stop(self.directory / "cloud")


_DELAYS = [name.removeprefix("TPUJOB_EMULATOR_").lower() for name in NO_DELAYS]


# -- what has to be true ----------------------------------------------------------------------------------------------


def lives_of(told: list[Told]) -> dict[str, list[Told]]:
    """The lines of each job, in the order in which they were written."""
    found: dict[str, list[Told]] = {}
    for each in told:
        found.setdefault(each.run, []).append(each)
    return found


def violations_of(told: list[Told], bills: list[dict[str, Any]]) -> list[str]:
    """What jobs did that they must not: begin again after their end, or before the slice of their last life was gone."""
    gone_at: dict[str, float | None] = {}
    for bill in sorted(bills, key=lambda bill: bill["since"]):
        gone_at[bill["name"].rpartition("/")[2]] = bill["until"]
    found = []
    for run, lines in lives_of(told).items():
        story = " / ".join(f"{each.what} {each.attempt[-1]} {each.node[-6:]} {each.at:.3f}" for each in lines)
        before: Told | None = None
        for each in lines:
            if each.what == "began" and before is not None:
                gone = gone_at.get(before.node)
                if before.what == "ended":
                    found.append(f"{run} began again after its end: {story}")
                elif gone is None or each.at < gone:
                    found.append(f"{run} began again before {before.node} was gone (at {gone}): {story}")
            before = each
        if lines[-1].what != "ended":
            found.append(f"{run} never came to its end: {story}")
    return found


def judge(world: World, left: str) -> list[str]:
    """Return every violation, once runners had time enough."""
    found = [f"not all jobs have ended:\n  {left}"] if left else []
    jobs, told = world.report(), world.told
    found += [f"{each} was added, and is not in the queue" for each in world.added() - {job["id"] for job in jobs}]
    for job in jobs:
        lines = [each.what for each in told if each.run == job["id"]]
        if job["ended_at"] is not None and (job["state"] != "succeeded" or job["exit_code"] != 0):
            found.append(f"{job['id']} ended as {job['state']} ({job['exit_code']}), told {lines}: {job['why']}")
        if not lines:
            found.append(f"{job['id']} is {job['state']}, and never began")
    for made in world.machines:
        for words in (("gc", "--local"), ("status",)):
            said = made(*words)
            if said.returncode != 0:
                found.append(f"{' '.join(words)} ended with {said.returncode}: {said.text}")
        found += [f"the ledger of {made.directory.name} has open {lease}" for lease in made.leases() if lease.open]
    found += [f"{node} is alive" for node in world.meter()]
    world.counts |= Counter(
        {"jobs": len(jobs), "lives": sum(each.what == "began" for each in told), "slices": len(world.bills)}
    )
    world.counts["attempts that the record counts"] = sum(job["attempts"] for job in jobs)
    return found + violations_of(told, list(world.bills.values()))


def play(world: World, kills: int, say: Callable[[str], None]) -> list[str]:
    """Kill so often; return every violation."""
    began, struck = time.monotonic(), 0
    while struck < kills:
        world.let_go()
        world.keep_adding()
        world.keep_running(world.dice.randint(1, 3))
        time.sleep(world.dice.uniform(*PAUSES_S))
        before, struck = struck, struck + world.strike()
        if struck // 10 > before // 10:
            ended = len({each.run for each in world.told if each.what == "ended"})
            world.meter()
            say(f"{struck} kills, {ended} jobs have ended, {time.monotonic() - began:.0f} s")
    left = world.rest()
    say(f"all at rest after {time.monotonic() - began:.0f} s")
    return judge(world, left)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", choices=("bucket", "directory"), default="bucket")
    parser.add_argument("--keep", action="store_true", help="leave the directory there, to look at")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # also in the background: nothing of it outlives this process
        signal.signal(number, lambda signum, _: sys.exit(128 + signum))
    directory = Path(tempfile.mkdtemp(prefix="tpujob-kills-"))
    world = World(directory, options.store, random.Random(options.seed))
    try:
        found = play(world, options.kills, lambda text: print(text, flush=True))
    finally:
        world.close()
    print(*(f"NOTE {each}" for each in world.notes), sep="\n")
    print(*(f"{count:6} {what}" for what, count in sorted(world.counts.items())), sep="\n")
    print(*(f"VIOLATION {each}" for each in found), sep="\n")
    print(f"{options.kills} kills, seed {options.seed}, store {options.store}: {len(found)} violations")
    if options.keep or found:
        print(f"left to look at: {directory}")
    else:
        import shutil

        shutil.rmtree(directory, ignore_errors=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
