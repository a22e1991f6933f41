"""What the images cost in memory: on the device as the bytes they are, or in floating point as the tutorials hold them.

Each loop trains a small MLP on 60,000 images in a process of its own, on torch_xla's CPU device, whose memory is the host's.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from harness.results import Report, options, spread

from payload.data import idx, synthetic

EXAMPLES, EPOCHS, BATCH = 60_000, 3, 256
LOOPS = {
    "ours": "ours: bytes on the device",
    "tutorial": "tutorial: bytes, each image converted at each step; ParallelLoader",
    "beforehand": "tutorial: TensorDataset in floating point; ParallelLoader",
}
MB = 1e6


def main() -> None:
    arguments = options(__doc__ or "", rounds=3)
    columns = ("loop", "MB before", "MB more after epoch 1", "after epoch 2", "after epoch 3", "peak MB more")
    report = Report("payload_memory.py", "resident memory of the images", columns)
    found: dict[str, list[list[float]]] = {name: [] for name in LOOPS}
    with tempfile.TemporaryDirectory() as scratch:
        draw(Path(scratch))
        for _ in range(arguments.rounds):
            for name in LOOPS:
                done = subprocess.run(
                    [sys.executable, __file__, "--measure", name, scratch],
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                found[name].append(json.loads(done.stdout.splitlines()[-1]))
    for name, words in LOOPS.items():
        report.row(words, *(spread([figures[column] for figures in found[name]], 0) for column in range(5)))
    report.notes += [
        f"{EXAMPLES:,} images of 28 × 28: {EXAMPLES * 784 / MB:.0f} MB as bytes, {EXAMPLES * 784 * 4 / MB:.0f} MB as "
        "32-bit floating point. Before: torch_xla is imported and has run such a training on 512 images.",
        "Whatever holds the images on the way from the file counts, too. mlp, so that the network weighs nothing.",
    ]
    report.publish(arguments)


def draw(scratch: Path) -> None:
    """Generate the images in a separate process, so that no loop's memory includes it."""
    for name, examples in (("warm-up", 2 * BATCH), ("whole", EXAMPLES)):
        (scratch / name).mkdir()
        for split, count in (("train", examples), ("test", 100)):
            images, labels = synthetic.draw(split, count)
            idx.write_array(scratch / name / idx.FILES[f"{split}_images"], images)
            idx.write_array(scratch / name / idx.FILES[f"{split}_labels"], labels)


def measure(name: str, scratch: Path) -> list[float]:
    """MB before, MB more after each epoch, and at the peak. Runs in a process of its own."""
    import psutil
    from harness import loops, xla_loops

    from payload.config import Config

    process = psutil.Process()
    loop = xla_loops.ours if name == "ours" else xla_loops.tutorial
    config = Config(model="mlp", batch_size=BATCH, lr=0.01)
    warm_up, whole = scratch / "warm-up", scratch / "whole"

    def resident_mb() -> float:
        return float(process.memory_info().rss / MB)

    after: list[float] = []
    for directory, examples, epochs in ((warm_up, 2 * BATCH, 1), (whole, EXAMPLES, EPOCHS)):
        work = loops.prepare(directory, directory, replace(config, examples=examples, epochs=epochs))
        loop(replace(work, beforehand=name == "beforehand", look=lambda: after.append(resident_mb())))
    before, *later = after
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB
    return [before, *(mb - before for mb in (*later, peak))]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], Path(sys.argv[3]))))
    else:
        main()
