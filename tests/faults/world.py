"""One world of the fault matrix: a client machine and a cloud of its own, judged by the meter and the request log of the cloud.

A row starts real commands, injects faults, waits for conditions and checks a bound. `check_history` then checks what has to be
true in every world: nothing is billed any more, GONE was never recorded too early, and the ledger knows every slice.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from cloud_tpu_emulator.daemon import control
from orchestrator.promise.lease.guest_reports import problem, read_watchdogs
from tests.cli_fixture import Cli, Command, sandbox, signal_all
from tests.faults import bounds
from tests.faults.bounds import Bounds
from tests.waiting import HANG_S, until

SPEED = 30.0  # ttl 30 s: leaves a command time for its first heartbeat, however slow the machine is
LATELY_S = 60.0
SHORT_LABEL = {  # each reaches over a minute; the first default label would reach over five
    "orchestrator.promise.lease.periods:GOOGLE": {
        "label_ttl_s": bounds.SHORT_LABEL,
        "renew_s": bounds.SHORT_LABEL / 2,
    },
    "orchestrator.promise.lease.periods:PROVISION_S": bounds.SHORT_LABEL - bounds.BOOT,
}
PATCHED = Path(__file__).parent / "patched"


@dataclass
class World(Cli):
    speed: float = SPEED
    delete_s: float = 0.0
    measured: list[tuple[str, float, float]] = field(default_factory=list)  # title, seconds, bound
    commands: list[Command] = field(default_factory=list)
    finish_file: Path = Path()  # the newest job runs until this file exists
    release_slot: Callable[[], None] = lambda: (
        None
    )  # called when the row only waits for the clock of the cloud: another row may start

    @classmethod
    def make(cls, directory: Path, *, speed: float = SPEED, delete_s: float = 0.0, **settings: Any) -> World:
        bounds.begin()
        directory.mkdir(parents=True)
        env = sandbox(directory) | {"TPUJOB_EMULATED_SPEED": f"{speed:g}", "TPUJOB_GUARDIAN": "on"}
        world = cls(directory, env, speed=speed, delete_s=delete_s)
        world.settings(**{"provision_s": 0, "start_s": 0, "stop_s": 0, "delete_s": delete_s, **settings})
        return world

    @property
    def bounds(self) -> Bounds:
        """Return the bounds on this machine, with its slowness during the last minute."""
        return Bounds(self.speed, self.delete_s, bounds.slowness(time.time() - LATELY_S))

    # -- commands --

    def started(self, patched: dict[str, Any] | None = None, **job: str) -> Command:
        """Start a run of a long job, and wait until it works."""
        run = self.begin("run", self.long_job(**job), patched=patched)
        run.until("started")
        return run

    def begin(
        self, *words: str, patched: dict[str, Any] | None = None, program: Path | None = None, **options: Any
    ) -> Command:
        """Start a command. `patched` replaces constants inside it, by `module:NAME`; `program` is a Python file instead."""
        entry = self.program[1:] if patched is None else (str(PATCHED / "command.py"), json.dumps(patched))
        entry = entry if program is None else (str(program),)
        self.commands.append(super().begin(*words, program=(sys.executable, *entry), **options))
        return self.commands[-1]

    def do(self, *words: str, **options: Any) -> Command:
        """Run a command to its end."""
        command = self.begin(*words, **options)
        command.code()
        return command

    def crash(self, point: str, *words: str, **options: Any) -> float:
        """Run a command up to a crash point, where it dies of SIGKILL. Return when it died."""
        command = self.begin(*words, env={"TPUJOB_CRASH_AT": point}, **options)
        code = command.code()
        assert code == -signal.SIGKILL, f"{point} was never reached ({code}): {command.err}"
        return time.time()

    def pause(self, point: str, *words: str, **options: Any) -> Command:
        """Run a command up to a crash point, where it stops, so that the test can kill more than the command."""
        command = self.begin(*words, env={"TPUJOB_CRASH_AT": f"{point}:STOP"}, **options)
        until(lambda: is_stopped(command.process.pid) or command.ended, f"{point} of {words}")
        assert not command.ended, f"{point} was never reached ({command.process.returncode}): {command.err}"
        return command

    def freeze(self) -> list[psutil.Process]:
        """Stop all processes of tpujob on this machine, including those started meanwhile, and return them."""
        stopped: list[psutil.Process] = []
        while new := [process for process in self.local() if process not in stopped]:
            signal_all(new, signal.SIGSTOP)
            stopped += new
        return stopped

    def power_cut(self) -> float:
        """Kill all processes of tpujob on this machine. Return when."""
        at = time.time()
        signal_all(self.freeze(), signal.SIGKILL)
        return at

    def power_cut_at(self, point: str, *words: str) -> float:
        self.pause(point, *words)
        return self.power_cut()

    def elsewhere(self) -> dict[str, str]:
        """Return the environment of another machine with the same access to the cloud, and nothing else in common."""
        endpoint = control.ensure_running(self.emulator_directory)
        other = self.directory / f"elsewhere{len(self.commands)}"
        other.mkdir()
        return sandbox(other) | {
            "TPUJOB_ENDPOINT": endpoint.url,
            "TPUJOB_TOKEN_FILE": str(self.emulator_directory / "token"),
            "TPUJOB_EMULATED_SPEED": f"{self.speed:g}",
            "USER": "another-user",
            "LOGNAME": "another-user",
        }

    # -- jobs --

    @property
    def short_job(self) -> str:
        return self.short_job_in()

    def long_job(self, accelerator: str = "v5litepod-8") -> str:
        """Return a job file. The job prints `started`, runs until `finish`, leaves one artifact, and notes when it ended."""
        self.finish_file = self.directory / f"finish{len(self.commands)}"
        return self._work(f"  until [ -e {self.finish_file} ]; do sleep 0.1; done\n", accelerator)

    def short_job_in(self, zone: str = "us-central1-a") -> str:
        """Return the same job file for a job that ends at once."""
        return self._work("", zone=zone)

    def _work(self, until_finished: str, accelerator: str = "v5litepod-8", zone: str = "us-central1-a") -> str:
        return self.job(
            f"name: work\ntpu: {{accelerator: {accelerator}, zone: {zone}}}\ncommand: |\n"
            f'  echo started\n{until_finished}  echo result > "$TPUJOB_ARTIFACTS/result.txt"\n'
            f"  date +%s.%N > {self.directory}/ended.$TPUJOB_WORKER\n"
        )

    def finish(self) -> None:
        """End the newest job."""
        self.finish_file.touch()

    @property
    def job_ended_at(self) -> float:
        return float((self.directory / "ended.0").read_text())

    # -- state --

    def first_delete_at(self) -> float:
        """Return when the first delete of a client arrived at the API."""
        return float(self.requests("nodes.delete", "client")[0]["at"])

    def leases(self) -> list[dict[str, Any]]:  # type: ignore[override]
        path = self.directory / "state" / "ledger.sqlite3"
        if not path.exists():
            return []
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            db.row_factory = sqlite3.Row
            return [dict(row) for row in db.execute("select * from lease order by created_at")]

    def states(self) -> set[str]:
        """Return the states of all leases in the ledger. (Candidates that were never asked for are not in it.)"""
        return {str(row["state"]) for row in self.leases()}

    def until_absent(self) -> None:
        self.release_slot()
        self._until_cloud(lambda: self.lived() > 0 and not self.alive(), "the slice is gone")

    def until_nothing_bills(self) -> None:
        """Wait until nothing is billed, if anything ever was."""
        self.release_slot()
        self._until_cloud(lambda: not self.alive(), "nothing bills")

    def _until_cloud(self, question: Callable[[], bool], what: str) -> None:
        """Wait for a condition of the emulator. It is asked only when its state file has changed: many worlds wait at once."""
        last: tuple[int, int] | None = None

        def changed() -> bool:
            nonlocal last
            now = (self.emulator_directory / "state.json").stat()
            before, last = last, (now.st_ino, now.st_mtime_ns)
            return before != last and question()

        until(changed, what)

    def until_answered(self, caller: str, times: int = 1) -> None:
        """Wait until the API has answered that many calls of this caller from now on."""
        last = self.requests()[-1]["number"]

        def answered() -> bool:
            time.sleep(0.2)  # each question reads a whole log
            calls = self.admin("GET", f"requests?after={last}")["requests"]
            return len([call for call in calls if call["caller"] == caller and call["status"] == 200]) >= times

        until(answered, f"{times} answers for {caller}")

    def claimed_until(self) -> float:
        """Return the end of the claim in the label, in a run with SHORT_LABEL."""
        (node,) = json.loads((self.emulator_directory / "state.json").read_text())["nodes"]
        until_s = float(node["spec"]["labels"]["tpujob-claimed-until"])
        assert until_s <= time.time() + bounds.SHORT_LABEL / self.speed + 1
        return until_s

    def queue(self) -> list[dict[str, Any]]:
        """Return the listed queued resources, each with its `name` and `state`."""
        return list(self.admin("GET", "status").get("queued_resources", []))

    def until_queued(self, state: str) -> None:
        self._until_cloud(lambda: state in [one["state"] for one in self.queue()], f"a queued resource in {state}")

    def exhaust_capacity(self) -> None:
        """Take all capacity, until `restore_capacity`."""
        self.admin("POST", "capacity", {"zone": "*"})

    def restore_capacity(self) -> None:
        """Make capacity available again."""
        self.admin("DELETE", "capacity")

    def preempt(self, node: str) -> float:
        """Preempt a node without notice. Return when."""
        at = time.time()
        self.admin("POST", f"nodes/{node}:preempt", {})
        return at

    def until_alive(self, state: str | None = None) -> str:
        """Wait until a node is billed (in this state). Return its id."""

        def there() -> bool:
            return any(state in (None, node["state"]) for node in self.admin("GET", "status")["nodes"])

        self._until_cloud(there, f"a slice in {state}")
        return str(self.admin("GET", "status")["nodes"][0]["name"]).rpartition("/")[2]

    def until_no_process(self) -> None:
        """Wait until no process of tpujob is left on this machine: all of them have finished."""
        while left := self.local():
            for command in self.commands:  # children of this process: only this process can reap them
                if command.process.pid in [process.pid for process in left]:
                    command.code()
            _, alive = psutil.wait_procs(left, HANG_S)
            assert not alive, f"still there: {alive}"

    def until_armed(self) -> None:
        """Wait until the watchdogs of the slice report that they can delete it."""

        def armed() -> bool:
            nodes = json.loads((self.emulator_directory / "state.json").read_text())["nodes"]
            said = [host["attributes"] for node in nodes for host in node["hosts"]]
            return bool(said) and problem(read_watchdogs(said, len(said))) is None

        until(armed, "the watchdogs are armed")

    def gc_after(self, claimed_until: float) -> None:
        """Run gc on a machine that knows nothing, as soon as the label of the slice allows it."""
        self.release_slot()
        if self.alive():
            until(lambda: time.time() > claimed_until + self.bounds.seconds("margin") + 1, "the end of the label")
        done = self.do("gc", "--zone", "us-central1-a", env=self.elsewhere())
        assert done.code() == 0, done.err

    # -- checks --

    def unclaimed_s(self, since: float) -> float:
        """Return how long anything was billed after the claim had ended: slices side by side count once."""
        now = time.time()
        seconds, counted_to = 0.0, since
        for bill in sorted(self.bills(), key=lambda bill: bill["since"]):
            until = bill["until"] or now
            seconds += max(0.0, until - max(counted_to, bill["since"]))
            counted_to = max(counted_to, until)
        return seconds

    def check_bound(self, what: str, since: float, bound_s: float) -> None:
        """Check that nothing was billed unclaimed for longer than the bound."""
        seconds = self.unclaimed_s(since)
        self.measured.append((what, seconds, bound_s))
        assert not self.alive(), f"{what}: still billing after {seconds:.1f} s"
        assert seconds <= bound_s, f"{what}: {seconds:.1f} s unclaimed, promised were {bound_s:.1f} s"

    def check_released(self, what: str, since: float, bound_s: float) -> None:
        """Check the bound, and that the ledger calls everything gone."""
        self.check_bound(what, since, bound_s)
        assert self.states() == {"gone"}

    def check_history(self, *, gone_is_true: bool = True, at_most: int = 1, ahead_s: float = 0.0) -> None:
        """Check what has to hold in every world. `ahead_s`: by how much the clock of the ledger is ahead."""
        bills = self.bills()
        known = {row["node"]: row for row in self.leases()}
        for bill in bills if known else ():
            lease = known.get(bill["name"].rpartition("/")[2])
            assert lease is not None, f"{bill['name']} existed, and the ledger does not know it"
            if gone_is_true and lease["state"] == "gone":
                assert bill["until"] is not None and bill["until"] <= lease["gone_at"] - ahead_s, (
                    f"gone too early: {lease}"
                )
        for bill in bills:
            beside = [other for other in bills if other["since"] <= bill["since"] < (other["until"] or 1e18)]
            assert len(beside) <= at_most, f"{len(beside)} slices billed at once: {beside}"

    def output(self) -> str:
        return "\n".join(f"--- {command.process.args}\n{command.out}{command.err}" for command in self.commands)  # type: ignore[str-bytes-safe]

    def close(self) -> None:
        self.power_cut()
        for command in self.commands:
            command.process.wait()
        control.stop(self.emulator_directory)


def is_stopped(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


Play = Callable[[World], None]


@dataclass(frozen=True)
class Row:
    """`limit`: why tpujob does not do what the row asks for; the row then checks what is documented instead."""

    number: str
    title: str
    play: Play
    world: dict[str, Any] = field(default_factory=dict)  # arguments of `World.make`
    history: dict[str, Any] = field(default_factory=dict)  # arguments of `World.check_history`
    limit: str | None = None

    @property
    def id(self) -> str:
        return f"{self.number} {self.title}"

    @property
    def family(self) -> str:
        return self.play.__module__.rpartition("rows.")[2]


ROWS: list[Row] = []


def row(
    number: str, title: str, *, limit: str | None = None, history: dict[str, Any] | None = None, **world: Any
) -> Callable[[Play], Play]:
    def register(play: Play) -> Play:
        assert all(other.id != f"{number} {title}" for other in ROWS), f"row {number} {title} is there already"
        ROWS.append(Row(number, title, play, world, history or {}, limit))
        return play

    return register
