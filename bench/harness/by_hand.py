"""The same run without tpujob: google-cloud-tpu for the node, `ssh` and `scp` for the workers, nothing proven at the end.

`python by_hand.py URL TOKEN_FILE ACCELERATOR RUNTIME COMMAND BUNDLE` creates a node, ships the bundle (unless that is empty),
runs the command, brings `artifacts/` back into the current directory and deletes the node until a get answers 404. The workers
are served side by side. It waits in shorter steps than the client library would by itself (those begin at a whole second).
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from google.api_core import exceptions
from google.api_core.client_options import ClientOptions
from google.api_core.future.polling import DEFAULT_POLLING
from google.cloud import tpu_v2
from google.oauth2.credentials import Credentials

PARENT = "projects/emulated/locations/us-central1-a"
POLLING = DEFAULT_POLLING.with_delay(initial=0.1, maximum=10, multiplier=1.5)
PREPARE = "mkdir -p artifacts && export TPUJOB_ARTIFACTS=$PWD/artifacts\n"


def main(url: str, token_file: str, accelerator: str, runtime: str, command: str, bundle: str) -> None:
    directory = Path.cwd()
    key = directory / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    public = key.with_suffix(".pub").read_text().strip()

    credentials = Credentials(Path(token_file).read_text().strip())
    client = tpu_v2.TpuClient(transport="rest", credentials=credentials, client_options=ClientOptions(api_endpoint=url))
    node = tpu_v2.Node(
        accelerator_type=accelerator,
        runtime_version=runtime,
        metadata={"ssh-keys": f"trainer:{public}"},
    )
    name = f"{PARENT}/nodes/by-hand-{secrets.token_hex(4)}"
    client.create_node(parent=PARENT, node_id=name.rpartition("/")[2], node=node).result(polling=POLLING)
    try:
        ports = log_in(client, name, directory / "known_hosts")
        with ThreadPoolExecutor(len(ports)) as pool:
            list(pool.map(lambda index: work(index, ports[index], key, command, bundle, directory), range(len(ports))))
    finally:
        client.delete_node(name=name).result(polling=POLLING)
        while exists(client, name):
            time.sleep(0.1)


def log_in(client: Any, name: str, known_hosts: Path) -> list[int]:
    """The workers' SSH ports, their published host keys written down."""
    ports = []
    with known_hosts.open("w") as file:
        for attributes in client.get_guest_attributes(request={"name": name}).guest_attributes:
            said = {f"{item.namespace}/{item.key}": item.value for item in attributes.query_value.items}
            ports.append(int(said["tpujob-emulator/ssh-port"]))
            file.write(f"[127.0.0.1]:{ports[-1]} ssh-ed25519 {said['hostkeys/ssh-ed25519']}\n")
    return ports


def work(index: int, port: int, key: Path, command: str, bundle: str, directory: Path) -> None:
    """Ship, run, collect: a connection to the worker for each."""
    options = ["-F", "/dev/null", "-i", str(key), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o"]
    options += [f"UserKnownHostsFile={directory / 'known_hosts'}", "-o", "StrictHostKeyChecking=yes"]
    here = "trainer@127.0.0.1"
    if bundle:
        subprocess.run(["scp", "-q", *options, "-P", str(port), bundle, f"{here}:bundle.tar.gz"], check=True)
    subprocess.run(["ssh", *options, "-p", str(port), here, PREPARE + command], check=True)
    subprocess.run(
        ["scp", "-q", "-r", *options, "-P", str(port), f"{here}:artifacts", str(directory / f"worker{index}")],
        check=True,
    )


def exists(client: Any, name: str) -> bool:
    try:
        client.get_node(name=name)
    except exceptions.NotFound:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
