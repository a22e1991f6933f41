"""A cluster to try things on: `python -m tests.cluster`. It prints its KUBECONFIG, and ends with Ctrl-C, leaving nothing.

The fixture `cluster` starts the same with `--directory` and `--while-pid`.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.cluster import fixture
from tests.cluster.agent.agent import Agent
from tests.cluster.plane.control_plane import ControlPlane

USER = "tpujob-user"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--directory", type=Path, help="where everything of it lies; kept. Else a temporary one, removed"
    )
    parser.add_argument("--while-pid", type=int, help="end with this process")
    options = parser.parse_args()
    if why := fixture.lacking():
        sys.exit(why)
    directory = options.directory or Path(tempfile.mkdtemp(prefix="tpujob-cluster."))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        return _serve(directory, options.while_pid)
    finally:  # of a directory that was given, the logs stay
        for name in ("etcd", "pods", "certificates") if options.directory else ("",):
            shutil.rmtree(directory / name, ignore_errors=True)


def _serve(directory: Path, while_pid: int | None) -> int:
    began = time.monotonic()
    plane = ControlPlane(directory)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)  # also where they were ignored
    try:
        plane.start()
        asyncio.run(_run(plane, began, while_pid))
    except KeyboardInterrupt:
        return 0
    finally:
        plane.children.close()
    return 0


def _end(*_: Any) -> None:
    raise KeyboardInterrupt


async def _run(plane: ControlPlane, began: float, while_pid: int | None) -> None:
    loop, until = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, until.set)
    if while_pid is not None:
        loop.add_reader(os.pidfd_open(while_pid), until.set)
    agent = Agent(plane)
    fixture.install(plane)

    def ready(gate: int, port: int) -> None:
        url, took_s = f"https://127.0.0.1:{gate}", time.monotonic() - began
        user = plane.kubeconfig(plane.directory / "kubeconfig", USER, [fixture.GROUP], url, fixture.NAMESPACE)
        said = {"kubeconfig": str(user), "agent": port}
        draft = plane.directory / "cluster.draft"
        draft.write_text(json.dumps(said))
        draft.replace(plane.directory / "cluster.json")  # complete once it has its name
        print(f"ready in {took_s:.1f} s; logs in {plane.children.logs}\nexport KUBECONFIG={user}", flush=True)
        print(f"namespace {fixture.NAMESPACE}, queue {fixture.QUEUE}; faults: http://127.0.0.1:{port}", flush=True)

    await agent.run(ready, until)


if __name__ == "__main__":
    sys.exit(main())
