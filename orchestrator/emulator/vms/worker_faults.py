"""Single workers in trouble: an SSH door that is shut, or silent, or a whole machine that hangs.

The admin path asks, the driver heals before it switches hosts off. After a restart of the daemon all are well.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from orchestrator.emulator.vms import processes
from orchestrator.emulator.vms.tpu_vm import SliceHosts, Worker

if TYPE_CHECKING:
    from orchestrator.emulator.vms.ssh_server import SshServer

WELL, REFUSING, SILENT, FROZEN = "well", "refusing", "silent", "frozen"
STOP_TIMEOUT_S = 60.0  # for what never stands still
MARK = "frozen"  # a file in the directory of a frozen worker
CONDITIONS = {
    WELL: "as it should be",
    REFUSING: "nobody listens at its SSH port, and open connections are cut; its processes live",
    SILENT: "its SSH port takes connections and says nothing, and open ones are cut; its processes live",
    FROZEN: "the machine hangs: its processes stand still, and its connections stay open and silent",
}


class WorkerFaults:
    def __init__(self) -> None:
        self._silent: dict[tuple[str, int], _Silence] = {}  # by uid and worker

    async def set(self, hosts: SliceHosts, index: int, condition: str) -> None:
        """Whatever the condition was before."""
        worker = hosts.workers[index]
        if (ssh := worker.ssh) is None:
            return
        port = worker.node.hosts[index].ssh_port
        await self._heal(worker, ssh, port)
        if condition == REFUSING:
            await ssh.close()
        elif condition == SILENT:
            await ssh.close()
            await self._silence(worker, port)
        elif condition == FROZEN:
            _stop_listening(ssh)
            await self._silence(worker, port)
            for connection in ssh.connections:
                _transport_of(connection).pause_reading()
            (worker.directory / MARK).touch()
            await asyncio.to_thread(_stop_all, worker)

    @staticmethod
    def thaw(uid: str, directory: Path) -> None:
        """After a restart: processes that the last daemon froze, and could not thaw any more, go on."""
        for mark in directory.glob(f"*/{MARK}"):
            mark.unlink()
            for process in processes.find(uid, directory):
                with contextlib.suppress(psutil.Error):
                    process.resume()

    async def forget(self, uid: str) -> None:
        """The hosts of this node go: none of our ports may stay open."""
        for key in [key for key in self._silent if key[0] == uid]:
            await self._silent.pop(key).end()

    async def _heal(self, worker: Worker, ssh: SshServer, port: int) -> None:
        silence = self._silent.pop((worker.node.uid, worker.index), None)
        if silence is not None:
            await silence.end()
        if (mark := worker.directory / MARK).exists():
            await asyncio.to_thread(_continue_all, worker)
            mark.unlink()
        for connection in ssh.connections:
            _transport_of(connection).resume_reading()
        if not ssh.ports:
            await ssh.open(port)

    async def _silence(self, worker: Worker, port: int) -> None:
        self._silent[worker.node.uid, worker.index] = await _Silence.at(port)


class _Silence:
    """A port of loopback that accepts and never says a word."""

    def __init__(self) -> None:
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @classmethod
    async def at(cls, port: int) -> _Silence:
        silence = cls()
        silence._server = await asyncio.start_server(silence._hear, "127.0.0.1", port)
        return silence

    async def end(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                continue
        writer.close()
        self._writers.discard(writer)


def _stop_all(worker: Worker) -> None:
    """Until two looks in a row find nothing that moves: a signal takes its time, and one look can miss what is being born."""
    still, deadline = 0, time.monotonic() + STOP_TIMEOUT_S
    while still < 2:
        moving = [process for process in _processes_of(worker) if _moves(process)]
        for process in moving:
            with contextlib.suppress(psutil.Error):
                process.suspend()
        still = 0 if moving else still + 1
        if moving and time.monotonic() > deadline:
            raise TimeoutError(f"Processes do not stand still: {[process.pid for process in moving]}.")


def _continue_all(worker: Worker) -> None:
    for process in _processes_of(worker):
        with contextlib.suppress(psutil.Error):
            process.resume()


def _moves(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def _processes_of(worker: Worker) -> Iterator[psutil.Process]:
    """Another worker's processes carry the same marker."""
    for process in processes.find(worker.node.uid, worker.directory):
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("HOME") == str(worker.home):
                yield process


def _stop_listening(ssh: SshServer) -> None:
    """Without cutting the connections, which `close` would do."""
    if ssh._listener is not None:
        ssh._listener.close()
        ssh._listener = None


def _transport_of(connection: object) -> asyncio.ReadTransport:
    """asyncssh gives no other way to stop reading; a test would notice if this moved."""
    transport: asyncio.ReadTransport = connection._transport  # type: ignore[attr-defined]
    return transport
