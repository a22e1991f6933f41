"""Runs the ten disasters, several at once since they mostly wait, and compares each outcome with its promise.

When the caller stops iterating, in whatever way, all disasters stop, and every sandbox removes what it created.

The steps of a disaster cause it in a `Sandbox`; time counts from the moment at which a step ends the claim.
"""

import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.drill.bounds import PROMISES, TERMS, Bound, PromisedBound, PromiseWorld, bound
from orchestrator.drill.sandbox import ConditionTimeout, Sandbox, ended_by, unclaimed_s
from orchestrator.text.units import format_duration

SPEED = 100.0
OUTAGE_S = 14.0  # longer than the time to live: the watchdog has decided before the API is back
# What a deletion takes the emulator beyond `delete_s`: it ends the VM's processes and removes its files.
EMULATOR_S = 1.0


@dataclass(frozen=True, slots=True)
class Disaster:
    """One row of the table."""

    number: int
    name: str
    broken: str  # what is killed or broken, for the printed line
    steps: tuple[Callable[[Sandbox], None], ...]
    promise: PromisedBound
    cli_code: int | None = None  # the exit code that the CLI must have; None: it is killed
    speed: float = SPEED  # claims expire so many times faster than on Google Cloud
    faults: tuple[Mapping[str, Any], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the emulator, beside the times below
    provision_s: float = 0.5
    delete_s: float = 0.5
    outage_s: float = 0.0
    failed_deletes: int = 0
    gc: bool = False  # whether `tpujob gc` runs periodically

    @property
    def world(self) -> PromiseWorld:
        """The conditions from which the bound is computed."""
        return PromiseWorld(
            speed=self.speed,
            deletion_s=self.delete_s + EMULATOR_S,
            outage_s=self.outage_s,
            failed_deletes=self.failed_deletes,
            ready_s=self.provision_s,
            gc_every_s=TERMS["S"].google_s / self.speed,
        )

    @property
    def bound(self) -> Bound:
        """The bound on the emulator of the drill."""
        return bound(self.promise, self.world)

    @property
    def bound_on_google(self) -> Bound:
        """The bound of the same disaster on Google Cloud."""
        return bound(self.promise, self.world.on_google)


def _begin_outage(sandbox: Sandbox) -> None:
    sandbox.fault(kind="drop", when={"until_s": OUTAGE_S})


_RUN, _CUT_POWER = Sandbox.run_until_the_job_runs, Sandbox.kill_everything_local
_KILL_WHILE_CREATING = (Sandbox.start_run, Sandbox.until_creating, Sandbox.kill_cli)
DISASTERS = (
    Disaster(1, "Ctrl-C", "Ctrl-C in the middle of a job",
        (_RUN, Sandbox.press_ctrl_c), PROMISES["command"], cli_code=130),
    Disaster(2, "killed while creating", "kill -9 of the CLI while the slice is CREATING",
        _KILL_WHILE_CREATING, PROMISES["guardian"], provision_s=3.0),
    Disaster(3, "killed while running", "kill -9 of the CLI while the job runs",
        (_RUN, Sandbox.kill_cli), PROMISES["guardian"]),
    Disaster(4, "power cut", "kill -9 of everything local while the job runs",
        (_RUN, Sandbox.until_armed, _CUT_POWER), PROMISES["watchdog"]),
    Disaster(5, "power cut and outage", f"kill -9 of everything local as the API goes down for {OUTAGE_S:.0f} s",
        (_RUN, Sandbox.until_armed, _begin_outage, _CUT_POWER), PROMISES["watchdog after an outage"], outage_s=OUTAGE_S),
    Disaster(6, "lost reply", "the reply to the create call is lost",
        (_RUN, Sandbox.let_the_job_end), PROMISES["command"], cli_code=0,
        faults=({"kind": "lost_reply", "operation": "nodes.create", "when": {"first": 1}},)),
    Disaster(7, "failing deletes", "the delete is accepted and its operation fails, twice",
        (_RUN, Sandbox.let_the_job_end), PROMISES["command"], cli_code=0, failed_deletes=2,
        faults=({"kind": "operation_fails", "operation": "nodes.delete", "seconds": 0.5, "when": {"first": 2}},)),
    Disaster(8, "dropped delete", "kill -9 of the CLI while the slice is CREATING, and the cloud drops the delete",
        _KILL_WHILE_CREATING, PROMISES["guardian of a create"], provision_s=6.0,
        faults=({"kind": "delete_dropped", "when": {"first": 1}},)),
    Disaster(9, "unattended", "a detached job ends, and no client is there",
        (Sandbox.submit, _CUT_POWER, Sandbox.let_the_job_end), PROMISES["watchdog of a detached run"], speed=300.0),
    Disaster(10, "no permission", "kill -9 of everything local, and the VM may not delete",
        (_RUN, _CUT_POWER), PROMISES["gc"], speed=300.0, settings={"vm_may": ["get"]}, gc=True),
)  # fmt: skip


AT_ONCE = 4
LATE_S = 15.0  # how long after the bound a broken promise is observed
AFTER_S = 20.0  # for the proof of absence, and for the end of the guardian


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one disaster. `problem` None: the promise was kept, and nothing is left."""

    disaster: Disaster
    ended_by: str
    unclaimed_s: float | None  # None: the disaster did not get that far
    problem: str | None

    @property
    def ok(self) -> bool:
        """Whether the promise was kept."""
        return self.problem is None


def run_all(disasters: Sequence[Disaster], directory: Path) -> Generator[Finding, None, None]:
    """Yield findings as they arrive. The longest disasters begin first."""
    stop = threading.Event()
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="disaster") as pool:
        ordered = sorted(disasters, key=lambda disaster: -disaster.bound.seconds)
        futures = [pool.submit(run_one, each, directory / f"{each.number}", stop) for each in ordered]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)


def run_one(disaster: Disaster, directory: Path, stop: threading.Event) -> Finding:
    """Run a disaster in a new directory, which is removed after that. Raises DrillStopped once `stop` is set."""
    times = {"provision_s": disaster.provision_s, "delete_s": disaster.delete_s}
    with Sandbox(directory, speed=disaster.speed, settings={**times, **disaster.settings}, stop=stop) as sandbox:
        try:
            sandbox.open()
            for fault in disaster.faults:
                sandbox.fault(**fault)
            for step in disaster.steps:
                step(sandbox)
            _await_end(sandbox, disaster)
        except (ConditionTimeout, RuntimeError, OSError) as error:
            return Finding(disaster, "nothing", None, str(error))
        return _finding(sandbox, disaster)


def _await_end(sandbox: Sandbox, disaster: Disaster) -> None:
    """Wait until nothing is billed and nothing is left, or until it is certain that the promise is broken."""
    assert sandbox.claim_ended_at is not None
    give_up_at = sandbox.claim_ended_at + disaster.bound.seconds + LATE_S
    next_gc_at = time.time()
    while sandbox.billed() and time.time() < give_up_at:
        if disaster.gc and time.time() >= next_gc_at:
            next_gc_at = time.time() + disaster.world.gc_every_s
            sandbox.gc()
        sandbox.pause(0.05)
    give_up_at = time.time() + AFTER_S
    while any(sandbox.left_behind()) and time.time() < give_up_at:
        sandbox.pause(0.2)


def _finding(sandbox: Sandbox, disaster: Disaster) -> Finding:
    assert sandbox.claim_ended_at is not None
    bills = sandbox.bills()
    billed_s = unclaimed_s(bills, sandbox.claim_ended_at, time.time())
    ender = ended_by(sandbox.requests("nodes.delete"), bills, sandbox.cli_killed_at, sandbox.all_killed_at)
    problems = [f"left behind: {left}" for left in sandbox.left_behind()]
    if billed_s > disaster.bound.seconds:
        problems.insert(0, "billed for longer than promised")
    problems += [f"no call met the fault {row['kind']}" for row in sandbox.faults() if not row["hits"]]
    if len(bills) != 1:
        problems.append(f"{len(bills)} slices were created")
    if disaster.cli_code is not None and sandbox.cli_code != disaster.cli_code:
        problems.append(f"the CLI ended with {sandbox.cli_code}, not with {disaster.cli_code}: {sandbox.last_line()}")
    return Finding(disaster, ender, billed_s, "; ".join(problems) or None)


# A bound as text: with the seconds of the drill, or with letters for what tpujob cannot bound.


def formula(bound: Bound) -> str:
    """Return `time to live 9 s + grace 1.8 s + …`."""
    return " + ".join(f"{part.label} {format_duration(part.seconds)}" for part in bound.parts)


def symbolic(bound: Bound) -> str:
    """Return `18 m 20 s + O + D`."""
    known = sum(part.seconds for part in bound.parts if not part.letter)
    return " + ".join([format_duration(known), *(part.letter for part in bound.parts if part.letter)])
