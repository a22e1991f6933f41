"""The command line of the user's own `ssh` for a worker, as strict as `connection`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.remote.ssh.connection import Credentials
from orchestrator.remote.ssh.known_hosts import alias


def openssh_argv(worker: WorkerAddress, command: Sequence[str] | None, credentials: Credentials) -> list[str]:
    """Return the argv; `command` None opens a shell. The user's ssh configuration, agent and known hosts are not used."""
    options = {
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "PreferredAuthentications": "publickey",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": _quoted(credentials.known_hosts.path),
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
    login = ["-i", str(credentials.key_path), "-p", str(worker.port), "-l", credentials.user]
    strict = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    remote_command = [] if command is None else [shlex.join(command)]
    return ["ssh", "-F", "/dev/null", *login, *strict, "--", worker.host, *remote_command]


def _quoted(path: Path) -> str:
    """Quote the path: ssh splits this option's value at blanks and expands percent signs."""
    return '"' + str(path).replace("%", "%%") + '"'
