"""Workers of an emulated node for the remote tests, a fleet on them, and a road to them that can be cut."""

import contextlib
import itertools
import shlex
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.hosts.fleet.fleet import Fleet, FleetStatus
from orchestrator.hosts.ssh.dial import Dialer
from orchestrator.hosts.ssh.fan_out import Patience
from orchestrator.promise.lease.cloud_api import WorkerAddress
from orchestrator.promise.obtain.login_key import KeyPair, create_key, ssh_keys_metadata
from tests.emulator.fixture import Emulator
from tests.waiting import until

USER = "tester"
ENDLESS = Patience(slow_s=())  # a slow machine names no worker
NODES = "/v2/projects/emulated/locations/us-central1-a/nodes"
numbers = itertools.count(1)


@dataclass
class Slice:
    """An emulated node, our key to it, and everything that the fleets made for it said."""

    emulator: Emulator
    node: str
    workers: tuple[WorkerAddress, ...]
    key: KeyPair
    directory: Path
    notices: list[str] = field(default_factory=list)
    fleets: list[Fleet] = field(default_factory=list)

    def fleet(
        self,
        workers: Sequence[WorkerAddress] | None = None,
        known_hosts: str = "known_hosts",
        dialer: Dialer | None = None,
        **how: Any,
    ) -> Fleet:
        made = Fleet(
            self.workers if workers is None else workers,
            user=USER,
            key_path=self.key.private_path,
            known_hosts=self.directory / known_hosts,
            on_notice=self.notices.append,
            dialer=dialer,
            **{"patience": ENDLESS, **how},
        )
        self.fleets.append(made)
        return made

    def home(self, worker: int = 0) -> Path:
        return next(self.emulator.state_dir.glob(f"vms/*/worker{worker}/home/.tpujob-test-{self.node}")).parent


@contextlib.contextmanager
def slice_of(emulator: Emulator, accelerator_type: str, directory: Path, **more: Any) -> Iterator[Slice]:
    """`more`: of the body of its create call."""
    key = create_key(directory / "key")
    node = f"remote{next(numbers)}"
    body = {
        **more,
        "acceleratorType": accelerator_type,
        "runtimeVersion": "v2-alpha-tpuv5-lite",
        "metadata": {"ssh-keys": ssh_keys_metadata(USER, key.public_line)},
    }
    emulator.request("POST", f"{NODES}?nodeId={node}", body)
    until(lambda: emulator.request("GET", f"{NODES}/{node}")["state"] == "READY")
    made = Slice(emulator, node, tuple(workers_of(emulator, node)), key, directory)
    for worker in made.workers if not more else ():  # a slice that is asked for in its own way may be hidden
        assert made.fleet().run(worker.index, ["touch", f".tpujob-test-{node}"]).rc == 0
    try:
        yield made
    finally:
        for fleet in made.fleets:
            fleet.cancel()
        emulator.request("DELETE", f"{NODES}/{node}")


def workers_of(emulator: Emulator, node: str) -> Iterator[WorkerAddress]:
    said = emulator.request("POST", f"{NODES}/{node}:getGuestAttributes", {})
    for index, attributes in enumerate(said["guestAttributes"]):
        items = attributes["queryValue"]["items"]
        values = {(item["namespace"], item["key"]): item["value"] for item in items}
        port = int(values["tpujob-emulator", "ssh-port"])
        key, name = f"ssh-ed25519 {values['hostkeys', 'ssh-ed25519']}", values["hostkeys", "hostname"]
        yield WorkerAddress(index, "127.0.0.1", port, key, instance=name)


@pytest.fixture(scope="module")
def one(shared_emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slice]:
    """A node with one worker, for all tests of a module: each takes an attempt of its own."""
    with slice_of(shared_emulator, "v5litepod-4", tmp_path_factory.mktemp("one")) as made:
        yield made


@pytest.fixture(scope="module")
def four(shared_emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slice]:
    with slice_of(shared_emulator, "v5litepod-16", tmp_path_factory.mktemp("four")) as made:
        yield made


def through_bastion(emulator: Emulator, key: KeyPair, directory: Path, **how: Any) -> str:
    """Start a bastion; return the ProxyCommand through it, for the real OpenSSH, and with nothing of the developer."""
    body = {"keys": [key.public_line], "max_startups": 9, **how}
    bastion = emulator.request("POST", "/_emulator/bastion", body)
    known = directory / "known_hosts"
    known.write_text(f"[127.0.0.1]:{bastion['port']} {bastion['host_key']}\n")
    options = ["-F", "/dev/null", "-o", f"UserKnownHostsFile={known}", "-o", "StrictHostKeyChecking=yes"]
    options += ["-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none", "-o", "BatchMode=yes"]
    options += ["-i", str(key.private_path), "-p", str(bastion["port"])]
    return f"{shlex.join(['ssh', *options])} -W %h:%p jump@127.0.0.1"


def until_ended(fleet: Fleet) -> FleetStatus:
    return until(lambda: fleet.wait(1.0), "the end of the job", wanted=lambda status: status.ended)


class Road:
    """A TCP relay in front of a worker: `cut` drops all connections on it, `block` swallows everything sent from now on."""

    def __init__(self, worker: WorkerAddress, port: int = 0) -> None:
        self._target = (worker.host, worker.port)
        self._listener = socket.create_server(("127.0.0.1", port))
        self.worker = replace(worker, port=self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self.connections = 0
        self.blocked, self.swallowed = threading.Event(), threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            self.connections += 1
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.blocked.is_set():
                    self.swallowed.set()
                else:
                    sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


MakeRoad = Callable[[WorkerAddress], Road]


@pytest.fixture
def road() -> Iterator[MakeRoad]:
    made: list[Road] = []

    def make(worker: WorkerAddress) -> Road:
        made.append(Road(worker))
        return made[-1]

    yield make
    for each in made:
        each.close()
