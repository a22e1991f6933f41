"""Faults of single workers: an SSH port that is closed, or silent, a machine that hangs, or one that upgrades itself.

`/_emulator/nodes/NODE:worker` sets them; the driver ends them before it powers hosts off, and after a restart of the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from orchestrator.emulator.vms import processes
from orchestrator.emulator.vms.pythons import COMMANDS
from orchestrator.emulator.vms.tpu_vm import SliceHosts, Worker

if TYPE_CHECKING:
    from orchestrator.emulator.vms.ssh_server import SshServer

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
        self._silent: dict[tuple[str, int], _SilentPort] = {}  # by uid and worker

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
            _stop_listening(ssh)
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

    async def close(self, uid: str) -> None:
        """Close the silent ports of a node, before its hosts go off."""
        for key in [key for key in self._silent if key[0] == uid]:
            await self._silent.pop(key).end()

    async def _reset(self, worker: Worker, ssh: SshServer, port: int) -> None:
        for path in _package_tools(worker):
            path.unlink(missing_ok=True)
        silent_port = self._silent.pop((worker.node.uid, worker.index), None)
        if silent_port is not None:
            await silent_port.end()
        if (mark := worker.directory / MARK).exists():
            await asyncio.to_thread(lambda: _resume(_processes_of(worker)))
            mark.unlink()
        for connection in ssh.connections:
            _transport_of(connection).resume_reading()
        if not ssh.ports:
            await ssh.open(port)

    async def _silence(self, worker: Worker, port: int) -> None:
        self._silent[worker.node.uid, worker.index] = await _SilentPort.at(port)


class _SilentPort:
    """A port on loopback that accepts connections and never sends anything."""

    def __init__(self) -> None:
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @classmethod
    async def at(cls, port: int) -> _SilentPort:
        silent_port = cls()
        silent_port._server = await asyncio.start_server(silent_port._accept, "127.0.0.1", port)
        return silent_port

    async def end(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                continue
        writer.close()
        self._writers.discard(writer)


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


def _stop_listening(ssh: SshServer) -> None:
    """Close the listener, and keep the connections, which `close` would cut."""
    if ssh._listener is not None:
        ssh._listener.close()
        ssh._listener = None


def _transport_of(connection: object) -> asyncio.ReadTransport:
    """asyncssh has no public way to stop reading; a test notices if this attribute changes."""
    transport: asyncio.ReadTransport = connection._transport  # type: ignore[attr-defined]
    return transport
