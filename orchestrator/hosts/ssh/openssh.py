"""The OpenSSH configuration of a slice: a block for each worker, as strict as `connection`, for ssh, scp, rsync and editors.

It stands beside the slice's key and known hosts, and goes with them. `tpujob ssh` and `tpujob scp` read it alone. The user's
own `ssh` reads it by an Include; there it outranks what follows for all hosts.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import RemoteError
from orchestrator.hosts.ssh.connection import Credentials
from orchestrator.hosts.ssh.dial import ALIVE_EVERY_S, Dialer
from orchestrator.hosts.ssh.known_hosts import alias
from orchestrator.promise.lease.cloud_api import WorkerAddress
from orchestrator.system import whole_file

FILE = "ssh_config"  # in the directory of a lease
STRICT = {
    "IdentitiesOnly": "yes",
    "IdentityAgent": "none",
    "AddKeysToAgent": "no",
    "PreferredAuthentications": "publickey",
    "GlobalKnownHostsFile": "/dev/null",
    "HashKnownHosts": "no",
    "CheckHostIP": "no",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "ControlMaster": "no",
    "ControlPath": "none",
    "ConnectTimeout": "30",
    "ServerAliveInterval": str(ALIVE_EVERY_S),
}


def write_config(
    directory: Path, handle: str, node: str, workers: Sequence[WorkerAddress], credentials: Credentials, dialer: Dialer
) -> Path:
    """Write the configuration of a slice into the directory of its lease, and return the file.

    Workers are called `NODE-INDEX` and `tpu-HANDLE-INDEX`: the latter unless an older slice is called so.
    """
    names = [f"tpu-{handle}", node]
    if any(_names(path, host(names[0], 0)) for path in directory.parent.glob(f"*/{FILE}") if path.parent != directory):
        names.pop(0)
    blocks = [_block([host(name, worker.index) for name in names], worker, credentials, dialer) for worker in workers]
    text = "\n".join([f"# The workers of {handle} ({node}). Written by tpujob, and removed with the slice.", *blocks])
    whole_file.replace(directory / FILE, text)
    return directory / FILE


def host(name: str, index: int) -> str:
    """Return what OpenSSH calls a worker of the slice of this name."""
    return f"{name}-{index}"


def ssh_argv(file: Path, host: str, options: Sequence[str], command: Sequence[str] | None) -> list[str]:
    """Return the command line of `ssh` to a host of this configuration; `command` None opens a shell."""
    remote_command = [] if command is None else [shlex.join(command)]
    return ["ssh", "-F", str(file), *options, "--", host, *remote_command]


def scp_argv(file: Path, recursive: bool, places: Sequence[str]) -> list[str]:
    """Return the command line of `scp`; remote places are `HOST:PATH`, with hosts of this configuration."""
    return ["scp", "-F", str(file), *(["-r"] if recursive else []), "--", *places]


def _block(hosts: Sequence[str], worker: WorkerAddress, credentials: Credentials, dialer: Dialer) -> str:
    try:
        way = dialer.openssh(worker)
    except RemoteError as error:
        return f"# {hosts[-1]}: {error.message}\n"
    # As `connection`: the first key of a worker that publishes none is taken, aloud, and pinned.
    pinned = credentials.known_hosts.key(worker.index) is not None
    options = {
        "User": credentials.user,
        "Port": str(worker.port),
        "IdentityFile": _quoted(credentials.key_path),
        "UserKnownHostsFile": _quoted(credentials.known_hosts.path),
        "HostKeyAlias": alias(worker.index),
        "StrictHostKeyChecking": "yes" if pinned else "accept-new",
        "LogLevel": "ERROR" if pinned else "INFO",
        **STRICT,
        **way,
    }
    return f"Host {' '.join(hosts)}\n" + "".join(f"  {name} {value}\n" for name, value in options.items())


def _names(file: Path, host: str) -> bool:
    """Return whether the configuration has this host. A file that goes meanwhile has none."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return False
    return any(line.startswith("Host ") and host in line.split() for line in lines)


def _quoted(path: Path) -> str:
    """Quote the path: OpenSSH splits values at blanks and expands percent signs."""
    return '"' + str(path).replace("%", "%%") + '"'
