"""Derive the device and the number of processes of this host from the environment, and apply emulation.

`place` is pure: it takes the environment as a mapping. Its notes are printed first in the log and stored in the artifacts, to
distinguish an emulated run from one on a TPU.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from payload.config import Config
from payload.failures import BadConfig

# The PCI IDs by which torch_xla (torch_xla/_internal/tpu.py) and torch_tpu (utils/hardware.py) recognise a TPU.
_GOOGLE_VENDOR = "0x1ae0"
_TPU_DEVICES = {
    **{"0x0027": "v2 or v3", "0x005e": "v4", "0x0062": "v5p", "0x0063": "v5e", "0x006f": "v6e", "0x0076": "v7"},
    "0x0056": "a TPU for tests",
}
# How many processes torch_tpu 0.2.0 starts on one host, by its own table of topologies (utils/hardware.py).
_TORCH_TPU_PROCESSES = {"v4": (1, 2, 4, 8), "v5p": (1, 2, 4, 8), "v5e": (1, 4, 8), "v6e": (1, 4, 8), "v7": (2, 4, 8)}
_NO_TPU = "emulated: one process on this machine's CPU, without a TPU"


@dataclass(frozen=True)
class HostPlace:
    """The accelerators of this host."""

    tpu_chips: int = 0
    gpus: int = 0
    tpu: str = ""  # the TPU generation, such as "v5e"; "" without a TPU


@dataclass(frozen=True)
class Placement:
    device: str  # "tpu", "cuda" or "cpu"; "none" for backend none, which does not know
    worker: int  # index of this host in the slice
    workers: int
    processes: int  # that the supervisor starts on this host; 1 for torch_xla on a TPU, which starts one for each core
    artifacts: str
    coordinator: tuple[str, int] | None = None  # address where the processes of several hosts meet; None: one host
    cores_emulated: int | None = None  # set only where the TPU is emulated
    notes: tuple[str, ...] = ()  # one sentence for each change by the emulation
    hosts: tuple[str, ...] = ()  # addresses of all hosts, by worker; only for backend tpu on several hosts
    topology: str = ""  # the chips of the slice, such as "4x4"; only for backend tpu on several hosts
    # It is the first process of a TPU without the others: what is compiled is looked at, not the results.
    one_of: bool = False

    @property
    def emulated(self) -> bool:
        return self.cores_emulated is not None


def choose_backend(requested: str, environ: Mapping[str, str], host: HostPlace) -> str:
    """Return `requested`, or for "auto" the backend of the best device of the host."""
    if requested != "auto":
        return requested
    if "TPUJOB_EMULATED_CORES" in environ or environ.get("PJRT_DEVICE") or host.tpu_chips:
        return "xla"
    return "cuda" if host.gpus else "cpu"


def place(config: Config, environ: Mapping[str, str], *, host: HostPlace, backend: str) -> tuple[Config, Placement]:
    """Return the configuration to train, with `emulated` applied, and the placement.

    Raises BadConfig if configuration, environment and host do not fit together.
    """
    if config.precision == "fp16" and backend != "cuda":
        raise BadConfig(f"precision: fp16 needs a GPU, and this is backend {backend}; bf16 works everywhere")
    workers = _number(environ, "TPUJOB_WORKERS", 1, least=1)
    worker = _number(environ, "TPUJOB_WORKER", 0, least=0)
    if worker >= workers:
        raise BadConfig(f"TPUJOB_WORKER is {worker}, but TPUJOB_WORKERS is {workers}")
    if config.cores == 1 and workers > 1:
        raise BadConfig(f"cores: 1 is one core of one host, but this slice has {workers} hosts; use a smaller slice")
    emulated = _number(environ, "TPUJOB_EMULATED_CORES", 0, least=1) or None
    coordinator = _coordinator(environ)
    if backend == "none":
        where, notes = environ.get("TPUJOB_ARTIFACTS") or "artifacts", () if emulated is None else (_NO_TPU,)
        return config, Placement("none", worker, workers, 1, where, cores_emulated=emulated, notes=notes)
    device = _device(environ, host, backend)
    if (device != "tpu" or backend == "tpu") and workers > 1 and coordinator is None:
        raise BadConfig("TPUJOB_WORKERS is greater than 1, but TPUJOB_COORDINATOR is not set")
    placement = Placement(
        device=device,
        worker=worker,
        workers=workers,
        processes=1,
        artifacts=environ.get("TPUJOB_ARTIFACTS") or "artifacts",
        coordinator=coordinator if workers > 1 else None,
    )
    if backend == "tpu":
        return config, _torch_tpu(config, placement, environ, host)
    if emulated is not None:
        return _emulate(config, placement, emulated, "XLA:CPU" if backend == "xla" else "the CPU", environ)
    return config, replace(placement, processes=_processes(config.cores, device, backend, host))


def _processes(cores: str | int, device: str, backend: str, host: HostPlace) -> int:
    """Return how many processes the supervisor starts. torch_xla on a TPU is started once; it starts one per core."""
    if device == "tpu" and backend == "xla":
        return 1
    have, what = {"cuda": (host.gpus, "GPUs"), "tpu": (host.tpu_chips, "TPU chips")}.get(device, (0, ""))
    if not what:
        return cores if isinstance(cores, int) else 1
    if not have:
        raise BadConfig(f"backend: {backend}, but this host has no {what}; use backend auto")
    if isinstance(cores, int) and cores > have:
        raise BadConfig(f"cores: {cores} requested, but this host has {_plural(have, what[:-1], what)}")
    return cores if isinstance(cores, int) else have


def _torch_tpu(config: Config, placement: Placement, environ: Mapping[str, str], host: HostPlace) -> Placement:
    """Return the placement for torch_tpu. Checks its requirements, which it reports late, on some hosts, or unclearly."""
    processes = _processes(config.cores, "tpu", "tpu", host)
    supported = _TORCH_TPU_PROCESSES.get(host.tpu)
    if supported is None:
        raise BadConfig(f"backend: tpu, but torch_tpu does not support this TPU ({host.tpu}); backend xla does")
    if processes not in supported:
        counts = f"{', '.join(map(str, supported[:-1]))} or {supported[-1]}"
        raise BadConfig(
            f"cores: {config.cores} is {_plural(processes, 'process', 'processes')}, but on a {host.tpu} host backend tpu "
            f"starts {counts}; backend xla takes all cores or 1"
        )
    if placement.workers == 1:
        return replace(placement, processes=processes)
    if processes != host.tpu_chips:
        raise BadConfig(
            f'cores: {config.cores} of {host.tpu_chips}, but on several hosts backend tpu takes all: cores: "all"'
        )
    hosts, topology = tuple(environ.get("TPUJOB_HOSTS", "").split(",")), environ.get("TPUJOB_TOPOLOGY", "")
    if len(hosts) != placement.workers or not all(hosts):
        raise BadConfig(
            f"TPUJOB_HOSTS is {','.join(hosts)!r}; backend tpu needs the addresses of all {placement.workers} hosts"
        )
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", topology):
        raise BadConfig(
            f"TPUJOB_TOPOLOGY is {topology!r}; backend tpu needs the topology of the whole slice, such as '4x4'"
        )
    chips = math.prod(int(side) for side in topology.split("x"))
    if chips != placement.workers * processes:
        raise BadConfig(
            f"TPUJOB_TOPOLOGY is {topology}, which is {chips:,} chips, but {placement.workers} hosts with "
            f"{_plural(processes, 'chip', 'chips')} each are {placement.workers * processes:,}"
        )
    return replace(placement, processes=processes, hosts=hosts, topology=topology)


def _emulate(
    config: Config, placement: Placement, given: int, stand_in: str, environ: Mapping[str, str]
) -> tuple[Config, Placement]:
    if environ.get("TPUJOB_ONE_OF"):
        note = f"checked: one process of {environ['TPUJOB_ONE_OF']} compiles what each of them would, on {stand_in}"
        return config, replace(placement, processes=1, cores_emulated=given, notes=(note,), one_of=True)
    wanted = config.emulated
    allowed = min(given, wanted.cores or given)
    processes = allowed if config.cores == "all" else min(int(config.cores), allowed)
    cores = _cores_text(config, given, processes)
    notes = [f"emulated: {cores} as {_plural(processes, 'process', 'processes')} on {stand_in}"]
    if wanted.examples is not None:
        notes.append(f"emulated: {wanted.examples:,} training examples instead of {_or_all(config.examples)}")
    if wanted.test_examples is not None:
        notes.append(f"emulated: {wanted.test_examples:,} test examples instead of {_or_all(config.test_examples)}")
    if wanted.epochs is not None:
        notes.append(f"emulated: {_plural(wanted.epochs, 'epoch', 'epochs')} instead of {config.epochs:,}")
    smaller = replace(
        config,
        examples=wanted.examples or config.examples,
        test_examples=wanted.test_examples or config.test_examples,
        epochs=wanted.epochs or config.epochs,
    )
    return smaller, replace(placement, processes=processes, cores_emulated=given, notes=tuple(notes))


def _cores_text(config: Config, given: int, processes: int) -> str:
    if config.cores != "all":
        return _plural(int(config.cores), "core stands", "cores stand")
    return f"{given} cores stand" if given > processes else "all cores of this host stand"


def share(batch_size: int, world: int, examples: int) -> int:
    """Return each process's number of examples of a global batch: equal, so that the mean of means is the mean.

    Raises BadConfig if `batch_size` is no multiple of `world`, or exceeds `examples`.
    """
    if batch_size % world:
        down, up = batch_size // world * world, -(-batch_size // world) * world
        near = f"{down} or {up}" if down else f"{up}"
        raise BadConfig(f"batch_size: {batch_size} is not a multiple of {world} processes; use {near}")
    if batch_size > examples:
        raise BadConfig(f"batch_size: {batch_size} is more than the {examples:,} training examples")
    return batch_size // world


def _device(environ: Mapping[str, str], host: HostPlace, backend: str) -> str:
    emulated = "TPUJOB_EMULATED_CORES" in environ
    if backend != "xla":
        if emulated and backend != "cpu":
            raise BadConfig(
                f"backend: {backend}, but TPUJOB_EMULATED_CORES is set: the TPU is emulated; use xla or cpu"
            )
        return backend
    requested = environ.get("PJRT_DEVICE", "").upper()
    if requested not in ("", "TPU", "CPU"):
        raise BadConfig(f"PJRT_DEVICE is {requested}; this program trains on TPU and CPU")
    if emulated:
        if requested == "TPU":
            raise BadConfig("PJRT_DEVICE is TPU, but TPUJOB_EMULATED_CORES is set: the TPU is emulated")
        return "cpu"
    return requested.lower() or ("tpu" if host.tpu_chips else "cpu")


def look(pci: Path = Path("/sys/bus/pci/devices"), environ: Mapping[str, str] = os.environ) -> HostPlace:
    """Return the accelerators of this host, without torch: importing it takes seconds and starts its runtime."""
    chips = _tpu_chips(pci)
    return HostPlace(tpu_chips=len(chips), gpus=_gpus(environ), tpu=chips[0] if chips else "")


def _tpu_chips(pci: Path) -> list[str]:
    """Return the generation of each TPU chip."""
    vendors = [vendor for vendor in pci.glob("*/vendor") if vendor.read_text().strip() == _GOOGLE_VENDOR]
    ids = [vendor.with_name("device").read_text().strip() for vendor in vendors]
    return [_TPU_DEVICES[each] for each in ids if each in _TPU_DEVICES]


def _gpus(environ: Mapping[str, str]) -> int:
    """Return the number of GPUs visible to this process."""
    if not shutil.which("nvidia-smi", path=environ.get("PATH")):
        return 0
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0  # a driver without a card
    count = sum(line.startswith("GPU ") for line in listed.splitlines())
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count
    return min(count, sum(name.strip() not in ("", "-1") for name in visible.split(",")))


def _coordinator(environ: Mapping[str, str]) -> tuple[str, int] | None:
    text = environ.get("TPUJOB_COORDINATOR", "")
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadConfig(f"TPUJOB_COORDINATOR is {text!r}; it must be host:port")
    return host.strip("[]"), int(port)


def _number(environ: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    if not text.isdigit() or int(text) < least:
        raise BadConfig(f"{name} is {text!r}; it must be a whole number of at least {least}")
    return int(text)


def _plural(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _or_all(count: int | None) -> str:
    return "all" if count is None else f"{count:,}"
