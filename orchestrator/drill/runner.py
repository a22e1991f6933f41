"""Runs disasters, several at once since they mostly wait, and compares each outcome with its promise.

When the caller stops iterating, in whatever way, all disasters stop, and every sandbox removes what it created.
"""

import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.text.durations import format_duration
from orchestrator.drill import measure
from orchestrator.drill.disasters import Disaster
from orchestrator.drill.sandbox import ConditionTimeout, Sandbox
from orchestrator.promises import Bound

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
    unclaimed_s = measure.unclaimed_s(bills, sandbox.claim_ended_at, time.time())
    ended_by = measure.ended_by(sandbox.requests("nodes.delete"), bills, sandbox.killed)
    problems = [f"left behind: {left}" for left in sandbox.left_behind()]
    if unclaimed_s > disaster.bound.seconds:
        problems.insert(0, "billed for longer than promised")
    problems += [f"no call met the fault {row['kind']}" for row in sandbox.faults() if not row["hits"]]
    if len(bills) != 1:
        problems.append(f"{len(bills)} slices were created")
    if disaster.cli_code is not None and sandbox.cli_code != disaster.cli_code:
        problems.append(f"the CLI ended with {sandbox.cli_code}, not with {disaster.cli_code}: {sandbox.last_line()}")
    return Finding(disaster, ended_by, unclaimed_s, "; ".join(problems) or None)


# A bound as text: with the seconds of the drill, or with letters for what tpujob cannot bound.


def formula(bound: Bound) -> str:
    """Return `time to live 9 s + grace 1.8 s + …`."""
    return " + ".join(f"{part.label} {format_duration(part.seconds)}" for part in bound.parts)


def symbolic(bound: Bound) -> str:
    """Return `18 m 20 s + O + D`."""
    known = sum(part.seconds for part in bound.parts if not part.letter)
    return " + ".join([format_duration(known), *(part.letter for part in bound.parts if part.letter)])
