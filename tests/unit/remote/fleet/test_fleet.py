"""What a fleet says before it connects to anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import open_files
from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.errors import ConfigError
from orchestrator.remote.fleet.fleet import Fleet
from orchestrator.remote.ssh.piped import Piped


def test_too_few_open_files_are_said_before_a_connection_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "in_use", lambda: 10)
    monkeypatch.setattr(open_files, "allow", lambda wanted: 300)
    workers = [WorkerAddress(index, "192.0.2.1", 22) for index in range(256)]
    fleet = Fleet(
        workers,
        user="ada",
        key_path=tmp_path / "key",
        known_hosts=tmp_path / "known_hosts",
        on_notice=print,
        dialer=Piped("ssh -W %h:%p bastion", "ada"),
    )
    with pytest.raises(ConfigError, match="256 workers need 842 open files here, and this process may open 300"):
        fleet.connect(0.0)
