"""The TPU VMs of one node (for each worker a home directory, SSH, metadata, local processes), and the faults of single workers.

The driver powers them on and off and erases them; after `off` or `erase` no process and no open port is left.

Faults are an SSH port that is closed, or silent, a machine that hangs, or one that upgrades itself.
`/_emulator/nodes/NODE:worker` sets them; the driver ends them before it powers hosts off, and after a restart of the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import psutil

from cloud_tpu_emulator.model import reach
from cloud_tpu_emulator.model.records import HostRecord, Node
from cloud_tpu_emulator.vms import processes
from cloud_tpu_emulator.vms.metadata_server import CloudBackend, MetadataServer, VmAccount, hostname
from cloud_tpu_emulator.vms.pythons import COMMANDS, TRAINING, Pythons, lends_torch
from cloud_tpu_emulator.vms.ssh_server import SshServer, authorized_keys
from orchestrator.system import trees

# Connections of a worker leave from this machine: what it trusts there, its workers trust.
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROFILE = "# Login shells reset PATH, in which the Python of this emulated VM comes first.\nexport PATH={path}\n"
# Nothing can cut a program on this machine off from the Internet without root: it is sent to a proxy that is not there.
NOWHERE, HERE = "http://127.0.0.1:9", "localhost,127.0.0.1,metadata.google.internal"
NO_ROUTE_OUT = {f"{scheme}_proxy": NOWHERE for scheme in ("http", "https", "all")} | {"no_proxy": HERE}
NO_ROUTE_OUT |= {name.upper(): value for name, value in NO_ROUTE_OUT.items()}


class Worker:
    """One TPU VM."""

    def __init__(self, node: Node, index: int, directory: Path, account: VmAccount, cloud: CloudBackend) -> None:
        self.node, self.index, self.directory, self.account = node, index, directory, account
        self.home = directory / "home"
        self.watchdog = directory / "watchdog"  # what /run/tpujob is on a real one
        # What /dev/accel* is on a real one: a process that opens a file of it holds a chip. Mostly it is not there, as programs
        # on this machine open none.
        self.chips = directory / "chips"
        self.cloud = cloud
        self.metadata = MetadataServer(node, index, account.token(node), cloud)
        self.metadata_port = 0
        self.ssh: SshServer | None = None

    async def on(self, before: HostRecord | None) -> HostRecord:
        """Start the servers, on the ports of `before` if they are free. Return the ports and the guest attributes."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.watchdog.mkdir(mode=0o700, exist_ok=True)
        if self.cloud.state.settings.chips:
            self.chips.mkdir(exist_ok=True)
            (self.chips / "accel0").touch()
        (self.home / ".profile").write_text(PROFILE.format(path=shlex.quote(self.path)))
        self.metadata_port = await self.metadata.open(before.metadata_port if before else 0)
        ways = (self.authorized_keys, self.environment, self.admits, self.cloud.ssh_sessions)
        self.ssh = SshServer(self.directory / "host_key", self.home, *ways)
        port, key = await self.ssh.open(before.ssh_port if before else 0)
        attributes = dict(before.attributes) if before else {}
        attributes |= {
            "hostkeys/ssh-ed25519": key,
            "hostkeys/hostname": hostname(self.node, self.index),
            "tpujob-emulator/ssh-port": str(port),
        }
        return HostRecord(port, self.metadata_port, attributes)

    @property
    def ports(self) -> list[int]:
        """The ports on which it listens now."""
        return [*(self.ssh.ports if self.ssh else ()), *self.metadata.ports]

    async def close(self) -> None:
        """Close both servers."""
        if self.ssh is not None:
            await self.ssh.close()
            self.ssh = None
        await self.metadata.close()

    @property
    def path(self) -> str:
        """The PATH of its programs."""
        return f"{self.directory / COMMANDS / 'bin'}:{SYSTEM_PATH}"

    def authorized_keys(self, user: str) -> set[str]:
        """Return the keys (base64) with which the user may log in now. With OS Login, those of the metadata do not count."""
        state = self.cloud.state
        if reach.logs_in_by_os_login(self.node.spec, state.settings):
            may = reach.may_log_in(state.settings)
            return state.logins.authorized_keys(user, self.cloud.clock()) if may else set()
        return authorized_keys(self.node.spec.get("metadata", {}).get("ssh-keys", ""), user)

    def admits(self, port: int) -> bool:
        """Return whether a connection from this port of the machine reaches the worker."""
        settings = self.cloud.state.settings
        if settings.client_inside or port in self.cloud.inside:
            return True
        return reach.has_external_address(self.node.spec) and reach.lets_ssh_in(settings, reach.INTERNET)

    def environment(self, user: str) -> Mapping[str, str]:
        """Return the environment of a program that `user` runs."""
        address = f"127.0.0.1:{self.metadata_port}"
        found = {
            "HOME": str(self.home),
            "USER": user,
            "LOGNAME": user,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "PATH": self.path,
            "GCE_METADATA_HOST": address,
            "GCE_METADATA_IP": address,
            "GCE_METADATA_ROOT": address,
            "TPUJOB_WATCHDOG_DIR": str(self.watchdog),
            "TPUJOB_EMULATED_CHIPS": str(self.chips),
            "TPUJOB_TPU_API": self.account.url,
            "TPUJOB_EMULATED_TRAINING": str(self.directory / TRAINING / "bin"),
            processes.MARKER: f"{self.node.project}/{self.node.zone}/{self.node.node_id}/{self.node.uid}",
            **{name: os.environ[name] for name in CERTIFICATES if os.environ.get(name)},
        }
        if not reach.has_route_out(self.node.spec, self.cloud.state.settings):
            found |= NO_ROUTE_OUT
        return found | ({"TPUJOB_EMULATED_LENT": "torch"} if lends_torch(self.directory) else {})

    def boot(self, script: str) -> subprocess.Popen[bytes]:
        """Start the startup-script. Its output goes to a file beside the home directory."""
        path = self.directory / "startup-script"
        path.write_text(script)
        with (self.directory / "startup-script.log").open("ab") as log:
            return subprocess.Popen(
                ["/bin/bash", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.home,
                env=self.environment("root"),
                start_new_session=True,
            )


class SliceHosts:
    """All workers of one node."""

    def __init__(self, node: Node, directory: Path, account: VmAccount, cloud: CloudBackend, pythons: Pythons) -> None:
        self.node, self.directory, self.pythons = node, directory, pythons
        self.workers = [Worker(node, i, directory / f"worker{i}", account, cloud) for i in range(node.workers)]

    async def on(self, lend_torch: bool) -> list[HostRecord]:
        """Start all workers, or none. Return their ports and guest attributes."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directories = [worker.directory for worker in self.workers]
        await asyncio.to_thread(self.pythons.make_all, *directories, lend_torch=lend_torch)
        before: list[HostRecord | None] = [*self.node.hosts] or [None] * len(self.workers)
        try:
            return [await worker.on(host) for worker, host in zip(self.workers, before, strict=True)]
        except BaseException:  # also if this task is cancelled
            await self._close()
            raise

    async def off(self) -> None:
        """Stop all workers and end their processes. The files stay. Raises TimeoutError."""
        await self._close()
        await asyncio.to_thread(processes.kill_all, self.node.uid, self.directory)

    async def _close(self) -> None:
        await asyncio.gather(*(worker.close() for worker in self.workers))

    async def erase(self) -> None:
        """Stop all workers and delete their files, in the background: on a busy disk that takes up to a second."""
        await self.off()
        if self.directory.exists():
            deleted = self.directory.rename(self.directory.with_name(f"{self.directory.name}.deleted"))
            asyncio.get_running_loop().run_in_executor(None, trees.remove, deleted)

    @property
    def ports(self) -> list[int]:
        """The ports on which the workers listen now."""
        return [port for worker in self.workers for port in worker.ports]

    def boot(self, script: str) -> list[subprocess.Popen[bytes]]:
        """Start the startup-script on all workers."""
        return [worker.boot(script) for worker in self.workers]


WELL, REFUSING, SILENT, FROZEN, UPGRADING = "well", "refusing", "silent", "frozen", "upgrading"
STOP_TIMEOUT_S = 60.0
MARK = "frozen"  # a file in the directory of a frozen worker
CONDITIONS = (
    WELL,
    REFUSING,  # the SSH port is closed, open connections are cut, processes run
    SILENT,  # the SSH port accepts connections and sends nothing, open connections are cut, processes run
    FROZEN,  # processes are stopped, connections stay open and silent
    UPGRADING,  # apt-get finds dpkg's lock taken, as on a fresh VM of Ubuntu
)
# In place of `sudo` and `apt-get`, of which those of this machine would act on this machine.
LOCKED = """#!/bin/sh
case " ${0##*/} $* " in *" apt-get "*) ;; *) exec /usr/bin/sudo "$@" ;; esac
echo "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4750 (unattended-upgr)" >&2
exit 100
"""


class WorkerFaults:
    """The faults of all workers."""

    def __init__(self) -> None:
        self._silent: dict[tuple[str, int], Callable[[], None]] = {}  # what ends it, by uid and worker

    async def set(self, hosts: SliceHosts, index: int, condition: str) -> None:
        """Put a worker into a condition, whatever the present one is. Raises TimeoutError."""
        worker = hosts.workers[index]
        if (ssh := worker.ssh) is None:
            return
        port = worker.node.hosts[index].ssh_port
        await self._reset(worker, ssh, port)
        if condition == REFUSING:
            await ssh.close()
        elif condition == SILENT:
            await ssh.close()
            await self._silence(worker, port)
        elif condition == UPGRADING:
            for path in _package_tools(worker):
                path.write_text(LOCKED)
                path.chmod(0o755)
        elif condition == FROZEN:
            ssh.stop_listening()
            await self._silence(worker, port)
            for connection in ssh.connections:
                _transport_of(connection).pause_reading()
            (worker.directory / MARK).touch()
            await asyncio.to_thread(_stop_all, worker)

    @staticmethod
    def thaw(uid: str, directory: Path) -> None:
        """Resume the processes that an earlier daemon froze."""
        for mark in directory.glob(f"*/{MARK}"):
            mark.unlink()
            _resume(processes.find(uid, directory))

    def close(self, uid: str) -> None:
        """Close the silent ports of a node, before its hosts go off."""
        for key in [key for key in self._silent if key[0] == uid]:
            self._silent.pop(key)()

    async def _reset(self, worker: Worker, ssh: SshServer, port: int) -> None:
        for path in _package_tools(worker):
            path.unlink(missing_ok=True)
        if (close := self._silent.pop((worker.node.uid, worker.index), None)) is not None:
            close()
        if (mark := worker.directory / MARK).exists():
            await asyncio.to_thread(lambda: _resume(_processes_of(worker)))
            mark.unlink()
        for connection in ssh.connections:
            _transport_of(connection).resume_reading()
        if not ssh.ports:
            await ssh.open(port)

    async def _silence(self, worker: Worker, port: int) -> None:
        self._silent[worker.node.uid, worker.index] = await _silent_port(port)


async def _silent_port(port: int) -> Callable[[], None]:
    """Open a port on loopback that accepts connections and never sends anything. Return what closes it and them."""
    writers: set[asyncio.StreamWriter] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                continue
        writer.close()
        writers.discard(writer)

    def close() -> None:
        server.close()
        for writer in writers:
            writer.transport.abort()

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    return close


def _package_tools(worker: Worker) -> list[Path]:
    """Return the programs that UPGRADING puts first in the PATH of a worker."""
    return [worker.directory / COMMANDS / "bin" / name for name in ("sudo", "apt-get")]


def _stop_all(worker: Worker) -> None:
    """Stop all processes. Raises TimeoutError."""

    def running() -> list[psutil.Process]:
        return [process for process in _processes_of(worker) if _runs(process)]

    processes.signal_all(running, psutil.Process.suspend, STOP_TIMEOUT_S, "Processes do not stop")


def _resume(stopped: Iterable[psutil.Process]) -> None:
    for process in stopped:
        with contextlib.suppress(psutil.Error):
            process.resume()


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def _processes_of(worker: Worker) -> Iterator[psutil.Process]:
    """Return the processes of one worker: all workers of a node have the same marker."""
    for process in processes.find(worker.node.uid, worker.directory):
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("HOME") == str(worker.home):
                yield process


def _transport_of(connection: object) -> asyncio.ReadTransport:
    """asyncssh has no public way to stop reading; a test notices if this attribute changes."""
    transport: asyncio.ReadTransport = connection._transport  # type: ignore[attr-defined]
    return transport
