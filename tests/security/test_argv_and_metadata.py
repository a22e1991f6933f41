"""While a job with secrets runs: no secret in any process's arguments, in the node's metadata, or in a file."""

from __future__ import annotations

import contextlib
import json
import stat
import threading
from pathlib import Path

from orchestrator.emulator import control
from tests.cli_fixture import Cli
from tests.disk import holding

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
    """Reads the command line of every process of this machine, all the time."""

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

    def _watch(self) -> None:
        while not self._done.wait(0.003):
            for process in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    self.seen.add((process / "cmdline").read_bytes())


def test_no_secret_in_arguments_metadata_or_files(cli: Cli) -> None:
    (cli.directory / "code").mkdir()
    (cli.directory / "code" / "expected").write_text(TOKEN)
    job = cli.job(JOB + "code: code\n")
    with Watcher() as watcher:
        process = cli.start("run", job, env={"MY_TOKEN": TOKEN, "MY_PASSWORD": PASSWORD})
        cli.until("started", process)

        endpoint = control.ensure_running(cli.emulator_directory)
        nodes = control.request(endpoint, "GET", "/v2/projects/emulated/locations/us-central1-a/nodes")
        text = json.dumps(nodes)
        assert "ssh-ed25519" in text and "startup-script" in text, "the metadata is there to be looked at"
        for secret in (TOKEN, PASSWORD, "PRIVATE KEY", endpoint.token):
            assert secret not in text
        requests = json.dumps(control.request(endpoint, "GET", "/_emulator/requests"))
        assert TOKEN not in requests and PASSWORD not in requests

        shipped = holding(cli.directory, TOKEN.encode())
        assert [path.name for path in shipped] == ["expected"] * len(shipped) != [], "what the person shipped, no more"
        assert holding(cli.directory, PASSWORD.encode()) == []
        (artifacts,) = (cli.emulator_directory / "vms").glob("*/worker0/home/tpujob/runs/*/artifacts")
        (artifacts / "go").touch()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert len([line for line in watcher.seen if b"orchestrator.cli" in line]) >= 1, "it looked"
    assert any(b"sleep" in line for line in watcher.seen), "it saw the job's own processes"
    for secret in (TOKEN.encode(), PASSWORD.encode()):
        assert not [line for line in watcher.seen if secret in line]
        assert secret not in (out + err).encode()
    assert holding(cli.directory, PASSWORD.encode()) == []


def test_a_secret_is_in_no_arguments_of_ssh_either(cli: Cli) -> None:
    """`tpujob ssh` becomes OpenSSH: it is told where the key lies, never what it is."""
    assert cli("up", "alice", "--zone", "us-central1-a").returncode == 0
    with Watcher() as watcher:
        assert cli("ssh", "alice", "--", "true").returncode == 0
    lines = [line for line in watcher.seen if line.startswith(b"ssh\0")]
    assert lines, "it looked in time"
    assert all(b"PRIVATE KEY" not in line and b"StrictHostKeyChecking=yes" in line for line in lines)
    (key,) = (cli.directory / "state" / "leases").glob("*/id_ed25519")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert cli("down", "alice").returncode == 0
