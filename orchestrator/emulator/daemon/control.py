"""How clients find, start and stop the daemon. Standard library only at the top: the CLI imports this at every start.

The daemon holds a lock on its state directory while it lives, so "is it running?" has an exact answer, also after a
kill -9 or a reboot; `ensure_running` takes a second lock, so that two clients start one daemon.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orchestrator

START_TIMEOUT_S = STOP_TIMEOUT_S = 60.0  # for one that hangs: one that dies is noticed at once
POLL_S = 0.01
LOG_LIMIT_BYTES = 4 << 20


class DaemonRefused(RuntimeError):
    """The daemon understood, and will not; `message` is its own one line."""

    def __init__(self, status: int, method: str, path: str, text: str) -> None:
        try:
            self.message = str(json.loads(text)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            self.message = text[:500]
        super().__init__(f"The emulator answered {status} to {method} {path}: {self.message}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running daemon: where it answers and the token that it wants."""

    url: str
    token: str
    pid: int


def ensure_running(state_dir: Path, port: int = 0, ends_with: int | None = None) -> Endpoint:
    """The running daemon, started if there is none. RuntimeError if it does not come up.

    A daemon that is started here takes `port` (0: a free one), and ends when the descriptor `ends_with` reads as closed.
    """
    found = _announced(state_dir)
    if found is not None:
        return found
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(state_dir / "start.lock"):
        _await_announcement(state_dir)
        if not _alive(state_dir):
            _spawn(state_dir, port, ends_with)
        found = _announced(state_dir)
    if found is None:
        raise RuntimeError(f"The emulator did not come up: {_last_line(state_dir)}")
    return found


def running(state_dir: Path) -> Endpoint | None:
    """The daemon that runs now, if one does."""
    return _announced(state_dir)


def stop(state_dir: Path) -> bool:
    """End the daemon and every process of its VMs; nodes stay in its state. False if there was nothing to end."""
    asked: Endpoint | None = None
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while _alive(state_dir):  # also one that comes up just now, or is on its way out
        found = _announced(state_dir)
        if found is not None and found != asked:
            with suppress(OSError):  # it ends by itself
                request(found, "POST", "/_emulator/shutdown")
            asked = found
        if time.monotonic() > deadline:
            raise RuntimeError(f"The emulator does not stop: {_last_line(state_dir)}")
        time.sleep(POLL_S)
    return _end_orphans(state_dir) > 0 or asked is not None


def request(endpoint: Endpoint, method: str, path: str, body: Any = None, timeout_s: float = 10.0) -> Any:
    """One call to the daemon's own paths; the decoded JSON. RuntimeError with the daemon's words if it refuses."""
    import http.client  # with its parsers half of what importing this module would cost

    from orchestrator import peers

    host, _, port = endpoint.url.removeprefix("http://").rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout_s)
    headers = {"Authorization": f"Bearer {endpoint.token}", "Content-Type": "application/json"}
    try:
        connection.connect()
        peers.expect_ours(connection.sock, timeout_s)
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        reply = connection.getresponse()
        text = reply.read()
    finally:
        connection.close()
    if reply.status != 200:
        raise DaemonRefused(reply.status, method, path, text.decode())
    return json.loads(text)


def open_grpc(endpoint: Endpoint, port: int = 0) -> str:
    """Where the daemon speaks gRPC from now on (HOST:PORT); a port other than 0 is taken, or refused."""
    return str(request(endpoint, "POST", "/_emulator/grpc", {"port": port})["target"])


def ssh_programs(state_dir: Path) -> Path:
    """A directory for the PATH, whose `ssh` and `scp` find emulated workers for gcloud."""
    from orchestrator.emulator.daemon import gcloud_ssh

    return gcloud_ssh.write(state_dir)


def client_environment(endpoint: Endpoint, state_dir: Path) -> dict[str, str]:
    """The environment for every client that we know: gcloud's, and where curl and Python find what they need."""
    target = request(endpoint, "GET", "/_emulator/grpc")["target"]
    found = {
        "TPUJOB_EMULATOR_URL": endpoint.url,
        "TPUJOB_EMULATOR_TOKEN_FILE": str(state_dir / "token"),
        **({"TPUJOB_EMULATOR_GRPC": str(target)} if target else {}),
    }
    return found | gcloud_environment(endpoint, state_dir)


def gcloud_environment(endpoint: Endpoint, state_dir: Path) -> dict[str, str]:
    """The environment in which the real gcloud talks to this emulator, and to nothing else."""
    return {
        "CLOUDSDK_CONFIG": str(state_dir / "gcloud"),
        "CLOUDSDK_CORE_PROJECT": "emulated",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{endpoint.url}/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{endpoint.url}/compute/v1/",
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(state_dir / "token"),
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        "CLOUDSDK_SURVEY_DISABLE_PROMPTS": "1",
    }


def _announced(state_dir: Path) -> Endpoint | None:
    """The endpoint in the daemon's file, if the daemon that wrote it lives."""
    try:
        said = json.loads((state_dir / "daemon.json").read_text())
        token = (state_dir / "token").read_text().strip()
    except FileNotFoundError:
        return None
    return Endpoint(said["url"], token, said["pid"]) if _alive(state_dir) else None


def _alive(state_dir: Path) -> bool:
    try:
        lock = os.open(state_dir / "daemon.lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _spawn(state_dir: Path, port: int, ends_with: int | None) -> None:
    import select
    import subprocess

    (state_dir / "daemon.json").unlink(missing_ok=True)  # of a daemon that was killed
    log = state_dir / "daemon.log"
    mode = "wb" if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES else "ab"
    argv = [sys.executable, "-m", "orchestrator.emulator", "--state-dir", str(state_dir.absolute()), "--detach"]
    argv += ["--port", str(port)]
    kept = [] if ends_with is None else [ends_with]
    argv += [f"--end-fd={descriptor}" for descriptor in kept]
    # An emulated VM's own marker must not pass to a daemon started from there: its processes are ended by it.
    environment = {name: value for name, value in os.environ.items() if name != "TPUJOB_EMULATED_NODE"}
    package_root = orchestrator.ROOT
    ended, ready = os.pipe()  # reads as closed when the daemon answers, and also when it dies before
    try:
        with log.open(mode) as output:
            subprocess.run(
                [*argv, "--ready-fd", str(ready)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=package_root,
                env=environment,
                pass_fds=[ready, *kept],
                start_new_session=True,
                check=True,
            )
        os.close(ready)
        select.select([ended], [], [], START_TIMEOUT_S)
    finally:
        os.close(ended)


def _await_announcement(state_dir: Path) -> None:
    """Of one that somebody else started, without the start lock; or the end of one that is on its way out."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while _alive(state_dir) and _announced(state_dir) is None and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _end_orphans(state_dir: Path) -> int:
    """Processes that outlived a killed daemon: those in the directories of the VMs that it left."""
    directories = list((state_dir / "vms").iterdir()) if (state_dir / "vms").is_dir() else []
    if not directories:
        return 0
    from orchestrator.emulator.vms.processes import kill_all

    return sum(kill_all(directory.name, directory.resolve()) for directory in directories)


def _last_line(state_dir: Path) -> str:
    try:
        lines = (state_dir / "daemon.log").read_text(errors="replace").strip().splitlines()
    except FileNotFoundError:
        lines = []
    return lines[-1] if lines else f"{state_dir / 'daemon.log'} is empty."


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
