"""Makes the TPU VMs follow the state machine: powers them on and off as nodes want it, and reports back.

One loop lets time pass and starts a task for each node whose hosts lag behind; requests change the state, call
`changed`, and are answered after a `flush`, so that what was answered survives a kill -9.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import shutil
from collections.abc import Callable

from orchestrator.emulator.model.cloud_state import CloudState
from orchestrator.emulator.model.records import HostRecord, Node, Power
from orchestrator.emulator.state.store import Store
from orchestrator.emulator.vms import processes
from orchestrator.emulator.vms.notifier import Notifier
from orchestrator.emulator.vms.pythons import Pythons
from orchestrator.emulator.vms.service_account import VmAccount
from orchestrator.emulator.vms.tpu_vm import SliceHosts
from orchestrator.emulator.vms.worker_faults import WorkerFaults

log = logging.getLogger(__name__)
RETRY_S = 1.0


class Driver:
    def __init__(self, state: CloudState, store: Store, clock: Callable[[], float]) -> None:
        self.state, self.store, self.clock = state, store, clock
        self.vms = store.directory / "vms"
        self.pythons = Pythons(store.directory / "lent")
        self.account = VmAccount()
        self.hosts: dict[str, SliceHosts] = {}
        self.worker_faults = WorkerFaults()
        self.notifier = Notifier()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._reapers: set[asyncio.Task[int]] = set()
        self._wake = asyncio.Event()
        self._unsaved = False

    def advance(self) -> None:
        if self.state.advance(self.clock()):
            self.changed()

    @property
    def attribute_limits(self) -> float:
        """Of guest attributes, as the settings have it."""
        return self.state.settings.attribute_limits

    def changed(self) -> None:
        """Something is new: whoever answers a call flushes before, and the loop does in any case."""
        self._unsaved = True
        self._wake.set()
        self.notifier.notify()

    def flush(self) -> None:
        """What changed is on disk when this returns."""
        if self._unsaved:
            self._unsaved = False
            self.store.save(self.state)

    async def recover(self) -> None:
        """After a start: end what unknown nodes left behind, and bring back the hosts of known ones."""
        self.state.forget_power()
        known = {node.uid for node in self.state.nodes.values()}
        for directory in self.vms.iterdir() if self.vms.is_dir() else ():
            if directory.name not in known:
                await asyncio.to_thread(processes.kill_all, directory.name, directory)
                shutil.rmtree(directory, ignore_errors=True)
        for uid in known:
            await asyncio.to_thread(self.worker_faults.thaw, uid, self.vms / uid)
        self._start_tasks()
        await asyncio.gather(*self._tasks.values())
        self.changed()
        self.flush()

    async def run(self) -> None:
        """Let time pass, for ever."""
        while True:
            self._wake.clear()
            self.advance()
            self._start_tasks()
            self.flush()
            due = self.state.next_due()
            pause_s = None if due is None else max(0.0, due - self.clock())
            try:
                await asyncio.wait_for(self._wake.wait(), pause_s)
            except TimeoutError:
                continue

    async def power_off(self) -> None:
        """The daemon ends: close every port and end every process. The nodes stay in the state."""
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
        self._wake.set()  # the node may want something else by now

    async def _follow(self, node: Node) -> None:
        try:
            if node.power != (wanted := node.target_power):
                await self._power(node, wanted)
            elif node.boot_pending:
                self._boot(node)
        except Exception:
            log.exception("the hosts of %s do not follow; another try in %s s", node.name, RETRY_S)
            await asyncio.sleep(RETRY_S)

    async def _power(self, node: Node, wanted: Power) -> None:
        if not self._has_machines(node):
            nowhere = [HostRecord(0, 0) for _ in range(node.workers)] if wanted is Power.ON else None
            self.state.powered(node.uid, wanted, self.clock(), nowhere)
            return self.changed()
        hosts = self.hosts.setdefault(node.uid, self._hosts_of(node))
        log.info("%s: hosts %s -> %s", node.name, node.power, wanted)
        await self.worker_faults.forget(node.uid)
        addresses = None
        if wanted is Power.ON:
            addresses = await hosts.on(self.state.settings.lend_torch)
        elif wanted is Power.OFF:
            await hosts.off()
        else:
            await hosts.erase()
            del self.hosts[node.uid]
        self.state.powered(node.uid, wanted, self.clock(), addresses)
        return self.changed()

    def _hosts_of(self, node: Node) -> SliceHosts:
        return SliceHosts(node, self.vms / node.uid, self.account, self, self.pythons)

    def _has_machines(self, node: Node) -> bool:
        """Or once had some that are to be ended."""
        return self.state.settings.machines or node.uid in self.hosts or (self.vms / node.uid).exists()

    def _boot(self, node: Node) -> None:
        """Run the startup-script, then note that it was begun: a crash in between begins it once more."""
        wanted = self.state.settings.startup_script
        script = node.spec.get("metadata", {}).get("startup-script", "") if wanted else ""
        script = script if node.uid in self.hosts else ""
        for process in self.hosts[node.uid].boot(script) if script else ():
            reaper = asyncio.create_task(processes.wait_for_exit(process))
            self._reapers.add(reaper)
            reaper.add_done_callback(self._reapers.discard)
        node.boot_pending = False
        self.changed()
