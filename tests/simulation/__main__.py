"""`python -m tests.simulation`: run many worlds, or show one with all its events.

--seed N --trace replays one world. --worlds N --from S --processes P runs many and prints violations and speed; --progress
FILE continues where an earlier run was stopped. With --cluster, these are worlds with jobs on a cluster. --deaths kills each
canonical life at every step.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.simulation.model.world import World
from tests.simulation.scenarios.clusters import cluster_world_of
from tests.simulation.scenarios.crash_sweep import SCENARIOS, sweep
from tests.simulation.scenarios.random_worlds import world_of

CHUNK = 250


without: frozenset[str] = frozenset()  # inherited by the worker processes
plain = access = cluster = False


def made(seed: int, *, trace: bool = False) -> World:
    """Return the world of a seed, of the kind that was asked for."""
    if cluster:
        return cluster_world_of(seed, without=without, trace=trace)
    return world_of(seed, without=without, plain=plain, access=access, trace=trace)


def run_chunk(first: int) -> tuple[int, list[tuple[int, str, str]], int]:
    """Run the worlds `first` to `first + CHUNK - 1`. Return their number, the violations and the number of events."""
    broken, events = [], 0
    for seed in range(first, first + CHUNK):
        try:
            result = made(seed).run()
        except Exception as error:  # a bug of the simulator, or one that a program did not catch
            broken.append((seed, "crash", f"{type(error).__name__}: {error}"))
            continue
        events += result.events
        broken += [(seed, violation.invariant, violation.text) for violation in result.violations]
    return CHUNK, broken, events


def chunks(first: int, worlds: int) -> Iterator[int]:
    return iter(range(first, first + worlds, CHUNK))


def run_many(first: int, worlds: int, processes: int, progress: Path | None, *, keep_going: bool) -> int:
    done, total_events, broken_by = 0, 0, Counter[str]()
    if progress is not None and progress.exists():
        saved = json.loads(progress.read_text())
        first, worlds, done = saved["next"], saved["left"], saved["done"]
        broken_by.update(saved["broken"])
    began, fresh = time.perf_counter(), 0
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for count, broken, events in pool.imap(run_chunk, chunks(first, worlds)):
            done, fresh, total_events = done + count, fresh + count, total_events + events
            for seed, invariant, text in broken:
                broken_by[invariant] += 1
                print(f"TPUJOB_SIM_SEED={seed}  {invariant}: {text}", flush=True)
            if progress is not None:
                rest = {"next": first + fresh, "left": worlds - fresh, "done": done, "broken": broken_by}
                progress.write_text(json.dumps(rest))
            if broken and not keep_going:
                pool.terminate()
                break
            if done % 10_000 < CHUNK:
                print(f"{done} worlds, {fresh / (time.perf_counter() - began):.0f} each second", flush=True)
    took = time.perf_counter() - began
    rate = fresh / took
    print(
        f"{done} worlds, {sum(broken_by.values())} violations {dict(broken_by)}; {took:.0f} s, "
        f"{rate:.0f} worlds/s, {rate / processes:.0f} on each core, {total_events / max(fresh, 1):.0f} events each"
    )
    return 1 if broken_by else 0


def die(number: int) -> tuple[str, int, list[str]]:
    """Run all deaths of one scenario."""
    scenario = SCENARIOS[number]
    count, broken = sweep(scenario)
    return scenario.name, count, [f"{kind} dies at step {step}: {r.violations[0].text}" for step, kind, r in broken]


def die_everywhere(processes: int) -> int:
    began, deaths, broken = time.perf_counter(), 0, 0
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for name, count, reports in pool.imap(die, range(len(SCENARIOS))):
            deaths, broken = deaths + count, broken + len(reports)
            print(f"{name}: {count} deaths, {len(reports)} violated something", *reports[:5], sep="\n    ", flush=True)
    took = time.perf_counter() - began
    print(f"{len(SCENARIOS)} lives, {deaths} deaths, {broken} violated something; {took:.0f} s")
    return 1 if broken else 0


def show(seed: int, *, trace: bool) -> int:
    world = made(seed, trace=True)
    print(f"TPUJOB_SIM_SEED={seed}  {world.workload}  faults: {', '.join(world.plan.families) or 'none'}\n{world.plan}")
    result = world.run()
    for line in result.trace if trace else result.trace[-25:]:
        print(line)
    for violation in result.violations:
        print(f"{violation.invariant} broken at {violation.at_s:.3f} s: {violation.text}")
    for layer, took, allowed in result.unclaimed:
        print(f"billed {took:.1f} s without a claim; promised {allowed:.1f} s by {layer}")
    return 1 if result.violations else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TPUJOB_SIM_SEED", "-1")))
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--plain", action="store_true", help="there is enough of everything, and nothing is queued")
    parser.add_argument("--access", action="store_true", help="policies and OS Login in every world")
    parser.add_argument("--cluster", action="store_true", help="jobs on a cluster in every world")
    parser.add_argument("--deaths", action="store_true", help="a death at every step of the canonical lives instead")
    parser.add_argument("--worlds", type=int, default=10_000)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--progress", type=Path, help="a file to go on from, and to keep the state of affairs in")
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("--without", default="", help="families of faults to leave out, separated by commas")
    options = parser.parse_args()
    global without, plain, access, cluster
    plain, access, cluster = options.plain, options.access, options.cluster
    without = frozenset(filter(None, options.without.split(",")))
    if options.seed >= 0:
        return show(options.seed, trace=options.trace)
    if options.deaths:
        return die_everywhere(options.processes)
    return run_many(options.first, options.worlds, options.processes, options.progress, keep_going=options.keep_going)


if __name__ == "__main__":
    sys.exit(main())
