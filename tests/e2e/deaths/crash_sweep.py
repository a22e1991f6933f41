"""Every crash point with real processes: `make kill-sweep` (half an hour of two cores; stops by itself).

SIGKILL before and after each effect of `tpujob run`, for the CLI alone (its guardian finishes, without another command), for
CLI and guardian at one moment (the next command finishes) and for everything on this machine, which stays off (the watchdog on
the VM finishes). Then the guardian's own points, and every effect of the recovery that it starts. The emulator's billing
meter says how long anything billed without a claim. Ends with 1 if a point was not clean, or was never reached.
"""

import argparse
import collections
import contextlib
import functools
import operator
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from orchestrator.promise.guardian_process import CRASH_POINTS
from tests import evidence
from tests.cli_fixture import kill_all
from tests.faults.world import World, is_stopped
from tests.waiting import until

OPEN_PER_TURN = 3  # worlds for each that may act: most of them wait for the cloud's clock
SIDES = ("before", "after")
RECORDINGS, TRIES = 3, 5  # how often a run looks again depends a little on the moment
CLI, BOTH, LOCAL, GUARDIAN, RECOVERY = "CLI", "CLI and guardian", "everything local", "guardian", "recovery"
JOB_RUNS = "StartPhase:2:after"  # where the CLI is killed when it is not the one whose points are swept
JOB = "name: swept\ntpu: {zone: us-central1-a}\ncode: code\nsetup: test -f main.sh\ncommand: bash main.sh\n"


@dataclass(frozen=True)
class Point:
    """Whose point, and which: `Create:1:before` of a program, `woke:1` of the guardian."""

    killed: str
    at: str


@dataclass(frozen=True)
class Verdict:
    point: Point
    unclaimed_s: float = 0.0
    bound_s: float = 0.0
    problem: str | None = None
    reached: bool = True


class NotReached(Exception):
    """The program ended before it came to that point."""


def world(directory: Path) -> World:
    made = World.make(directory)
    (directory / "code").mkdir()
    (directory / "code" / "main.sh").write_text('echo result > "$TPUJOB_ARTIFACTS/result.txt"\n')
    made.job(JOB)
    return made


def points_of_run(w: World) -> list[str]:
    """Every effect of a run, by name and number, both sides; those that several runs have in common."""
    counts = []
    for _ in range(RECORDINGS):
        record = w.directory / f"record{len(w.commands)}"
        done = w.do("run", "job.yaml", env={"TPUJOB_CRASH_AT": f"record:{record}"})
        assert done.code() == 0, done.err
        counts.append(collections.Counter(record.read_text().split()))
    return _named(functools.reduce(operator.and_, counts))


def points_of_recovery(w: World) -> list[str]:
    record = w.directory / "record-recovery"
    _crash(w, JOB_RUNS, {"TPUJOB_RECOVERY_CRASH_AT": f"record:{record}"})
    w.until_no_process()
    return _named(collections.Counter(record.read_text().split()))


def _named(counts: collections.Counter[str]) -> list[str]:
    return [f"{name}:{nth}:{side}" for name in counts for nth in range(1, counts[name] + 1) for side in SIDES]


def all_points(run: Iterable[str], recovery: Iterable[str]) -> list[Point]:
    points = [Point(killed, at) for at in run for killed in (CLI, BOTH, LOCAL)]
    points += [Point(GUARDIAN, f"{name}:1") for name in CRASH_POINTS]
    return points + [Point(RECOVERY, at) for at in recovery]


# -- one point -----------------------------------------------------------------------------------------------------


def strike(w: World, point: Point) -> Verdict:
    """Kill at the point, let what is left finish, and ask the meter. Leaves a clean world if it was clean."""
    try:
        since, bound_s = PLAYS[point.killed](w, point.at)
    except NotReached:
        return Verdict(point, reached=False)
    except AssertionError as error:
        return Verdict(point, problem=str(error))
    unclaimed_s = w.unclaimed_s(since)
    problem = None
    if w.alive() or w.states() - {"gone"}:
        problem = f"alive {w.alive()}, ledger {w.states()}"
    elif unclaimed_s > bound_s:
        problem = f"{unclaimed_s:.1f} s unclaimed, promised were {bound_s:.1f} s"
    return Verdict(point, unclaimed_s, bound_s, problem)


def kill_cli(w: World, at: str) -> tuple[float, float]:
    died_at = _crash(w, at)
    w.until_no_process()
    last = w.leases()[-1:]
    if last and last[0]["state"] == "intent" and last[0]["sent_at"] is None:
        _next_command(w)  # killed before the guardian was armed, so before anything was sent: only the ledger is open
    return died_at, w.bounds.guardian()


def kill_both(w: World, at: str) -> tuple[float, float]:
    _pause(w, at)
    w.power_cut()
    back_at = time.time()
    _next_command(w)
    return back_at, w.bounds.guardian()


def kill_local(w: World, at: str) -> tuple[float, float]:
    _pause(w, at)
    died_at = w.power_cut()
    w.until_nothing_bills()
    _next_command(w)  # it only closes the ledger
    return died_at, w.bounds.watchdog(boot=True)


def kill_guardian(w: World, at: str) -> tuple[float, float]:
    """It dies at once (`armed`), or when it is needed. `duty` it has only while something is held."""
    env = {"TPUJOB_GUARDIAN_CRASH_AT": at}
    if at.startswith("duty"):
        return _kill_guardian_on_duty(w, env)
    died_at = _crash(w, JOB_RUNS, env)
    w.until_no_process()
    w.until_nothing_bills()
    _next_command(w)
    return died_at, w.bounds.watchdog(boot=True)


def _kill_guardian_on_duty(w: World, env: dict[str, str]) -> tuple[float, float]:
    up = w.do("up", "held", "--zone", "us-central1-a", env=env)
    assert up.code() == 0, up.err
    w.until_no_process()  # the guardian took its duty, and died of it
    assert len(w.alive()) == 1, "what is held was deleted"
    down_at = time.time()
    assert w.do("down", "held").code() == 0
    return down_at, w.bounds.command()


def kill_recovery(w: World, at: str) -> tuple[float, float]:
    """The guardian starts another one."""
    _crash(w, JOB_RUNS, {"TPUJOB_RECOVERY_CRASH_AT": f"{at}:STOP"})
    stopped: list[psutil.Process] = []

    def stands_still() -> bool:
        stopped[:] = [process for process in w.local() if is_stopped(process.pid)]
        return bool(stopped) or not w.local()

    until(stands_still, f"{at} of the recovery")
    if not stopped:
        raise NotReached
    kill_all(stopped)
    died_at = time.time()
    w.until_no_process()
    return died_at, w.bounds.guardian()


PLAYS = {CLI: kill_cli, BOTH: kill_both, LOCAL: kill_local, GUARDIAN: kill_guardian, RECOVERY: kill_recovery}


def _crash(w: World, at: str, env: dict[str, str] | None = None) -> float:
    command = w.do("run", "job.yaml", env={"TPUJOB_CRASH_AT": at, **(env or {})})
    if command.code() == 0:
        raise NotReached
    assert command.code() == -signal.SIGKILL, f"{at}: ended with {command.code()}: {command.err}"
    return time.time()


def _pause(w: World, at: str) -> None:
    try:
        w.pause(at, "run", "job.yaml")
    except AssertionError:
        if w.commands[-1].ended and w.commands[-1].code() == 0:
            raise NotReached from None
        raise


def _next_command(w: World) -> None:
    after = w.do("status")
    assert after.code() == 0, after.err


# -- all of them ---------------------------------------------------------------------------------------------------


def sweep(points: list[Point], directory: Path, at_once: int) -> Generator[Verdict, None, None]:
    """Side by side, each thread in a world of its own, which serves point after point for as long as it stays clean.

    So many act `at_once`; more of them only wait.
    """
    own = threading.local()
    worlds: list[World] = []
    turns = threading.Semaphore(at_once)

    def play(point: Point) -> Verdict:
        verdict = Verdict(point, reached=False)
        for _ in range(TRIES):
            with contextlib.ExitStack() as turn:
                turns.acquire()
                turn.callback(turns.release)
                if getattr(own, "world", None) is None:
                    own.world = world(directory / f"world{len(worlds)}-{threading.get_ident()}")
                    worlds.append(own.world)
                own.world.release_slot = turn.close
                verdict = strike(own.world, point)
            if verdict.problem is not None:
                verdict = replace(verdict, problem=f"{verdict.problem}\n{evidence.of(own.world.directory)}")
                own.world.close()
                own.world = None
            if verdict.reached:
                break
        return verdict

    try:
        with ThreadPoolExecutor(OPEN_PER_TURN * at_once) as pool:
            yield from pool.map(play, points)
    finally:
        for made in worlds:
            made.close()


def table(verdicts: list[Verdict]) -> list[str]:
    lines = [f"{'killed':<18} {'points':>6} {'reached':>7} {'unclean':>7}   worst unclaimed (bound)"]
    for killed in PLAYS:
        own = [verdict for verdict in verdicts if verdict.point.killed == killed]
        if not own:
            continue
        worst = max(own, key=lambda verdict: verdict.unclaimed_s)
        reached, unclean = sum(v.reached for v in own), sum(v.problem is not None for v in own)
        worst_text = f"{worst.unclaimed_s:5.1f} s ({worst.bound_s:.1f} s) at {worst.point.at}"
        lines.append(f"{killed:<18} {len(own):>6} {reached:>7} {unclean:>7}   {worst_text}")
    program = {CLI: "run", BOTH: "run", LOCAL: "run"}
    every, hit = (
        {(program.get(v.point.killed, v.point.killed), v.point.at) for v in some}
        for some in (verdicts, filter(_hit, verdicts))
    )
    return [*lines, f"{len(hit)} of {len(every)} registered points were hit"]


def _hit(verdict: Verdict) -> bool:
    return verdict.reached


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at-once", type=int, default=2 * (os.cpu_count() or 2))
    parser.add_argument("--killed", choices=list(PLAYS), action="append", help="only these")
    parser.add_argument("--at", action="append", help="only these, such as Create:1:before")
    parser.add_argument("--every", type=int, default=1, help="only every so many-th point")
    options = parser.parse_args()
    began = time.monotonic()
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="tpujob-sweep-") as directory:
        first = world(Path(directory) / "first")
        try:
            points = all_points(points_of_run(first), points_of_recovery(first))
        finally:
            first.close()
        points = [point for point in points if not options.killed or point.killed in options.killed]
        points = [point for point in points if not options.at or point.at in options.at][:: options.every]
        for verdict in sweep(points, Path(directory), options.at_once):
            verdicts.append(verdict)
            said = verdict.problem or ("clean" if verdict.reached else "never reached")
            print(f"{verdict.point.killed} at {verdict.point.at}: {said}, {verdict.unclaimed_s:.1f} s", flush=True)
    print(*table(verdicts), f"{len(verdicts)} crash points in {time.monotonic() - began:.0f} s", sep="\n")
    return 0 if all(verdict.reached and verdict.problem is None for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
