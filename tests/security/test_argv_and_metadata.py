"""While a job with secrets runs: no secret in any process's arguments, in the node's metadata, or in a file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import stat
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.emulator.daemon import control
from tests.cli_fixture import Tpujob
from tests.disk import holding
from tests.waiting import until

TOKEN = "s3cr3t-t0ken-that-nobody-may-see"
PASSWORD = "hunter2-hunter2"
JOB = """
name: secretive
tpu: {zone: us-central1-a, accelerator: v5litepod-8}
env: {TOKEN: "${env:MY_TOKEN}", PASSWORD: "${env:MY_PASSWORD}"}
setup: test -n "$TOKEN"
command: |
  test "$TOKEN" = "$(cat expected)"
  echo started
  while [ ! -e "$TPUJOB_ARTIFACTS/go" ]; do sleep 0.05; done
"""


class Watcher:
    """Reads the command line of every process of this machine, again and again."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def sees(self, program: bytes, words: bytes) -> list[bytes]:
        """Until it does: the lines of that program that have these words."""
        look = lambda: [line for line in self.seen.copy() if line.startswith(program) and words in line]  # noqa: E731
        return until(look, f"{program!r} with {words!r}")

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            for process in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    self.seen.add((process / "cmdline").read_bytes())


def on_disks(tpujob: Tpujob, secret: str) -> list[Path]:
    """The files that hold it, here and in the cloud."""
    return [path for disk in tpujob.disks() for path in holding(disk, secret.encode())]


def test_no_secret_in_arguments_metadata_or_files(tpujob: Tpujob) -> None:
    (tpujob.directory / "code").mkdir()
    (tpujob.directory / "code" / "expected").write_text(TOKEN)
    job = tpujob.job(JOB + "code: code\n")
    with Watcher() as watcher:
        process = tpujob.start("run", job, env={"MY_TOKEN": TOKEN, "MY_PASSWORD": PASSWORD})
        tpujob.until("started", process)
        watcher.sees(sys.executable.encode(), b"orchestrator.cli\0run")
        watcher.sees(b"sleep\0", b"0.05")

        endpoint = tpujob.emulator.endpoint
        nodes = control.request(endpoint, "GET", "/v2/projects/emulated/locations/us-central1-a/nodes")
        text = json.dumps(nodes)
        assert "ssh-ed25519" in text and "startup-script" in text, "the metadata is there to be looked at"
        for secret in (TOKEN, PASSWORD, "PRIVATE KEY", endpoint.token):
            assert secret not in text
        requests = json.dumps(control.request(endpoint, "GET", "/_emulator/requests"))
        assert TOKEN not in requests and PASSWORD not in requests

        shipped = on_disks(tpujob, TOKEN)
        stored = hashlib.sha256(TOKEN.encode()).hexdigest()
        assert {path.name for path in shipped} == {"expected", stored}, "what the person shipped, no more"
        assert on_disks(tpujob, PASSWORD) == []
        (artifacts,) = (tpujob.state_dir / "vms").glob("*/worker0/home/tpujob/runs/*/artifacts")
        (artifacts / "go").touch()
        out, err = process.communicate()
    assert process.returncode == 0, err
    for secret in (TOKEN.encode(), PASSWORD.encode()):
        assert not [line for line in watcher.seen if secret in line]
        assert secret not in (out + err).encode()
    assert on_disks(tpujob, PASSWORD) == []


@pytest.mark.exhaustive
def test_a_secret_is_in_no_arguments_of_ssh_either(tpujob: Tpujob) -> None:
    """`tpujob ssh` becomes OpenSSH: it is told where the key lies, never what it is."""
    assert tpujob("up", "alice", "--zone", "us-central1-a").returncode == 0
    wait = "echo started; until [ -e go ]; do sleep 0.05; done"
    with Watcher() as watcher:
        process = tpujob.start("ssh", "alice", "--", wait)
        tpujob.until("started", process)
        lines = watcher.sees(b"ssh\0", wait.encode())
        assert tpujob("ssh", "alice", "--", "touch go").returncode == 0
        process.communicate()
    assert all(b"PRIVATE KEY" not in line and b"-F\0" in line for line in lines)
    (key,) = (tpujob.directory / "state" / "leases").glob("*/id_ed25519")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert tpujob("down", "alice").returncode == 0
