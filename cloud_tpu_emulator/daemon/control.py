"""How clients find, start and stop the daemon. Imports only the standard library at the top: the CLI loads it at every start.

The daemon locks its state directory while it runs, so whether it runs is certain, also after a kill -9 or a reboot.
`ensure_running` takes a second lock, so that two clients start one daemon.
"""

import fcntl
import json
import os
import select
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orchestrator
from orchestrator.system import fork, sockets
from orchestrator.system.lazy import Later

if TYPE_CHECKING:
    import subprocess
else:  # to start a daemon
    subprocess = Later("subprocess")

START_TIMEOUT_S = STOP_TIMEOUT_S = 60.0  # for a daemon that hangs; one that ends is noticed at once
POLL_S = 0.01
LOG_LIMIT_BYTES = 4 << 20


class DaemonRefused(RuntimeError):
    """The daemon refused the request. `message` is its own line of text."""

    def __init__(self, status: int, method: str, path: str, text: str) -> None:
        try:
            self.message = str(json.loads(text)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            self.message = text[:500]
        super().__init__(f"The emulator answered {status} to {method} {path}: {self.message}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running daemon: its address, its tokens and its process id.

    `tpujob_token` is for tpujob's own client only: the startup-scripts of what it creates run on this machine.
    """

    url: str
    token: str
    pid: int
    tpujob_token: str


def ensure_running(state_dir: Path, port: int = 0, ends_with: int | None = None) -> Endpoint:
    """Return the running daemon; start one if there is none. Raises RuntimeError if it does not start.

    A new daemon listens on `port` (0: the port of the last one, or a free one), and ends when the file descriptor `ends_with`
    reads as closed.
    """
    found = running(state_dir)
    if found is not None:
        return found
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(state_dir / "start.lock"):
        _await_endpoint(state_dir)
        if not _is_running(state_dir):
            _spawn(state_dir, port, ends_with)
        found = running(state_dir)
    if found is None:
        raise RuntimeError(f"The emulator did not start: {_last_line(state_dir)}")
    return found


def running(state_dir: Path) -> Endpoint | None:
    """Return the daemon that runs now; None: none does."""
    try:
        saved = json.loads((state_dir / "daemon.json").read_text())
        token = (state_dir / "token").read_text().strip()
    except FileNotFoundError:
        return None
    own = state_dir / "tpujob-token"  # a daemon of an older tpujob has none, and runs every startup-script
    tpujob_token = own.read_text().strip() if own.exists() else token
    return Endpoint(saved["url"], token, saved["pid"], tpujob_token) if _is_running(state_dir) else None


def stop(state_dir: Path) -> bool:
    """Stop the daemon and every process of its VMs; nodes stay in its state. Return whether there was anything to stop.

    Raises RuntimeError if it does not stop.
    """
    stopping: Endpoint | None = None
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while _is_running(state_dir):  # also one that is just starting or stopping
        found = running(state_dir)
        if found is not None and found != stopping:
            with suppress(OSError, DaemonRefused):  # it is ending already, or cannot save its state, and ends too
                request(found, "POST", "/_emulator/shutdown")
            stopping = found
        if time.monotonic() > deadline:
            raise RuntimeError(f"The emulator does not stop: {_last_line(state_dir)}")
        time.sleep(POLL_S)
    return _end_orphans(state_dir) > 0 or stopping is not None


def request(endpoint: Endpoint, method: str, path: str, body: Any = None, timeout_s: float = 10.0) -> Any:
    """Call a path of the daemon or of its API. Return the decoded JSON.

    Raises DaemonRefused (RuntimeError) with the daemon's message, or OSError if it cannot be reached.
    """
    import http.client  # with its parsers it would double the import time of this module

    host, _, port = endpoint.url.removeprefix("http://").rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout_s)
    headers = {"Authorization": f"Bearer {endpoint.token}", "Content-Type": "application/json"}
    try:
        connection.connect()
        sockets.expect_ours(connection.sock, timeout_s)
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        reply = connection.getresponse()
        text = reply.read()
    finally:
        connection.close()
    if reply.status != 200:
        raise DaemonRefused(reply.status, method, path, text.decode())
    return json.loads(text)


def open_grpc(endpoint: Endpoint, port: int = 0) -> str:
    """Start the gRPC server, if none runs. Return its HOST:PORT. Raises DaemonRefused if `port` (0: any) cannot be had."""
    return str(request(endpoint, "POST", "/_emulator/grpc", {"port": port})["target"])


def open_relay(endpoint: Endpoint) -> tuple[str, str]:
    """Serve the relay of IAP over TLS, too. Return its address, and the file with its authority. Raises DaemonRefused."""
    found = request(endpoint, "POST", "/_emulator/relay", {})
    return str(found["url"]), str(found["authorities"])


# gcloud uses port 22 only, which needs root. It names the worker in HostKeyAlias=tpu.<id>-<worker>-…, so an `ssh` and an `scp`
# come before OpenSSH's on the PATH and add that worker's port (`ssh_wrapper`); where gcloud tunnels through IAP, they name the
# relay of this emulator instead. Everything else goes to the real program unchanged.
PROGRAMS = {"ssh": "-p", "scp": "-P"}  # with the option for a port
# A shell script, so that every other use of ssh does not wait for Python, which takes ten times as long to start.
SCRIPT = """\
#!/bin/sh
# ssh of the emulated Cloud TPU at {state_dir}: adds the port of its workers, and changes nothing else
case " $* " in
*"HostKeyAlias=tpu."*)
    exec {python} -c {start} {package_root} {state_dir} {program} "$@" ;;
esac
here={directory} path=":$PATH:"
while case "$path" in *":$here:"*) true ;; *) false ;; esac do
    path="${{path%%":$here:"*}}:${{path#*":$here:"}}"
done
path="${{path#:}}"
PATH="${{path%:}}"
exec {program} "$@"
"""
START = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from cloud_tpu_emulator.daemon import ssh_wrapper
ssh_wrapper.main()
"""


def ssh_programs(state_dir: Path) -> Path:
    """Return a directory for the PATH. Its `ssh` and `scp` find emulated workers for gcloud.

    It is written each time, since Python or the package may have moved.
    """
    directory = state_dir.absolute() / "bin"
    directory.mkdir(parents=True, exist_ok=True)
    names = {"state_dir": state_dir.absolute(), "python": sys.executable, "directory": directory}
    names |= {"start": START, "package_root": orchestrator.ROOT}
    values = {name: shlex.quote(str(value)) for name, value in names.items()}
    for program in PROGRAMS:
        temporary = directory / f"{program}.{os.getpid()}"
        temporary.write_text(SCRIPT.format(program=program, **values))
        temporary.chmod(0o755)
        temporary.replace(directory / program)
    return directory


def open_more(
    endpoint: Endpoint,
    *,
    grpc: bool,
    grpc_port: int,
    relay: bool,
    lend_torch: bool | None,
    startup_scripts: bool | None,
) -> bool:
    """Do what the options of `tpujob emulator up` ask for. Return whether a setting was changed. Raises DaemonRefused."""
    if grpc or grpc_port:
        open_grpc(endpoint, grpc_port)
    if relay:
        open_relay(endpoint)
    asked = {"lend_torch": lend_torch, "client_startup_scripts": startup_scripts}
    if changes := {name: value for name, value in asked.items() if value is not None}:
        request(endpoint, "PATCH", "/_emulator/settings", changes)
    return bool(changes)


# Comments to the shell, so that `eval` skips them.
CLIENTS = """\
# gcloud: gcloud compute tpus tpu-vm list --zone=-
# curl:   curl -H "Authorization: Bearer $(cat $TPUJOB_EMULATOR_TOKEN_FILE)" \\
#           $TPUJOB_EMULATOR_URL/v2/projects/emulated/locations/-/nodes
# python: TpuClient(transport="rest", credentials=Credentials(TOKEN), client_options={"api_endpoint": URL})
#         (over gRPC, with the async client, in pytest: docs/emulator.md)"""


def shell_lines(endpoint: Endpoint, state_dir: Path) -> str:
    """Return the environment of clients as lines for a shell, with examples. Raises as `request` does."""
    found = client_environment(endpoint, state_dir)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in found.items()]
    programs = shlex.quote(str(ssh_programs(state_dir)))
    return "\n".join([*lines, f'export PATH={programs}:"$PATH"  # gcloud\'s ssh and scp', CLIENTS])


def client_environment(endpoint: Endpoint, state_dir: Path) -> dict[str, str]:
    """Return the environment of gcloud, and variables for curl and Python. Raises as `request` does."""
    found = {"TPUJOB_EMULATOR_URL": endpoint.url, "TPUJOB_EMULATOR_TOKEN_FILE": str(state_dir / "token")}
    if target := request(endpoint, "GET", "/_emulator/grpc")["target"]:
        found["TPUJOB_EMULATOR_GRPC"] = str(target)
    relay = request(endpoint, "GET", "/_emulator/relay")
    if relay.get("url"):
        found["TPUJOB_EMULATOR_RELAY"] = str(relay["url"])
        found["CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE"] = str(relay["authorities"])
    return found | gcloud_environment(endpoint, state_dir)


def gcloud_environment(endpoint: Endpoint, state_dir: Path) -> dict[str, str]:
    """Return the environment in which the real gcloud talks only to this emulator."""
    return {
        "CLOUDSDK_CONFIG": str(state_dir / "gcloud"),
        "CLOUDSDK_CORE_PROJECT": "emulated",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{endpoint.url}/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{endpoint.url}/compute/v1/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_OSLOGIN": f"{endpoint.url}/",
        "CLOUDSDK_CORE_ACCOUNT": "developer@emulated.example",  # as api/project_apis.py has it
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(state_dir / "token"),
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        "CLOUDSDK_SURVEY_DISABLE_PROMPTS": "1",
    }


def _is_running(state_dir: Path) -> bool:
    try:
        lock = fork.Descriptor(lambda: os.open(state_dir / "daemon.lock", os.O_RDWR))
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        lock.close()
    return False


def _spawn(state_dir: Path, port: int, ends_with: int | None) -> None:
    (state_dir / "daemon.json").unlink(missing_ok=True)  # left by a killed daemon
    log = state_dir / "daemon.log"
    mode = "wb" if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES else "ab"
    kept = [] if ends_with is None else [ends_with]
    argv = [sys.executable, "-m", "cloud_tpu_emulator", "--state-dir", str(state_dir.absolute()), "--detach"]
    argv += ["--port", str(port), *(f"--end-fd={descriptor}" for descriptor in kept)]
    # A daemon that is started on an emulated VM must not have the VM's marker: processes with it are ended with the VM.
    environment = {name: value for name, value in os.environ.items() if name != "TPUJOB_EMULATED_NODE"}
    ended, ready = fork.pipe()  # reads as closed when the daemon accepts requests, and also when it ends before
    try:
        with log.open(mode) as output:
            subprocess.run(
                [*argv, "--ready-fd", str(ready.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=orchestrator.ROOT,
                env=environment,
                pass_fds=[ready.fileno(), *kept],
                start_new_session=True,
                check=True,
            )
        ready.close()
        poll = select.poll()  # `select` takes no descriptor above 1023
        poll.register(ended, select.POLLIN)
        poll.poll(START_TIMEOUT_S * 1000)
    finally:
        ready.close()
        os.close(ended)


def _await_endpoint(state_dir: Path) -> None:
    """Wait for a daemon that was started without the start lock, or for the end of one that is stopping."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while _is_running(state_dir) and running(state_dir) is None and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _end_orphans(state_dir: Path) -> int:
    """End processes that outlived a killed daemon; return how many. Only those in directories of VMs are found."""
    directories = list((state_dir / "vms").iterdir()) if (state_dir / "vms").is_dir() else []
    if not directories:
        return 0
    from cloud_tpu_emulator.vms.processes import kill_all  # only after a daemon was killed

    return sum(kill_all(directory.name, directory.resolve()) for directory in directories)


def _last_line(state_dir: Path) -> str:
    log = state_dir / "daemon.log"
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else f"{log} is empty."


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = fork.Descriptor(lambda: os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    try:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
        yield
    finally:
        lock.close()
