"""Is the payload's loop faster than the tutorials' on a GPU, what does its clock cost, and what would its kernels gain?

MNIST's CNN, or `--model`. No GPU has run this yet: on the CPU (`--backend cpu`) it only shows that it works.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness.loops import Timed, Took, Work, eager, ours, prepare
from harness.results import Report, judged, options, spread

from payload.backends.native import Cpu, Cuda, Native
from payload.config import MODELS, Config

EXAMPLES, EPOCHS, BATCH = 10_000, 5, 128  # the fastest epoch counts
TARGET = 1.5


class Blind(Timed):
    """Never looks at a step."""

    def step(self, epoch: int, step: int) -> None:
        pass


def loops(backend: type[Native]) -> dict[str, Callable[[Work], Took]]:
    class Reading(backend):  # type: ignore[misc, valid-type]
        """Waits for the loss of each step."""

        def step(self, optimizer: torch.optim.Optimizer, also: torch.Tensor) -> torch.Tensor:
            also = super().step(optimizer, also)
            also[0].item()
            return also

    class Fastest(backend):  # type: ignore[misc, valid-type]
        """Looks for the fastest kernels, which need not be the same in the next process."""

        def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
            kernels(benchmark=True)
            return super().wrap(model)

    class Compiled(backend):  # type: ignore[misc, valid-type]
        def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
            return torch.compile(super().wrap(model))  # type: ignore[return-value]

    def tutorial(work: Work, **loading: Any) -> Took:
        kernels()
        return eager(work, **loading)

    def lower(precision: str, work: Work) -> Took:
        return ours(replace(work, job=replace(work.job, config=replace(work.job.config, precision=precision))), backend)

    mine = partial(ours, backend=backend)
    ahead = {"num_workers": 1, "persistent_workers": True, "pin_memory": backend is Cuda}
    found: dict[str, Callable[[Work], Took]] = {
        "tutorial: DataLoader, `loss.item()` at each step": tutorial,
        "tutorial, a process that loads ahead, pinned memory": partial(tutorial, **ahead),
        "ours": mine,
        "ours, no clock": partial(mine, clock=Blind),
        "ours, drained": partial(mine, drained=True),
        "ours, loss read at each step": partial(ours, backend=Reading),
        "ours, `cudnn.benchmark`": partial(ours, backend=Fastest),
        "ours, compiled": partial(ours, backend=Compiled),
        "ours, bf16": partial(lower, "bf16"),
    }
    return found | ({"ours, fp16": partial(lower, "fp16")} if backend is Cuda else {})


def kernels(*, benchmark: bool = False) -> None:
    """PyTorch's defaults, in place of the settings of the backend."""
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = benchmark, False


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--model", choices=MODELS, default="mnist_cnn")
    parser.add_argument("--backend", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="(default: %(default)s)")
    return options(__doc__ or "", rounds=7, data=True, parents=[parser])


def main() -> None:
    asked = arguments()
    device = torch.cuda.get_device_name() if asked.backend == "cuda" else "CPU"
    report = Report(
        "payload_gpu.py", f"{asked.model} on one {device}", ("loop", "ms a step", "images/s", "× tutorial", "loss")
    )
    config = Config(model=asked.model, examples=asked.examples, epochs=EPOCHS, batch_size=BATCH, lr=0.01)
    runs = loops(Cuda if asked.backend == "cuda" else Cpu)
    ms: dict[str, list[float]] = {name: [] for name in runs}
    losses: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        work = prepare(Path(scratch), asked.data, config, asked.backend)
        for number in range(asked.rounds + 1):
            first = number % len(runs)
            for name in (*[*runs][first:], *[*runs][:first]):
                took = runs[name](work)
                losses[name] = took.losses[-1]
                if number:  # in the first round all is new
                    ms[name].append(took.step_ms(work))
    plain, ahead, mine, blind, *_ = runs
    for name in runs:
        gains = [base / other for base, other in zip(ms[plain], ms[name], strict=True)]
        rate = BATCH / statistics.median(ms[name]) * 1000
        report.row(name, spread(ms[name], 3), f"{rate:,.0f}", spread(gains), f"{losses[name]:.6f}")
    against = {
        name: statistics.median(b / m for b, m in zip(ms[name], ms[mine], strict=True))
        for name in (plain, ahead, blind)
    }
    report.notes += [
        f"Target: ours at least {TARGET} × the tutorial loop: {against[plain]:.2f} ×, "
        f"{judged(against[plain] >= TARGET)}; {against[ahead]:.2f} × the one that loads ahead.",
        f"Without the clock, a step takes {against[blind]:.3f} × as long.",
        f"{'Real images of MNIST' if asked.data else 'Drawn digits'}, {asked.examples:,}; batch {BATCH}; the fastest of "
        f"{EPOCHS} epochs a round, the order changes; one process; torch {torch.__version__}. Loss: that of the last epoch.",
    ]
    report.publish(asked)


if __name__ == "__main__":
    main()
