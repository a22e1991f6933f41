"""Training, from the first image to the last artifact, in the order in which it happens.

Every process runs `train` with its own `backend` (payload/backends): the same lines on one core of a TPU, on all of them, and
on the CPU. They only differ in which examples they see.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch.nn import functional

from payload import artifacts, batches, idx, models
from payload.backends import Backend, check_world
from payload.clock import Clock
from payload.config import Config
from payload.failures import Diverged
from payload.job import Job
from payload.placement import share

MEAN, SPREAD = 0.1307, 0.3081  # of MNIST's pixels, as fractions of white; near enough for its relatives
RISE = 0.2  # of the run, during which the learning rate grows
SIGN_OF_LIFE_S = 20.0

Say = Callable[[str], None]


def train(backend: Backend, job: Job, clock: Clock, say: Say) -> dict[str, Any]:
    """Train, evaluate, and answer the results. Only process 0 of all writes files."""
    config = job.config
    check_world(backend)

    # The images go to the device once, as the bytes they are. An epoch then moves only the numbers of the examples.
    with clock.span("data"):
        data = idx.read_dataset(job.source.paths, config.examples)
        images, labels = to_device(data.train_images, backend), to_device(data.train_labels, backend)
    examples, steps = len(images), len(data.train_labels) // config.batch_size
    local = share(config.batch_size, backend.world, examples)
    of = f" of {job.source.of:,}" if examples != job.source.of else ""
    say(
        f"{backend.name} ×{backend.world} · {job.source.name} {examples:,}{of} images · "
        f"batch {config.batch_size} · {config.precision}"
    )

    model = models.build(config.model, config.seed).to(backend.device)
    optimizer = make_optimizer(config, model)
    history: list[dict[str, Any]] = []

    # Losses and hits add up on the device: reading a number at each step would make the device wait for us.
    totals = torch.zeros(2, device=backend.device)
    backend.sync()

    for epoch in range(1, config.epochs + 1):
        mine = batches.train_batches(
            examples, config.batch_size, rank=backend.rank, world=backend.world, seed=config.seed, epoch=epoch
        )
        clock.begin_epoch()
        for step, numbers in enumerate(backend.loader(mine), start=1):
            x, y = pixels(images, numbers), labels.index_select(0, numbers).long()
            with backend.autocast():
                scores = model(x)
            loss = functional.cross_entropy(scores.float(), y)
            optimizer.zero_grad()
            loss.backward()
            totals += torch.stack([loss.detach() * local, (scores.argmax(1) == y).sum().float()])
            set_rate(optimizer, config.lr * share_of_rate((epoch - 1) * steps + step - 1, config.epochs * steps))
            backend.step(optimizer)
            backend.sync()
            clock.step(epoch, step)
            if backend.rank == 0 and clock.every(SIGN_OF_LIFE_S):
                so_far = check_loss(totals.cpu()[0].item() / (step * local), epoch)
                say(f"epoch {epoch}/{config.epochs}  step {step:,}/{steps:,}  loss {so_far:.3f}")
        took = clock.end_epoch()

        loss_sum, hits = backend.sum(totals).tolist()
        totals.zero_()
        backend.sync()
        seen = steps * config.batch_size
        rate = took.warm_steps * config.batch_size / took.seconds if took.warm_steps else None
        facts = {
            "loss": check_loss(loss_sum / seen, epoch),
            "accuracy": hits / seen,
            "images": seen,
            "steps": steps,
            "images_per_s": rate,
        }
        clock.epoch_line(epoch, took, **facts)
        history.append({"epoch": epoch, **facts, "seconds": took.seconds, "warm_steps": took.warm_steps})
        say(
            f"epoch {epoch}/{config.epochs}  loss {facts['loss']:.3f}  acc {100 * facts['accuracy']:.1f} %  "
            f"{took.seconds:.1f} s  {rate or 0:,.0f} images/s"
        )
        clock.said()
        if config.checkpoint and backend.rank == 0:
            with clock.span("checkpoint"):
                save_checkpoint(job, model, optimizer, epoch)

    tested: dict[str, Any] = {}
    if config.eval:
        with clock.span("eval"):
            tested = evaluate(backend, model, data.test_images, data.test_labels, clock)
        say(
            f"test accuracy {100 * tested['test_accuracy']:.2f} % of {tested['test_examples']:,} images  "
            f"{clock.spans['eval']:.1f} s"
        )
    return results(backend, job, clock, history, tested, examples)


def to_device(array: Any, backend: Backend) -> torch.Tensor:
    return torch.from_numpy(array.copy()).to(backend.device)  # a copy: what was read from the file is read-only


def pixels(images: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Bytes to normalised numbers, on the device: [n, rows, columns] to [n, 1, rows, columns]."""
    return (images.index_select(0, numbers).unsqueeze(1).float() / 255 - MEAN) / SPREAD


def make_optimizer(config: Config, model: torch.nn.Module) -> torch.optim.Optimizer:
    if config.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=config.lr)
    return torch.optim.SGD(model.parameters(), lr=config.lr, momentum=config.momentum)


def share_of_rate(step: int, steps: int) -> float:
    """The learning rate rises in a straight line to `lr` over the first fifth of the run, then falls to zero.

    Compared with a constant rate this is worth half a point of test accuracy after three epochs of 10,000 images.
    """
    return min((step + 1) / (RISE * steps), (steps - step) / (steps * (1 - RISE)), 1.0)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """A number in Python: XLA takes it as an input of the program, so a new one compiles nothing."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def check_loss(loss: float, epoch: int) -> float:
    if not math.isfinite(loss):
        raise Diverged(f"the loss is {loss} in epoch {epoch}: training diverged; a smaller lr may help")
    return loss


@torch.no_grad()
def evaluate(backend: Backend, model: torch.nn.Module, images: Any, labels: Any, clock: Clock) -> dict[str, Any]:
    """Over all test examples exactly once: the padding of the last batches weighs nothing, and the count is checked."""
    images, labels = to_device(images, backend), to_device(labels, backend)
    mine = batches.eval_batches(len(images), rank=backend.rank, world=backend.world)
    totals = torch.zeros(3, device=backend.device)
    backend.sync()
    clock.stamp()
    for numbers, weights in backend.loader(mine):
        y = labels.index_select(0, numbers).long()
        with backend.autocast():
            scores = model(pixels(images, numbers))
        losses = functional.cross_entropy(scores.float(), y, reduction="none")
        hits = (scores.argmax(1) == y).float()
        totals += torch.stack([(losses * weights).sum(), (hits * weights).sum(), weights.sum()])
        backend.sync()
        clock.stamp()
    loss_sum, hits_sum, counted = backend.sum(totals).tolist()
    assert counted == len(images), f"evaluated {counted} examples of {len(images)}"
    return {
        "test_accuracy": hits_sum / counted,
        "test_loss": loss_sum / counted,
        "test_correct": int(hits_sum),
        "test_examples": int(counted),
    }


def save_checkpoint(job: Job, model: torch.nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    state = {
        "schema": 1,
        "epoch": epoch,
        "config": asdict(job.config),
        "model": on_host(model.state_dict()),
        "optimizer": on_host(optimizer.state_dict()),
    }
    artifacts.write_whole(job.artifacts / "checkpoint.pt", lambda file: torch.save(state, file))


def on_host(value: Any) -> Any:
    """The same nest of dictionaries and lists with every tensor on the CPU, so that any machine can load it."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: on_host(item) for key, item in value.items()}
    if isinstance(value, list):
        return [on_host(item) for item in value]
    return value


def results(
    backend: Backend, job: Job, clock: Clock, history: list[dict[str, Any]], tested: dict[str, Any], examples: int
) -> dict[str, Any]:
    """metrics.json."""
    warm_images = sum(line["warm_steps"] for line in history) * job.config.batch_size
    seconds = {f"{name}_s": clock.spans[name] for name in ("import", "data", "compile", "train", "eval", "checkpoint")}
    return {
        "schema": 1,
        **tested,
        "train_loss": [line["loss"] for line in history],
        "images_per_s": warm_images / clock.spans["train"] if warm_images else None,
        "seconds": {**seconds, "total_s": clock.total_s()},
        "epochs": history,
        "world": {
            "device": backend.name,
            "processes": backend.world,
            "workers": job.placement.workers,
            "emulated": job.placement.emulated,
            "notes": list(job.placement.notes),
        },
        "dataset": {
            "name": job.source.name,
            "requested": job.source.requested,
            "synthetic": job.source.is_synthetic,
            "train_examples": examples,
            "of": job.source.of,
        },
        "batch_size": job.config.batch_size,
        "precision": job.config.precision,
        "timing": job.config.timing,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
