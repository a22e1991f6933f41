"""`python -m tests.simulation.queue`: play many worlds of the queue, or show one with `--seed N`."""

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter

from tests.simulation.queue.world import world_of

CHUNK = 100


def play_chunk(first: int) -> tuple[list[tuple[int, str, str]], int, int]:
    """Return what was broken in these worlds, how many steps they had, and how often a slice was passed over."""
    broken, steps, passed_over = [], 0, 0
    for seed in range(first, first + CHUNK):
        world = world_of(seed)
        found = world.play()
        steps, passed_over = steps + world.steps, passed_over + world.oracle.passed_over
        if found is not None:
            broken.append((seed, found.rule, str(found)))
    return broken, steps, passed_over


def play_many(first: int, worlds: int, processes: int) -> int:
    began, steps, over = time.perf_counter(), 0, 0
    all_broken: list[tuple[int, str, str]] = []
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for broken, made, passed_over in pool.imap(play_chunk, range(first, first + worlds, CHUNK)):
            steps, over, all_broken = steps + made, over + passed_over, [*all_broken, *broken]
            for seed, _, text in broken:
                print(f"seed {seed}: {text}", flush=True)
    took = time.perf_counter() - began
    print(
        f"{worlds} worlds, {len(all_broken)} broken {dict(Counter(rule for _, rule, _ in all_broken))}; {took:.0f} s, "
        f"{1000 * took * processes / worlds:.1f} ms and {steps / worlds:.0f} steps each; passed over {over} times"
    )
    if all_broken:
        show(all_broken[0][0])
    return 1 if all_broken else 0


def show(seed: int) -> int:
    world = world_of(seed, trace=True)
    found = world.play()
    print(f"seed {seed}: {world.plan}", *world.trace, sep="\n")
    return 0 if found is None else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.queue", description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--worlds", type=int, default=10_000)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.seed is not None:
        return show(options.seed)
    return play_many(options.first, options.worlds, options.processes)


if __name__ == "__main__":
    sys.exit(main())
