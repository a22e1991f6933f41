"""Runs disasters, several at once since they mostly wait, and says of each what was promised and what came of it.

Whoever stops iterating, in whatever way, stops them all: every stage takes down what it put up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from orchestrator.drill import measure
from orchestrator.drill.disasters import Disaster
from orchestrator.drill.stage import Stage, Stuck

AT_ONCE = 4
LATE_S = 15.0  # so much longer than the bound a broken promise is watched, to say how badly it was broken
AFTER_S = 20.0  # for the proof, and for the guardian's own end


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one disaster. `problem` is None when the promise was kept and nothing was left."""

    disaster: Disaster
    finished_by: str
    unclaimed_s: float | None  # None: it never came to that
    problem: str | None

    @property
    def ok(self) -> bool:
        return self.problem is None


def rehearse(disasters: Sequence[Disaster], directory: Path) -> Generator[Finding, None, None]:
    """Findings as they come. The longest waits begin first."""
    stop = threading.Event()
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="disaster") as pool:
        ordered = sorted(disasters, key=lambda disaster: -disaster.bound.seconds)
        futures = [pool.submit(play, each, directory / f"{each.number}", stop) for each in ordered]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)


def play(disaster: Disaster, directory: Path, stop: threading.Event) -> Finding:
    times = {"provision_s": disaster.provision_s, "delete_s": disaster.delete_s}
    with Stage(directory, speed=disaster.speed, settings={**times, **disaster.settings}, stop=stop) as stage:
        try:
            stage.open()
            for fault in disaster.faults:
                stage.fault(**fault)
            disaster.script(stage)
            _await_the_end(stage, disaster)
        except (Stuck, RuntimeError, OSError) as error:
            return Finding(disaster, "nobody", None, str(error))
        return _judged(stage, disaster)


def _await_the_end(stage: Stage, disaster: Disaster) -> None:
    """Until nothing is billed and everybody went home, or for long enough to know that it will not come to that."""
    assert stage.claim_ended_at is not None
    give_up_at = stage.claim_ended_at + disaster.bound.seconds + LATE_S
    next_gc_at = time.time()
    while stage.billed() and time.time() < give_up_at:
        if disaster.gc and time.time() >= next_gc_at:
            next_gc_at = time.time() + disaster.world.gc_every_s
            stage.gc()
        stage.pause(0.05)
    give_up_at = time.time() + AFTER_S
    while any(stage.left_behind()) and time.time() < give_up_at:
        stage.pause(0.2)


def _judged(stage: Stage, disaster: Disaster) -> Finding:
    assert stage.claim_ended_at is not None
    bills = stage.bills()
    unclaimed_s = measure.unclaimed_s(bills, stage.claim_ended_at, time.time())
    finished_by = measure.finisher(stage.requests("nodes.delete"), bills, stage.deaths)
    problems = [f"left behind: {left}" for left in stage.left_behind()]
    if unclaimed_s > disaster.bound.seconds:
        problems.insert(0, "billed for longer than promised")
    problems += [f"the fault {row['kind']} never struck" for row in stage.faults() if not row["hits"]]
    if len(bills) != 1:
        problems.append(f"{len(bills)} slices were made")
    if disaster.cli_code is not None and stage.cli_code != disaster.cli_code:
        problems.append(f"the CLI ended with {stage.cli_code}, not with {disaster.cli_code}: {stage.last_words()}")
    return Finding(disaster, finished_by, unclaimed_s, "; ".join(problems) or None)
