"""What telling the time costs, and what reading the loss at each step costs, where the loop is all there is: a small MLP.

`payload.train.train` itself runs, on torch_xla's CPU device, with four clocks in alternation: one that does not look, the
stamped one, the drained one, and the stamped one while each step's loss is read. Beside them, the tutorials' loop.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness.loops import Timed, Took, Work, prepare
from harness.results import Report, judged, options, spread
from harness.xla_loops import Reading, ours, tutorial

from payload.config import Config

EXAMPLES, EPOCHS, BATCH = 10_000, 6, 64  # the first epoch compiles, the fastest of the others counts


class Blind(Timed):
    """Never looks at a step, nor at the compile counter."""

    def step(self, epoch: int, step: int) -> None:
        pass


LOOPS: dict[str, Callable[[Work], Took]] = {
    "ours, no clock": partial(ours, clock=Blind),
    "ours, stamped": ours,
    "ours, drained": partial(ours, drained=True),
    "ours, stamped, loss read at each step": partial(ours, backend=Reading),
    "tutorial: ParallelLoader, `loss.item()` at each step": tutorial,
}
NO_CLOCK, STAMPED, _, READ, TUTORIAL = LOOPS


def cost_of_a_stamp(directory: Path) -> float:
    """Microseconds of processor time of `Clock.step` alone, writing and the look at the compile counter included."""
    from torch_xla.debug import metrics

    def compiles() -> int:
        return int(metrics.counter_value("UncachedCompile") or 0)

    clock = Timed(time.monotonic(), path=directory / "stamps.jsonl", compiles=compiles)
    began = time.thread_time()
    for step in range(100_000):
        clock.step(1, step)
    seconds = time.thread_time() - began
    clock.close()
    return seconds * 10


def main() -> None:
    arguments = options(__doc__ or "", rounds=7)
    columns = ("loop", "ms a step", "× stamped")
    report = Report("payload_clock.py", "what the clock and reading the loss cost", columns)
    ms: dict[str, list[float]] = {name: [] for name in LOOPS}
    with tempfile.TemporaryDirectory() as scratch:
        work = prepare(Path(scratch), None, Config(model="mlp", examples=EXAMPLES, epochs=EPOCHS, batch_size=BATCH))
        for number in range(arguments.rounds + 1):
            first = number % len(LOOPS)
            for name in (*[*LOOPS][first:], *[*LOOPS][:first]):
                took = LOOPS[name](work)
                if number:  # in the first round all is new
                    ms[name].append(took.step_ms(work))
        stamp_us = cost_of_a_stamp(Path(scratch))
    times = {name: [other / mine for other, mine in zip(ms[name], ms[STAMPED], strict=True)] for name in LOOPS}
    for name in LOOPS:
        report.row(name, spread(ms[name], 2), spread(times[name], 2))
    gain, reading = statistics.median(times[TUTORIAL]), statistics.median(times[READ])
    share = stamp_us / 1000 / statistics.median(ms[NO_CLOCK])
    report.notes += [
        f"Target: the stamped clock costs at most 1 %: {stamp_us:.1f} µs of processor time a lap, {100 * share:.2f} % of a "
        f"step, {judged(share <= 0.01)}. (The third column is too noisy to show it.)",
        f"Target: at least 1.8 × the tutorials' loop, which reads the loss at each step: {gain:.2f} ×, "
        f"{judged(gain >= 1.8)}. Of that, {reading:.2f} × is the reading alone: the same loop of ours with it.",
        f"torch_xla on the CPU, one process; mlp, batch {BATCH}, {EXAMPLES // BATCH} steps an epoch; the fastest epoch of "
        f"{EPOCHS - 1} a round, without the first; the order changes.",
    ]
    report.publish(arguments)


if __name__ == "__main__":
    main()
