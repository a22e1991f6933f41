"""Prepare the processes of `backend: tpu`: their environment, the address where they meet, and the order of their hosts.

Written from the Python of torch_tpu 0.2.0, whose `set_tpu_launch_env` is marked experimental, and from a public copy of its
sources. The tests use a fake, not a TPU. As a program (`python -m payload.launch.tpu_launch N`) it calls that function
for N processes of this host and prints the variables that it sets, so that the supervisor imports no torch.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from payload.failures import INSTALL_TORCH_TPU, BadConfig, WorldError
from payload.job import TrainingJob
from payload.launch.placement import Placement


@contextmanager
def prepared(job: TrainingJob, environment: Mapping[str, str]) -> Iterator[tuple[TrainingJob, dict[str, str]]]:
    """Yield the job and the environment of its processes, without the variables that differ between processes.

    Raises BadConfig if torch_tpu fails to set its environment, WorldError if its hosts could not meet.
    """
    place = job.placement
    with socket.socket() as held:
        if place.coordinator is None:
            # While bound, the port is not assigned to other sockets; with SO_REUSEADDR, process 0 can still listen on it.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", 0))
            host, port = held.getsockname()
        else:
            host, port = place.coordinator
        # torch_tpu's runtime reads these names; set_tpu_launch_env does not set them on a single host.
        given = {**environment, "MASTER_ADDR": host, "MASTER_PORT": str(port)} | _slice_environment(place)
        added = _launch_environment(place.processes, given)
        rank = (added.get("NODE_RANK") or given.get("NODE_RANK")) if place.workers > 1 else "0"
        if not rank:
            raise WorldError(f"torch_tpu gave worker {place.worker} no NODE_RANK; backend xla trains on this slice")
        node = int(rank)
        if (node == 0) != (place.worker == 0):
            raise WorldError(
                f"torch_tpu counts worker {place.worker} as node {node}, but all processes meet on worker 0, which must be "
                "its node 0; backend xla trains on this slice"
            )
        meet_at = f"tcp://{f'[{host}]' if ':' in host else host}:{port}"
        yield replace(job, meet_at=meet_at, node=node), given | added


def _slice_environment(place: Placement) -> dict[str, str]:
    """Return the variables that torch_tpu cannot derive on several hosts: by default it assumes this host's topology."""
    if place.workers == 1:
        return {}
    chips = [*place.topology.split("x"), "1"][:3]
    return {
        "TPU_WORKER_HOSTNAMES": ",".join(place.hosts),
        "TORCH_TPU_TOPOLOGY": ",".join(chips),
        "JOB_COMPLETION_INDEX": str(place.worker),  # the rank, where the chips do not report their position
    }


def _launch_environment(processes: int, environment: Mapping[str, str]) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "payload.launch.tpu_launch", str(processes)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise BadConfig(f"torch_tpu cannot set the environment of its processes: {last_line.removeprefix('error: ')}")
    added: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return added


def load() -> None:
    """Import torch_tpu, which registers the device "tpu". Raises BadConfig if the import fails."""
    try:
        importlib.import_module("torch_tpu")
    except ImportError as error:
        reason = (str(error).splitlines() or [""])[0]
        raise BadConfig(f"torch_tpu cannot be imported ({reason}): {INSTALL_TORCH_TPU}") from None


def main(processes: int) -> None:
    load()
    import torch

    before = dict(os.environ)
    torch.tpu.distributed.set_tpu_launch_env(nproc_per_node=processes)
    print(json.dumps({name: value for name, value in os.environ.items() if before.get(name) != value}))


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except BadConfig as error:
        sys.exit(f"error: {error}")
