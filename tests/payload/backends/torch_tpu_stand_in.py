"""What test_gpu.py installs as `torch_tpu`: as strict as version 0.2.0, and it lets the CPU do the work.

Each demand is one that the real package makes, by its own Python (`_internal/distributed/distributed.py`,
`_internal/utils/hardware.py`, `_internal/device/_device_module.py`), by its libraries' messages, or by what others saw on a
TPU. Where it is not known whether something works, it is refused, too. The TPU of this host is in STAND_IN_TPU ("v4"),
STAND_IN_CHIPS and STAND_IN_COORDS (of its first chip in the slice, in which a host has one chip, not four). Each call of one
of its names is written to the file NOTES.
"""

import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TOPOLOGIES = {  # processes: chips
    "v4": {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,2,2"},
    "v5e": {1: "1,1,1", 4: "2,2,1", 8: "2,4,1"},
}
CHIPS_PER_HOST = (1, 1, 1)
WHERE = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")


def note(name: str, *args: object) -> None:
    with Path(os.environ["NOTES"]).open("a") as file:
        file.write(f"{name} {args}\n")


def topology_of_this_host(count: int | None = None) -> str:
    chips = int(os.environ["STAND_IN_CHIPS"])
    found = TOPOLOGIES[os.environ["STAND_IN_TPU"]].get(chips if count is None else count)
    if found is None:
        raise RuntimeError(f"No TPU topology found for count: {chips if count is None else count}")
    return found


def set_tpu_launch_env(*, nnodes: int | None = None, nproc_per_node: int | None = None) -> None:
    note("set_tpu_launch_env", nproc_per_node)
    assert "RANK" not in os.environ, "in the parent, before any process starts"
    hosts = [host for host in os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if host]
    index = os.environ.get("JOB_COMPLETION_INDEX")
    if len(hosts) < 2 and index is None and not (nnodes or 0) > 1:
        shape = topology_of_this_host(nproc_per_node)
        addresses = ",".join(f"localhost:{port}" for port in range(nproc_per_node))
        os.environ.setdefault("TORCH_TPU_SLICEBUILDER_ADDRESSES", addresses)
        os.environ.setdefault("TORCH_TPU_TOPOLOGY", shape)
        return
    if not hosts:
        raise ValueError("set_tpu_launch_env(): expected environment variable TPU_WORKER_HOSTNAMES, got it as unset")
    addresses = ",".join(f"{host}:{8070 + local}" for host in hosts for local in range(nproc_per_node))
    os.environ.setdefault("TORCH_TPU_SLICEBUILDER_ADDRESSES", addresses)
    os.environ.setdefault("NNODES", str(len(hosts)))
    os.environ.setdefault("NODE_RANK", str(node_rank(os.environ.get("TORCH_TPU_TOPOLOGY"), index)))
    os.environ.setdefault("MASTER_ADDR", hosts[0])
    os.environ.setdefault("MASTER_PORT", "29500")
    os.environ.setdefault("TORCH_TPU_TOPOLOGY", topology_of_this_host())


def node_rank(topology: str | None, index: str | None) -> int:
    """By the place of this host's chips in the slice."""
    if not topology:
        return int(index)
    sides = [int(side) for side in topology.split(",")]
    counts = [max(1, side // chips) for side, chips in zip(sides, CHIPS_PER_HOST, strict=True)]
    hosts = [(x, y, z) for z in range(counts[2]) for y in range(counts[1]) for x in range(counts[0])]
    coords = [int(coord) for coord in os.environ["STAND_IN_COORDS"].split(",")]
    mine = tuple(coord // chips for coord, chips in zip(coords, CHIPS_PER_HOST, strict=True))
    return hosts.index(mine) if mine in hosts else int(index)


def make_group(store: Any, rank: int, size: int, timeout: Any) -> Any:
    note("tpu_dist", rank, size)
    missing = [name for name in WHERE if name not in os.environ]
    if missing:
        raise RuntimeError(f"missing required environment variables for distributed training: {missing}")
    addresses = os.environ["TORCH_TPU_SLICEBUILDER_ADDRESSES"].split(",")
    here = int(os.environ["LOCAL_RANK"]) + int(os.environ.get("NODE_RANK", "0")) * int(os.environ["LOCAL_WORLD_SIZE"])
    assert size == int(os.environ["WORLD_SIZE"]) == len(addresses), "one address for each process of all hosts"
    assert rank == int(os.environ["RANK"]) == here, "ranks follow the places of the chips"
    chips = 1
    for side in os.environ["TORCH_TPU_TOPOLOGY"].split(","):
        chips *= int(side)
    assert chips == size, f"{size} processes, but a topology of {chips} chips"
    meeting = store
    while isinstance(meeting, dist.PrefixStore):
        meeting = meeting.underlying_store
    assert isinstance(meeting, dist.TCPStore), f"processes meet over TCP, not in {meeting}"
    assert (meeting.host, str(meeting.port)) == (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])
    return dist.ProcessGroupGloo(store, rank, size, timeout)


def of_a_proven_type(name: str) -> Callable[..., Any]:
    """Raise for other types: their reductions between TPUs are not known to work."""
    real = getattr(dist, name)

    def collective(values: Any, *args: Any, **kwargs: Any) -> Any:
        if values.dtype != torch.float32:
            raise TypeError(f"{name} of {values.dtype}")
        return real(values, *args, **kwargs)

    return collective


def set_device_index(index: Any) -> None:
    note("set_device_index", index)
    if int(index) != 0:
        raise ValueError(f"Cannot set TPU device to index {index}, current process is bound to device index 0.")


def current_accelerator() -> torch.device:
    note("current_accelerator")
    return torch.device("cpu")


dist.Backend.register_backend("tpu_dist", make_group, devices=["cpu"])
dist.all_reduce, dist.broadcast = of_a_proven_type("all_reduce"), of_a_proven_type("broadcast")
torch.accelerator.set_device_index = set_device_index
torch.accelerator.current_accelerator = current_accelerator
torch.accelerator.synchronize = lambda: note("synchronize")
torch.get_float32_matmul_precision = lambda: os.environ.get("STAND_IN_PRECISION", "medium")
torch.tpu = types.SimpleNamespace(
    manual_seed=lambda number: note("manual_seed", number),
    distributed=types.SimpleNamespace(set_tpu_launch_env=set_tpu_launch_env),
)
