"""Is the payload's loop faster than the tutorials', on real images? MNIST's CNN, batch 64, on torch_xla's CPU device.

Beside it, as the ceiling of this machine, the same work in PyTorch without XLA: eager, and compiled.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness.loops import Compiled, Took, Work, eager, prepare
from harness.results import Report, judged, options, spread
from harness.xla_loops import official, ours, tutorial

from payload.backends.native import Cpu
from payload.config import Config

STEPS, BATCH = 50, 64
LOOPS: dict[str, Callable[[Work], Took]] = {
    "torch_xla, tutorial: ParallelLoader, `loss.item()` at each step": tutorial,
    "torch_xla, official example: MpDeviceLoader, step closures": official,
    "torch_xla, ours": ours,
    "PyTorch eager, example: DataLoader, `loss.item()` at each step": eager,
    "PyTorch eager, ours": partial(ours, backend=Cpu),
    "PyTorch compiled, ours": partial(ours, backend=Compiled),
}
FIRST, OFFICIAL, OURS, *CEILING = LOOPS
TARGET = 1.6


def main() -> None:
    arguments = options(__doc__ or "", rounds=5, data=True)
    columns = ("loop", "ms a step", "images/s", "× tutorial", "loss, mean of the epoch")
    report = Report("payload_loops.py", "MNIST's CNN, the tutorials' loops and ours", columns)
    config = Config(model="mnist_cnn", examples=STEPS * BATCH, epochs=1, batch_size=BATCH, lr=0.01)
    ms: dict[str, list[float]] = {name: [] for name in LOOPS}
    losses: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        work = prepare(Path(scratch), arguments.data, config)
        for number in range(arguments.rounds + 1):
            first = number % len(LOOPS)
            for name in (*[*LOOPS][first:], *[*LOOPS][:first]):
                took = LOOPS[name](work)
                losses[name] = took.losses[0]
                if number:  # the first round compiles
                    ms[name].append(took.step_ms(work))
    for name in LOOPS:
        gains = [base / mine for base, mine in zip(ms[FIRST], ms[name], strict=True)]
        rate = BATCH / statistics.median(ms[name]) * 1000
        loss = "(every tenth only)" if name == OFFICIAL else f"{losses[name]:.6f}"
        report.row(name, spread(ms[name], 1), f"{rate:,.0f}", spread(gains), loss)
    gain = statistics.median(base / mine for base, mine in zip(ms[FIRST], ms[OURS], strict=True))
    apart = abs(losses[OURS] / losses[FIRST] - 1)
    behind = statistics.median(mine / best for mine, best in zip(ms[OURS], ms[CEILING[-1]], strict=True))
    report.notes += [
        f"Target: ours at least {TARGET} × the tutorial loop: {gain:.2f} ×, {judged(gain >= TARGET)}; the same "
        f"loss to 4 digits: they differ by {apart:.0e} of it, {judged(apart < 5e-5)}.",
        f"XLA's CPU code takes {behind:.1f} × as long as compiled PyTorch for the same work: it stands in for a TPU, and is "
        "not the way to train on a CPU (`backend: cpu` is).",
        f"{'Real images of MNIST' if arguments.data else 'Drawn digits'}; {STEPS} steps of {BATCH}, one process, all cores, "
        "SGD with momentum, no dropout; rounds in alternation, the order changes, compiling left out.",
        "The tutorials' loops convert and normalize each image at each step, as theirs do with torchvision (here without its "
        "detour by PIL); ours has the bytes on the device.",
    ]
    report.publish(arguments)


if __name__ == "__main__":
    main()
