"""How fast code gets to a slice of eight workers: a tree again after one change, and 200 MB for the first time.

The emulator's workers, their SSH server and the client share this machine, so processor time is shown beside the rate: a real
slice has processors of its own. Beside it, what a person types: `scp` to all workers at once, and rsync where there is one.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil
from harness.results import Report, options, spread, verdict
from harness.sandbox import ZONE, Sandbox, sandbox, wait_for

from cloud_tpu_emulator.daemon import control
from orchestrator.hosts.fleet.fleet import Fleet
from orchestrator.hosts.shipping.shipment import Shipment, make_shipment
from orchestrator.hosts.shipping.tree import Source, survey
from orchestrator.promise.lease.cloud_api import WorkerAddress
from orchestrator.promise.obtain.login_key import create_key, ssh_keys_metadata

NODE = f"/v2/projects/emulated/locations/{ZONE}/nodes/bench"
USER, WORKERS = "tester", 8
TREE_FILES, FILE_BYTES, CHANGED_BYTES = 2000, 10_000, 10_000
FRESH_BYTES = 200_000_000
SCP = ("scp", "-q", "-F /dev/null {ssh}", "-P", "{port}")
AGAIN_S, FRESH_MB_S = 0.3, 400.0


T = TypeVar("T")


@dataclass(slots=True)
class Slice:
    """Eight workers, and how to reach them: as tpujob does, and by hand."""

    here: Sandbox
    fleet: Fleet
    workers: list[WorkerAddress]
    key: Path
    emulator: psutil.Process

    def by_hand(self, *command: str) -> None:
        """Run the command for all workers at once; in its words {port} and {worker} are filled in."""
        ssh = f"-F /dev/null -i {self.key} -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=yes"
        ssh += f" -o UserKnownHostsFile={self.here.directory / 'known_hosts_by_hand'} -o Ciphers=aes128-gcm@openssh.com"

        def one(worker: WorkerAddress) -> None:
            words = [word.format(port=worker.port, ssh=ssh, user=USER) for word in command]
            argv = [part for word in words for part in (word.split() if word.startswith("-F ") else [word])]
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)

        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(one, self.workers))


@dataclass(slots=True)
class Took:
    """Rounds of one way to do it."""

    wall_s: list[float] = field(default_factory=list)
    client_s: list[float] = field(default_factory=list)
    emulator_s: list[float] = field(default_factory=list)
    busy_percent: list[float] = field(default_factory=list)

    def time(self, made: Slice, work: Callable[[], T]) -> T:
        before, idle_s = (_client_s(), _emulator_s(made.emulator)), psutil.cpu_times().idle
        began = time.perf_counter()
        answer = work()
        self.wall_s.append(time.perf_counter() - began)
        self.client_s.append(_client_s() - before[0])
        self.emulator_s.append(_emulator_s(made.emulator) - before[1])
        idle = (psutil.cpu_times().idle - idle_s) / (os.cpu_count() or 1) / self.wall_s[-1]
        self.busy_percent.append(100 * max(0.0, 1 - idle))
        return answer


def main() -> None:
    arguments = options(str(__doc__), rounds=7)
    report = Report(
        "ship.py",
        "code to eight emulated workers",
        [
            "what",
            "wall s",
            "target",
            "MB/s to all",
            "client's processor s",
            "emulator's and workers' processor s",
            "processors busy",
        ],
    )
    with sandbox() as here, slice_of_eight(here) as made:
        again(made, report, arguments.rounds)
        for kind in ("text", "noise"):
            fresh(made, report, kind, max(arguments.rounds // 2, 1))
    report.notes = [
        f"Again: {TREE_FILES:,} files, {TREE_FILES * FILE_BYTES / 1e6:.0f} MB, of which one of {CHANGED_BYTES // 1000} KB has "
        "changed since the last round. Reading: what there is, what has changed, a snapshot of it.",
        f"200 MB: one file that no worker has. Text travels packed (zlib 1), noise as it is. The target, {FRESH_MB_S:.0f} MB/s "
        f"to all, is {WORKERS * FRESH_BYTES / 1e6 / FRESH_MB_S:.1f} s.",
        "Busy: all cores together, with what the kernel does for it (writing the copies to the disk counts for none of the "
        "processes). Near 100 %, the processors are the limit. A real client pays its own part only.",
        "By hand: all workers at once. `scp` sends everything each time, and keeps, checks and continues nothing.",
    ]
    report.publish(arguments)


def again(made: Slice, report: Report, rounds: int) -> None:
    tree = made.here.directory / "tree"
    numbers = random.Random(7)
    for number in range(TREE_FILES):
        path = tree / f"pkg{number // 50}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(numbers.randbytes(FILE_BYTES))
    time.sleep(2.5)  # files that were written just now are read again
    rows = {name: Took() for name in ("reading", "ship", "tar", "rsync")}
    store = made.here.directory / "store"

    def read() -> Shipment:
        return make_shipment(survey({".": Source(tree, gitignore=True)}), store)

    made.fleet.push(read())
    has_rsync = shutil.which("rsync") is not None
    rsync = ("rsync", "-a", "--delete", "-e", "ssh -p {port} {ssh}", f"{tree}/", f"{USER}@127.0.0.1:tree/")
    packed = made.here.directory / "tree.tar"
    for number in range(rounds + 1):
        (tree / "pkg0" / "module0.py").write_bytes(numbers.randbytes(CHANGED_BYTES))
        measured = rows if number else {name: Took() for name in rows}  # the first round fills caches
        shipment = measured["reading"].time(made, read)
        sent = measured["ship"].time(made, partial(made.fleet.push, shipment))
        assert [(result.files, result.size_bytes) for result in sent] == [(1, CHANGED_BYTES)] * WORKERS, sent
        shipment.release()
        if has_rsync:
            measured["rsync"].time(made, lambda: made.by_hand(*rsync))

        def scp() -> None:
            subprocess.run(["tar", "cf", str(packed), "-C", str(tree), "."], check=True)
            made.by_hand(*SCP, str(packed), f"{USER}@127.0.0.1:tree.tar")

        measured["tar"].time(made, scp)
    _row(report, "again: reading 20 MB", rows["reading"], 0)
    _row(report, "again: the ship step", rows["ship"], 0, verdict(rows["ship"].wall_s, AGAIN_S))
    _row(report, "again: tar and `scp` by hand", rows["tar"], TREE_FILES * FILE_BYTES)
    if has_rsync:
        _row(report, "again: `rsync` by hand", rows["rsync"], 0)


def fresh(made: Slice, report: Report, kind: str, rounds: int) -> None:
    file = made.here.directory / "fresh" / "data"
    file.parent.mkdir(exist_ok=True)
    rows = {name: Took() for name in ("reading", "ship", "scp")}
    store = made.here.directory / "store"
    for _ in range(rounds):
        file.write_bytes(os.urandom(FRESH_BYTES) if kind == "noise" else _text(FRESH_BYTES))
        shipment = rows["reading"].time(made, lambda: make_shipment(survey({".": Source(file.parent)}), store))
        sent = rows["ship"].time(made, partial(made.fleet.push, shipment))
        assert [result.size_bytes for result in sent] == [FRESH_BYTES] * WORKERS, sent
        shipment.release()
        rows["scp"].time(made, partial(made.by_hand, *SCP, str(file), f"{USER}@127.0.0.1:data"))
        made.by_hand("ssh", "-F /dev/null {ssh}", "-p", "{port}", f"{USER}@127.0.0.1", "rm -rf data tpujob/store")
    _row(report, f"200 MB of {kind}: reading", rows["reading"], 0)
    limit_s = WORKERS * FRESH_BYTES / 1e6 / FRESH_MB_S
    _row(report, f"200 MB of {kind}: the ship step", rows["ship"], FRESH_BYTES, verdict(rows["ship"].wall_s, limit_s))
    _row(report, f"200 MB of {kind}: `scp` by hand", rows["scp"], FRESH_BYTES)


def _text(size_bytes: int) -> bytes:
    """Lines as in programs and tables; another text each time."""
    numbers = random.Random()
    words = [f"value_{numbers.randrange(10**6)}" for _ in range(5000)]
    lines = [f"    {a} = {b}({numbers.random():.6f}, {a!r})\n" for a, b in zip(words, reversed(words), strict=True)]
    block = "".join(numbers.choices(lines, k=200_000)).encode()
    return (block * (size_bytes // len(block) + 1))[:size_bytes]


def _row(report: Report, name: str, took: Took, size_bytes: int, target: str = "") -> None:
    rates = [WORKERS * size_bytes / 1e6 / wall_s for wall_s in took.wall_s]
    rate = spread(rates, 0) if size_bytes else ""
    busy = (
        f"{statistics.median(took.busy_percent):.0f} %" if statistics.median(took.wall_s) > 1 else ""
    )  # in ticks of 10 ms
    report.row(name, spread(took.wall_s), target, rate, spread(took.client_s), spread(took.emulator_s), busy)


def _client_s() -> float:
    """Processor time of this process and of the commands that it has waited for."""
    times = psutil.Process().cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _emulator_s(emulator: psutil.Process) -> float:
    """Processor time of the emulator and of the workers' commands that have ended."""
    times = emulator.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


@contextmanager
def slice_of_eight(here: Sandbox) -> Iterator[Slice]:
    endpoint = here.emulator()
    key = create_key(here.directory / "key")
    body = {
        "acceleratorType": f"v5litepod-{WORKERS * 4}",
        "runtimeVersion": "v2-alpha-tpuv5-lite",
        "metadata": {"ssh-keys": ssh_keys_metadata(USER, key.public_line)},
    }

    def ask(method: str, path: str, content: Any = None) -> Any:
        return control.request(endpoint, method, path, content)

    collection, _, name = NODE.rpartition("/")
    ask("POST", f"{collection}?nodeId={name}", body)
    wait_for("the slice", lambda: ask("GET", NODE)["state"] == "READY")
    workers = []
    with (here.directory / "known_hosts_by_hand").open("w") as known:
        for index, attributes in enumerate(ask("POST", f"{NODE}:getGuestAttributes", {})["guestAttributes"]):
            items = attributes["queryValue"]["items"]
            said = {(item["namespace"], item["key"]): item["value"] for item in items}
            port, host_key = int(said["tpujob-emulator", "ssh-port"]), f"ssh-ed25519 {said['hostkeys', 'ssh-ed25519']}"
            workers.append(WorkerAddress(index, "127.0.0.1", port, host_key))
            known.write(f"[127.0.0.1]:{port} {host_key}\n")
    fleet = Fleet(
        workers, user=USER, key_path=key.private_path, known_hosts=here.directory / "known_hosts", on_notice=print
    )
    fleet.connect(60.0)
    try:
        yield Slice(here, fleet, workers, key.private_path, psutil.Process(endpoint.pid))
    finally:
        fleet.cancel()
        ask("DELETE", NODE)
        wait_for("the end of the slice", lambda: not here.nodes())


if __name__ == "__main__":
    main()
