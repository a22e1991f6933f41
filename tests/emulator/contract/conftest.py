"""Other clients with the emulator's endpoint, and nodes for them."""

import contextlib
import hashlib
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import NotFound
from google.api_core.future.polling import DEFAULT_POLLING
from google.api_core.operation import Operation
from google.cloud import tpu_v2

from tests.emulator.fixture import Emulator
from tests.waiting import HANG_S

ZONE = "projects/emulated/locations/us-central1-a"
UNTIL_DONE = DEFAULT_POLLING.with_delay(initial=0.005, maximum=0.05, multiplier=1.3).with_timeout(HANG_S)
Create = Callable[..., tpu_v2.Node]
numbers = count(1)


def client_for(emulator: Emulator) -> tpu_v2.TpuClient:
    """Return google-cloud-tpu over REST, with the emulator's token."""
    return emulator.published.client()


def fetch(url: str, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, str, Message]:
    """Return the status, the text and the headers of a reply. `headers`: by default that of metadata servers."""
    request = urllib.request.Request(url, body, headers or {"Metadata-Flavor": "Google"}, method=method)
    try:
        reply = urllib.request.urlopen(request, timeout=HANG_S)
    except urllib.error.HTTPError as error:
        reply = error
    with reply:
        return reply.status, reply.read().decode(), reply.headers


def finish(operation: Operation) -> Any:
    return operation.result(polling=UNTIL_DONE)


def node_body(**fields: Any) -> tpu_v2.Node:
    return tpu_v2.Node(**{"accelerator_type": "v5litepod-4", "runtime_version": "v2-alpha-tpuv5-lite"} | fields)


@pytest.fixture
def api(shared_emulator: Emulator) -> tpu_v2.TpuClient:
    return client_for(shared_emulator)


@pytest.fixture
def create(api: tpu_v2.TpuClient) -> Iterator[Create]:
    """Creates READY nodes with new names, and deletes those that the test leaves."""
    made: list[str] = []

    def make(parent: str = ZONE, **fields: Any) -> tpu_v2.Node:
        node = finish(api.create_node(parent=parent, node_id=f"n{next(numbers)}", node=node_body(**fields)))
        made.append(node.name)
        return node

    yield make
    for name in made:
        with contextlib.suppress(NotFound):
            finish(api.delete_node(name=name))


@dataclass(frozen=True)
class Machine:
    """One worker of a READY node, and its login."""

    node: str
    worker: int
    port: int
    host_key: str
    key: Path
    user: str = "trainer"

    @property
    def options(self) -> list[str]:
        """Options of ssh, scp, sftp and `rsync -e`; the host key must be the published one."""
        # A port comes back with another machine, so the file is named for the key, too.
        known_hosts = (
            self.key.parent / f"known_hosts-{self.port}-{hashlib.sha256(self.host_key.encode()).hexdigest()[:12]}"
        )
        if not known_hosts.exists():  # written once, since other clients may be reading it
            known_hosts.write_text(f"[127.0.0.1]:{self.port} ssh-ed25519 {self.host_key}\n")
        return [
            *("-F", "/dev/null", "-i", str(self.key), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"),
            *("-o", f"UserKnownHostsFile={known_hosts}", "-o", "StrictHostKeyChecking=yes", "-o", "LogLevel=ERROR"),
        ]

    def argv(self, command: str, *options: str) -> list[str]:
        return ["ssh", *self.options, "-p", str(self.port), *options, f"{self.user}@127.0.0.1", command]

    def run(self, command: str, *options: str, **kwargs: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(self.argv(command, *options), capture_output=True, timeout=HANG_S, check=False, **kwargs)

    def output(self, command: str) -> str:
        done = self.run(command)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()


def machines(api: tpu_v2.TpuClient, node: str, key: Path) -> list[Machine]:
    reply = api.get_guest_attributes(request={"name": node})
    found = []
    for worker, attributes in enumerate(reply.guest_attributes):
        output = {f"{item.namespace}/{item.key}": item.value for item in attributes.query_value.items}
        port = int(output["tpujob-emulator/ssh-port"])
        found.append(Machine(node, worker, port, output["hostkeys/ssh-ed25519"], key))
    return found


@pytest.fixture(scope="session")
def login_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("OpenSSH is not installed")
    key = tmp_path_factory.mktemp("key") / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    return key


@pytest.fixture(scope="session")
def ssh_keys(login_key: Path) -> str:
    return f"trainer:{login_key.with_suffix('.pub').read_text().strip()}"


@pytest.fixture(scope="session")
def machine(shared_emulator: Emulator, login_key: Path, ssh_keys: str) -> Iterator[Machine]:
    """A worker for many tests."""
    api = client_for(shared_emulator)
    node = finish(api.create_node(parent=ZONE, node_id="shared", node=node_body(metadata={"ssh-keys": ssh_keys})))
    yield machines(api, node.name, login_key)[0]
    finish(api.delete_node(name=node.name))
