"""What looks at the chips of a worker goes on, whatever a look meets."""

import os
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from orchestrator.vm import chips


def test_neither_a_failed_look_nor_a_full_disk_ends_the_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "accel0").touch()
    variables = {"EMULATED_CHIPS": str(tmp_path), "AGENT": "1", "HOSTS": "h", "WORKER": "0", "ATTEMPT": "a"}
    for name, value in {**variables, "ARTIFACTS": "/no/such"}.items():
        monkeypatch.setenv(f"TPUJOB_{name}", value)
    monkeypatch.setattr(os, "nice", Mock())
    found = [subprocess.TimeoutExpired("find", 20), OSError(), (set(), {}), ({os.getpid()}, {})]
    monkeypatch.setattr(chips, "holders", looks := Mock(side_effect=found))
    with (tmp_path / "log").open("wb") as log:
        monkeypatch.setattr(chips, "LOG", log.fileno())
        chips.chips("0")
    assert looks.call_count == len(found)
    assert (tmp_path / "log").read_text() == "tpujob: no process holds a TPU chip 0 s after the job began\n"
