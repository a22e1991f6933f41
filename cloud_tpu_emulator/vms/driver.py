"""Powers TPU VMs on and off as the state machine asks for it, and reports back.

One loop lets time pass and starts a task for each node whose hosts are not at their target. Requests change the state and
call `changed`; their replies leave after a `flush`, or once it is `saved`, so that they survive a kill -9.
"""

import asyncio
import functools
import logging
import time
from collections import Counter
from contextlib import suppress

from cloud_tpu_emulator.model.cloud_state import CloudState
from cloud_tpu_emulator.model.records import HostRecord, Node, Power, startup_script_of
from cloud_tpu_emulator.model.state import SteadyClock, Store
from cloud_tpu_emulator.vms import processes
from cloud_tpu_emulator.vms.metadata_server import Notifier, VmAccount
from cloud_tpu_emulator.vms.pythons import Pythons
from cloud_tpu_emulator.vms.tpu_vm import SliceHosts, WorkerFaults
from orchestrator.system import trees

log = logging.getLogger(__name__)
RETRY_S = 1.0
SCRIPT_OFF = "its startup-script does not run on this machine; `tpujob emulator up --startup-scripts` lets it"
WRITE_MOST_S = 0.1  # a reply waits no longer for the changes of others


class Driver:
    """The cloud's state with its store, its clock and its TPU VMs."""

    def __init__(self, state: CloudState, store: Store, clock: SteadyClock) -> None:
        self.state, self.store, self.clock = state, store, clock
        self.vms = store.directory / "vms"
        self.pythons = Pythons(store.directory / "lent")
        self.account = VmAccount()
        self.hosts: dict[str, SliceHosts] = {}
        self.worker_faults = WorkerFaults()
        self.inside: set[int] = set()  # local ports of connections from inside the slices' network
        self.ssh_sessions: Counter[str] = Counter()  # that workers served since this daemon started, by kind
        self.notifier = Notifier()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._waits: set[asyncio.Task[int]] = set()  # for startup scripts
        self._wake = asyncio.Event()
        self._unsaved, self.unsaved_because = False, ""  # the latter: why the last write failed
        self._write: asyncio.Task[None] | None = None  # that is due soon
        self._write_s = 0.0  # how long the last one took

    def advance(self) -> None:
        """Let time pass up to now."""
        if self.state.advance(self.clock()):
            self.changed()

    def changed(self) -> None:
        """Note that the state changed: the loop saves it, unless a reply flushes it before."""
        self._unsaved = True
        self._wake.set()
        self.notifier.notify()

    def flush(self) -> None:
        """Save what changed; it is on disk when this returns. Raises OSError; the next call tries again."""
        if self._unsaved:
            began = time.monotonic()
            try:
                self.store.save(self.state)
            except OSError as error:
                if not self.unsaved_because:  # once
                    log.error("the state of the cloud cannot be saved: %s", error)
                self.unsaved_because = str(error.strerror)
                raise
            self._unsaved, self.unsaved_because = False, ""
            self._write_s = min(time.monotonic() - began, WRITE_MOST_S)

    async def saved(self) -> None:
        """Return once what changed is on disk. Changes share a write if they come within the time that one takes.

        Raises OSError.
        A write costs the more the more workers there are, and each of them publishes something.
        """
        if self._unsaved:
            if self._write is None:
                self._write = asyncio.create_task(self._write_soon())
            await asyncio.shield(self._write)

    async def _write_soon(self) -> None:
        await asyncio.sleep(self._write_s)
        self._write = None
        self.flush()

    async def recover(self) -> None:
        """Restore the hosts of known nodes after a start, and end the processes of unknown ones."""
        known = {node.uid for node in self.state.nodes.values()}
        for directory in self.vms.iterdir() if self.vms.is_dir() else ():
            if directory.name not in known:
                await asyncio.to_thread(processes.kill_all, directory.name, directory)
                await asyncio.to_thread(trees.remove, directory)
        for uid in known:
            await asyncio.to_thread(self.worker_faults.thaw, uid, self.vms / uid)
        with_script = [node.uid for node in self.state.nodes.values() if startup_script_of(node.spec)]
        self.state.forget_power(
            {uid for uid in with_script if not await asyncio.to_thread(processes.find, uid, self.vms / uid)}
        )
        self._start_tasks()
        await asyncio.gather(*self._tasks.values())
        self.changed()
        self.flush()

    async def run(self) -> None:
        """Let time pass, without end."""
        while True:
            self._wake.clear()
            self.advance()
            self._start_tasks()
            try:
                await self.saved()
            except OSError:  # a full disk: the cloud goes on, and its replies wait
                await asyncio.sleep(RETRY_S)
                continue
            due = self.state.next_due()
            pause_s = None if due is None else max(0.0, due - self.clock())
            # Python 3.11's wait_for forgets a cancellation that comes together with what it waits for.
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def power_off(self) -> None:
        """Close every port and end every process, before the daemon ends. The nodes stay in the state."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await asyncio.gather(*(hosts.off() for hosts in self.hosts.values()))

    def _start_tasks(self) -> None:
        for node in self.state.nodes.values():
            if node.uid not in self._tasks and (node.power != node.target_power or node.boot_pending):
                task = self._tasks[node.uid] = asyncio.create_task(self._follow(node))
                task.add_done_callback(functools.partial(self._followed, node.uid))

    def _followed(self, uid: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(uid, None)
        self._wake.set()  # the target may have changed

    async def _follow(self, node: Node) -> None:
        try:
            if node.power != (target := node.target_power):
                await self._power(node, target)
            elif node.boot_pending:
                self._boot(node)
        except Exception:
            log.exception("powering the hosts of %s failed; retrying in %s s", node.name, RETRY_S)
            await asyncio.sleep(RETRY_S)

    async def _power(self, node: Node, target: Power) -> None:
        # It has no VMs, and had none that must be ended.
        if not (self.state.settings.machines or node.uid in self.hosts or (self.vms / node.uid).exists()):
            without_ports = [HostRecord(0, 0) for _ in range(node.workers)] if target is Power.ON else None
            self.state.powered(node.uid, target, self.clock(), without_ports)
            return self.changed()
        if (hosts := self.hosts.get(node.uid)) is None:
            hosts = SliceHosts(node, self.vms / node.uid, self.account, self, self.pythons)
            self.hosts[node.uid] = hosts
        log.info("%s: hosts %s -> %s", node.name, node.power, target)
        self.worker_faults.close(node.uid)
        addresses = None
        if target is Power.ON:
            addresses = await hosts.on(self.state.settings.lend_torch)
        elif target is Power.OFF:
            await hosts.off()
        else:
            await hosts.erase()
            del self.hosts[node.uid]
        self.state.powered(node.uid, target, self.clock(), addresses)
        return self.changed()

    def _boot(self, node: Node) -> None:
        """Run the startup-script, then note that it began: after a crash in between it runs again."""
        script = startup_script_of(node.spec) if node.uid in self.hosts else ""
        if script and not self.state.settings.runs_scripts(node.trusted):
            log.warning("%s: %s", node.name, SCRIPT_OFF)
            (self.vms / node.uid / "worker0" / "startup-script").unlink(missing_ok=True)  # that of an earlier boot
            script = ""
        for process in self.hosts[node.uid].boot(script) if script else ():
            wait = asyncio.create_task(processes.wait_for_exit(process))
            self._waits.add(wait)
            wait.add_done_callback(self._waits.discard)
        node.boot_pending = False
        self.changed()
