"""The command line of the user's own `ssh` for a worker, as strict as `connection`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.remote.ssh.known_hosts import alias


def openssh_argv(
    worker: WorkerAddress, command: Sequence[str] | None, *, user: str, key_path: Path, known_hosts: Path
) -> list[str]:
    """Return the argv; `command` None opens a shell. The user's ssh configuration, agent and known hosts are not used."""
    options = {
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "PreferredAuthentications": "publickey",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": _quoted(known_hosts),
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": alias(worker.index),
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "ClearAllForwardings": "yes",
        "PermitLocalCommand": "no",
        "ControlPath": "none",
        "ConnectTimeout": "15",
        "ServerAliveInterval": "15",
        "LogLevel": "ERROR",
    }
    argv = ["ssh", "-F", "/dev/null", "-i", str(key_path), "-p", str(worker.port), "-l", user]
    for name, value in options.items():
        argv += ["-o", f"{name}={value}"]
    argv += ["--", worker.host]
    if command is not None:
        argv.append(shlex.join(command))
    return argv


def _quoted(path: Path) -> str:
    """Quote the path: ssh splits this option's value at blanks and expands percent signs."""
    return '"' + str(path).replace("%", "%%") + '"'
