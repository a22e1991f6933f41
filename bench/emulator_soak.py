"""The emulator over thousands of nodes under seeded faults: what is left of them, and what has grown.

Nodes and queued resources over REST, some preempted, late, hidden or stuck; then everything is deleted, and the bench checks
that nothing is left. Most nodes have no VMs (the API, the state and the meter are the same); some hundred have.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from harness.results import Report, options
from harness.sandbox import ZONE, Sandbox, sandbox

from cloud_tpu_emulator.daemon import control
from cloud_tpu_emulator.daemon.control import Endpoint

LIVES, LIVES_WITH_MACHINES = 10_000, 200
SETTLED = 5_000  # by then every store of the daemon that forgets (operations, bills, requests) is full
AT_ONCE, AT_ONCE_WITH_MACHINES = 16, 6
ROUNDS_OF_POLLING = 40
NODE = {"acceleratorType": "v5litepod-4", "runtimeVersion": "v2-alpha-tpuv5-lite"}
SPOT = {"schedulingConfig": {"spot": True}}
QUICK = {f"{name}_s": 0 for name in ("provision", "stop", "start", "delete", "accept", "queue", "suspend", "refuse")}


def _fault(kind: str, probability: float, **fields: Any) -> dict[str, Any]:
    seed = sum(map(ord, kind))
    return {"kind": kind, "when": {"probability": probability, "seed": seed}} | fields


REHEARSAL = {
    "settings": QUICK,
    "preemptions": [{"node": "n*[05]*", "per_hour": 36_000, "notice_s": 0}],
    "faults": [
        _fault("status", 0.02, status=503),
        _fault("lost_reply", 0.02, operation="*.create,*.delete"),
        _fault("drop", 0.01),
        _fault("hidden", 0.02, seconds=0.1),
        _fault("late", 0.01, seconds=0.1),
        _fault("stockout", 0.02),
        _fault("create_fails_leaving_node", 0.01),
        _fault("operation_fails", 0.02, seconds=0.02),
        _fault("operation_forgets", 0.01),
        _fault("stuck", 0.01, seconds=0.1),
        _fault("delete_dropped", 0.5, seconds=0.02),
    ],
}


@dataclass(slots=True)
class Count:
    """The outcomes, as the clients saw them."""

    lives: int = 0
    ready: int = 0
    preempted: int = 0
    queued: int = 0
    calls: int = 0
    unanswered: int = 0
    at: dict[int, dict[str, float]] = field(default_factory=dict)


class Client:
    """Creates, waits, deletes and checks, whatever faults do to its calls."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: Endpoint, count: Count) -> None:
        self.session, self.count = session, count
        self.base = f"{endpoint.url}/v2/projects/emulated/locations/{ZONE}"
        self.headers = {"Authorization": f"Bearer {endpoint.token}"}

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        """Return status and body; status 0: no reply."""
        self.count.calls += 1
        try:
            asked = self.session.request(method, f"{self.base}/{path}", json=body, headers=self.headers)
            async with asked as reply:
                return reply.status, await reply.json(content_type=None)
        except (aiohttp.ClientError, ValueError):
            self.count.unanswered += 1
            return 0, {}

    async def live(self, number: int, rng: random.Random) -> None:
        queued = rng.random() < 0.25
        self.count.queued += queued
        name = f"n{number}"
        node = NODE | (SPOT if rng.random() < 0.6 else {})
        if queued:
            spec = [{"nodeId": f"{name}-node", "node": node}]
            await self.call("POST", f"queuedResources?queuedResourceId={name}", {"tpu": {"nodeSpec": spec}})
            await self._until(
                f"queuedResources/{name}", lambda output: output["state"]["state"] in ("ACTIVE", "SUSPENDED")
            )
            await self._until(f"nodes/{name}-node", self._settled)
            await self._delete(f"queuedResources/{name}", "?force=true")
            await self._delete(f"nodes/{name}-node")
        else:
            await self.call("POST", f"nodes?nodeId={name}", node)
            await self._until(f"nodes/{name}", self._settled)
            await self._delete(f"nodes/{name}")

    def _settled(self, expected: dict[str, Any]) -> bool:
        self.count.ready += expected["state"] == "READY"
        self.count.preempted += expected["state"] == "PREEMPTED"
        return expected["state"] in ("READY", "PREEMPTED")

    async def _until(self, path: str, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Poll until the condition holds, or until the resource is absent."""
        absent = 0
        for _ in range(ROUNDS_OF_POLLING):
            status, output = await self.call("GET", path)
            absent = absent + 1 if status == 404 else 0
            if absent == 2 or (status == 200 and wanted(output)):
                return
            await asyncio.sleep(0.005)

    async def _delete(self, path: str, query: str = "") -> None:
        for _ in range(ROUNDS_OF_POLLING):
            status, _said = await self.call("DELETE", f"{path}{query}")
            if status == 404:
                return
            await asyncio.sleep(0.005)


def main() -> None:
    arguments = options(str(__doc__), rounds=1)
    columns = ["lives", "wall s", "calls/s", "processor ms a life", "MB", "descriptors", "threads", "state file kB"]
    report = Report("emulator_soak.py", "node lives under faults, and what is left of them", columns)
    for lives, at_once, machines in ((LIVES, AT_ONCE, False), (LIVES_WITH_MACHINES, AT_ONCE_WITH_MACHINES, True)):
        with sandbox() as here:
            report.notes += asyncio.run(_soak(here, report, lives, at_once, machines))
    report.publish(arguments)


async def _soak(here: Sandbox, report: Report, lives: int, at_once: int, machines: bool) -> list[str]:
    endpoint = here.emulator(machines=machines, **QUICK)
    process, count = psutil.Process(endpoint.pid), Count()
    control.request(endpoint, "PUT", "/_emulator/rehearsal", REHEARSAL | {"settings": QUICK})
    empty = _usage(process, here)
    began, cpu = time.monotonic(), sum(process.cpu_times()[:2])
    async with aiohttp.ClientSession() as session:
        client = Client(session, endpoint, count)
        marks = (SETTLED, lives) if lives > SETTLED else (lives // 2, lives)
        for first, last in zip((0, *marks), marks, strict=False):
            await _in_parallel(client, range(first, last), at_once)
            await _settle(client, endpoint)
            seconds, used = time.monotonic() - began, sum(process.cpu_times()[:2]) - cpu
            now = _usage(process, here)
            count.at[last] = now
            report.row(
                f"{last}, {'with' if machines else 'without'} machines",
                f"{seconds:.0f}",
                f"{count.calls / seconds:.0f}",
                f"{used / last * 1000:.1f}",
                *(
                    f"{now[name]:.1f}" if name == "MB" else f"{now[name]:.0f}"
                    for name in ("MB", "fds", "threads", "kB")
                ),
            )
    await asyncio.sleep(0.2)  # until the daemon has noticed the end of its client
    _nothing_is_left(endpoint, process, here, empty, _usage(process, here))
    bills = control.request(endpoint, "GET", "/_emulator/billing")["totals"]
    grown = {name: count.at[lives][name] - count.at[marks[0]][name] for name in ("MB", "kB")}
    return [
        f"{lives} {'with' if machines else 'without'} machines: {count.queued} queued, {count.preempted} seen preempted, "
        f"{count.unanswered} of {count.calls} calls without a reply; left: 0 nodes, 0 queued resources, 0 processes, "
        f"0 ports, 0 files, {bills['running']} bills open; grown since life {marks[0]}: {grown['MB']:+.1f} MB of memory, "
        f"{grown['kB']:+.0f} kB of its state file. "
        f"Before the first life: {empty['MB']:.1f} MB, {empty['fds']:.0f} descriptors."
    ]


async def _in_parallel(client: Client, numbers: range, at_once: int) -> None:
    waiting = iter(numbers)

    async def some() -> None:
        for number in waiting:
            await client.live(number, random.Random(number))
            client.count.lives += 1

    await asyncio.gather(*(some() for _ in range(at_once)))


async def _settle(client: Client, endpoint: Endpoint) -> None:
    """Without faults, delete what they left, late creates and dropped deletes too; then add the faults again."""
    faults = control.request(endpoint, "GET", "/_emulator/rehearsal")["faults"]
    control.request(endpoint, "DELETE", "/_emulator/faults")
    await asyncio.sleep(0.3)
    for collection, query in (("queuedResources", "?force=true"), ("nodes", "")):
        _, output = await client.call("GET", f"{collection}?pageSize=1000")
        for row in output.get(collection, ()):
            await client._delete(f"{collection}/{row['name'].rpartition('/')[2]}", query)
    await _until_true(lambda: not control.request(endpoint, "GET", "/_emulator/status")["nodes"])
    again = [{name: value for name, value in row.items() if name not in COUNTED} for row in faults]
    control.request(endpoint, "POST", "/_emulator/faults", {"faults": again})


COUNTED = ("id", "added_at", "calls", "hits")


async def _until_true(condition: Callable[[], bool]) -> None:
    for _ in range(400):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError("Something is left that no list shows.")


def _usage(process: psutil.Process, here: Sandbox) -> dict[str, float]:
    written = here.emulator_directory / "state.json"
    return {
        "MB": process.memory_info().rss / 1e6,
        "fds": process.num_fds(),
        "threads": process.num_threads(),
        "kB": written.stat().st_size / 1e3 if written.exists() else 0.0,
    }


def _nothing_is_left(
    endpoint: Endpoint, process: psutil.Process, here: Sandbox, empty: dict[str, float], end: dict[str, float]
) -> None:
    status = control.request(endpoint, "GET", "/_emulator/status")
    assert status["nodes"] == [] and not status.get("queued_resources"), status
    bills = control.request(endpoint, "GET", "/_emulator/billing")["totals"]
    assert bills["running"] == 0, f"{bills['running']} bills are still open"
    assert process.children(recursive=True) == [], "a process outlived its node"
    listening = [one for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    assert len(listening) == 1, f"ports are left: {listening}"
    left = [path for path in _files(here.emulator_directory / "vms") if path.is_file()]
    assert not left, f"files are left: {left[:5]}"
    assert end["fds"] <= empty["fds"], f"descriptors: {empty['fds']} before, {end['fds']} after"


def _files(directory: Path) -> list[Path]:
    return list(directory.rglob("*")) if directory.is_dir() else []


if __name__ == "__main__":
    main()
