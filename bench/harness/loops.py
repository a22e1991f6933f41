"""The training loops that are compared: the tutorials', written as they write them, and the payload's own.

All of them take the same examples in the same order, from the same first weights, at the same learning rates, so that their
losses must agree. Each answers what an epoch took, from its first batch until the device had done everything. Those of
torch_xla are in xla_loops.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from payload import models
from payload.backends import Backend
from payload.backends.native import Cpu
from payload.checkpoints import Checkpoints
from payload.clock import Clock, EpochTime
from payload.config import Config
from payload.data import idx, images, synthetic
from payload.data.sources import DataSource
from payload.job import TrainingJob
from payload.launch.placement import Placement
from payload.run import TrainingRun
from payload.train import make_optimizer, set_rate, share_of_rate, train


@dataclass(frozen=True)
class Took:
    epochs_s: list[float]
    losses: list[float]  # the mean of each epoch

    def step_ms(self, work: Work) -> float:
        """Of the fastest epoch."""
        return min(self.epochs_s) / work.steps * 1000


@dataclass(frozen=True)
class Work:
    job: TrainingJob
    beforehand: bool = False  # the tutorials' images are in floating point and normalised before the clock starts
    look: Callable[[], None] = lambda: None  # called after each epoch, when the device has done everything

    @property
    def steps(self) -> int:
        return (self.job.config.examples or 0) // self.job.config.batch_size

    @cached_property
    def dataset(self) -> Dataset[Any]:
        """The images as the tutorials hold them."""
        source = self.job.source
        assert source is not None, "prepare gave it one"
        data = idx.read_dataset(source.paths, self.job.config.examples)
        one_by_one = OneByOne(data, *images.NORMAL[source.name])
        return TensorDataset(*one_by_one.all()) if self.beforehand else one_by_one


class OneByOne(Dataset[Any]):
    """What `datasets.MNIST(transform=Compose([ToTensor(), Normalize(…)]))` of torchvision does, without its detour by PIL."""

    def __init__(self, data: idx.Dataset, mean: float, deviation: float) -> None:
        self.pixels, self.labels = torch.from_numpy(data.train_images.copy()), data.train_labels
        self.mean, self.deviation = mean, deviation

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        pixels = self.pixels[number].unsqueeze(0).float().div(255)
        return pixels.sub_(self.mean).div_(self.deviation), int(self.labels[number])

    def all(self) -> tuple[torch.Tensor, torch.Tensor]:
        pixels = self.pixels.unsqueeze(1).float().div_(255)
        return pixels.sub_(self.mean).div_(self.deviation), torch.from_numpy(self.labels.copy()).long()


def prepare(directory: Path, data: Path | None, config: Config, backend: str = "xla") -> Work:
    """Real images from `data`, drawn ones without; `config.examples` of them."""
    examples = config.examples or 0
    if data is None:
        for split, count in (("train", examples), ("test", 100)):
            drawn, labels = synthetic.draw(split, count)
            idx.write_array(directory / idx.FILES[f"{split}_images"], drawn)
            idx.write_array(directory / idx.FILES[f"{split}_labels"], labels)
    paths = idx.locate(data or directory)
    assert paths is not None, f"{data}: the four IDX files are not there"
    name = "synthetic" if data is None else "mnist"
    config = replace(config, dataset=name, eval=False, checkpoint=False)
    job = TrainingJob(
        config=config,
        placement=Placement(
            "cuda" if backend == "cuda" else "cpu", worker=0, workers=1, processes=1, artifacts=str(directory)
        ),
        source=DataSource(name, name, "a benchmark", paths, examples, examples, {}),
        backend=backend,
        meet_at="",
        started=0.0,
        data_began=0.0,
        data_ended=0.0,
        scratch=directory,
    )
    return Work(job)


class ExampleCnn(models.MnistCnn):
    """The same weights as ours, put together as in PyTorch's MNIST example, without its dropout."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.conv1(x))
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        scores: torch.Tensor = self.fc2(functional.relu(self.fc1(torch.flatten(x, 1))))
        return scores


def example_network(config: Config) -> torch.nn.Module:
    ours = models.build(config.model, config.seed)
    if config.model != "mnist_cnn":
        return ours
    theirs = ExampleCnn()
    theirs.load_state_dict(ours.state_dict())
    return theirs


def batches(work: Work, **loading: Any) -> tuple[DataLoader[Any], DistributedSampler[Any]]:
    """DataLoader (`loading`: its options) and DistributedSampler, as the multi-core tutorials set them up."""
    config = work.job.config
    sampler: DistributedSampler[Any] = DistributedSampler(work.dataset, 1, 0, seed=config.seed, drop_last=True)
    return DataLoader(work.dataset, config.batch_size, sampler=sampler, drop_last=True, **loading), sampler


class Tutorial:
    """The part of their loops that is the same: set up, and one step."""

    def __init__(self, work: Work, device: torch.device, **loading: Any) -> None:
        self.work, self.config, self.loading = work, work.job.config, loading
        self.model = example_network(self.config).to(device).train()
        self.optimizer = make_optimizer(self.config, self.model)
        self.all_steps, self.done = self.config.epochs * work.steps, 0

    def backward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        set_rate(self.optimizer, self.config.lr * share_of_rate(self.done, self.all_steps))
        self.done += 1
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss

    def run(self, epoch_losses: Callable[[Iterable[Any]], list[float]], drain: Callable[[], None]) -> Took:
        took = Took([], [])
        loader, sampler = batches(self.work, **self.loading)  # reading the files is no part of an epoch
        for epoch in range(1, self.config.epochs + 1):
            drain()
            began = time.perf_counter()
            sampler.set_epoch(epoch)
            losses = epoch_losses(loader)
            drain()
            took.epochs_s.append(time.perf_counter() - began)
            took.losses.append(sum(losses) / len(losses))
            self.work.look()
        return took


def eager(work: Work, **loading: Any) -> Took:
    """PyTorch's MNIST example on the CPU or a GPU: DataLoader (`loading`: its options), and the loss read at each step."""
    device = torch.device(work.job.placement.device)
    loop = Tutorial(work, device, **loading)

    def epoch(loader: Iterable[Any]) -> list[float]:
        losses = []
        for x, y in loader:
            loss = loop.backward(x.to(device), y.to(device))
            loop.optimizer.step()
            losses.append(loss.item())
        return losses

    return loop.run(epoch, torch.cuda.synchronize if device.type == "cuda" else lambda: None)


class Timed(Clock):
    """Times epochs from outside, whatever the clock within does, but includes that."""

    def __init__(self, *args: Any, look: Callable[[], None] = lambda: None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.epochs_s: list[float] = []
        self._look = look

    def begin_epoch(self) -> None:
        super().begin_epoch()
        self._at = time.perf_counter()

    def end_epoch(self) -> EpochTime:
        took = super().end_epoch()
        self.epochs_s.append(time.perf_counter() - self._at)
        self._look()
        return took


class Compiled(Cpu):
    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        return torch.compile(super().wrap(model))  # type: ignore[return-value]


def silence(line: str) -> None:
    pass


def ours(
    work: Work, backend: Callable[[TrainingJob], Backend], clock: type[Timed] = Timed, *, drained: bool = False
) -> Took:
    """`payload.train.train` itself, with its clock, on one process."""
    job, opened = work.job, backend(work.job)
    timed = clock(
        time.monotonic(),
        path=job.artifacts / "timing.jsonl",
        drain=opened.drain,
        compiles=opened.compiles,
        drained=drained,
        look=work.look,
    )
    found = train(opened, TrainingRun(job, timed, silence, Checkpoints(job.artifacts, {}, silence), opened, silence))
    timed.close()
    return Took(timed.epochs_s, found["train_loss"])
