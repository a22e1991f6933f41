"""A place of the tests: a process that answers from a table of what exists, and of what each job prints, writes and does.

A cell is made with its job, as a JobSet is. Its job starts at once, and the table deletes the cell when its life is over, by a
clock of its own that tests move.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from multiprocessing.connection import Client, Listener
from typing import Any

from orchestrator import errors
from orchestrator.hosts.fleet.crew import Crew, FleetStatus, Sink
from orchestrator.hosts.fleet.effects import Connect
from orchestrator.hosts.fleet.follow import WorkerState, WorkerStatus
from orchestrator.hosts.ssh.fan_out import Wakeup
from orchestrator.hosts.transfer.collect import CollectRequest
from orchestrator.hosts.transfer.collection import Collection
from orchestrator.hosts.transfer.collector import Collector
from orchestrator.places.leased import LeasedStay
from orchestrator.places.place import Ask, End, Standing
from orchestrator.promise.effects.base import Now, Record
from orchestrator.promise.effects.cloud import Workers
from orchestrator.promise.lease import cloud_api as api
from orchestrator.promise.lease.changes import Leased, NotAllowed
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.lease.run_and_attempt import LIMIT
from orchestrator.promise.obligations import Obligations
from orchestrator.promise.obtain.acquire import acquire
from orchestrator.promise.obtain.drafts import Draft
from orchestrator.promise.standing import check_slice
from orchestrator.traits import Traits

TRAITS = Traits("toy", ("toy",), "cell", reached="cell", billed=True, made_with_job=True)
CAN = api.Capabilities(visible_within_s=0.0, settles_within_s=0.0)
STOPPED, LOOK_S = 143, 0.02


# -- the process that answers ----------------------------------------------------------------------------------------------


@dataclass
class Cell:
    labels: dict[str, str]
    job: dict[str, Any]
    made_at: float
    stopped: bool = False
    looks_left: float = inf  # until it is gone, once it is deleted


class Table:
    """What exists, by name. `looks`: how often a cell is still seen after its delete."""

    def reset(self) -> None:
        """Begin anew: the first call."""
        self.cells: dict[str, Cell] = {}
        self.looks, self.go, self.moved_s = 0.0, False, 0.0

    def create(self, name: str, labels: dict[str, str], job: dict[str, Any]) -> bool:
        """Return False if there is one of this name."""
        return self.cells.setdefault(name, made := Cell(labels, job, self._now())) is made

    def list(self) -> dict[str, tuple[dict[str, str], bool]]:
        """Return the labels of each cell, and whether it is being deleted."""
        now = self._now()
        for name, cell in list(self.cells.items()):
            cell.looks_left -= 1
            if cell.looks_left < 0 or now > cell.made_at + cell.job["life_s"]:
                del self.cells[name]
        return {name: (cell.labels, cell.looks_left < inf) for name, cell in self.cells.items()}

    def delete(self, name: str) -> None:
        if name in self.cells:
            self.cells[name].looks_left = min(self.looks, self.cells[name].looks_left)

    def stop(self, name: str) -> None:
        self.cells[name].stopped = True

    def read(self, name: str, phase: str, offset: int) -> tuple[int | None, bytes]:
        """Return the exit code of a phase, once it has ended, and its log from there on. None: there is no such cell."""
        cell = self.cells[name]
        job, is_main = cell.job, phase == "main"
        log = "".join(f"{line}\n" for line in job["lines" if is_main else "setup"]).replace(
            "$SECRET", job["env"]["SECRET"]
        )
        code: int | None = job["code" if is_main else "setup_code"]
        if is_main and job["waits"] and not self.go:
            code = STOPPED if cell.stopped else None
        return code, log.encode()[offset:]

    def files(self, name: str) -> dict[str, str]:
        return self.cells[name].job["files"]  # type: ignore[no-any-return]

    def set(self, **fields: Any) -> None:
        """Change a setting of the table: a test does it."""
        vars(self).update(fields)

    def forget_deletes(self) -> None:
        self.looks = 0
        for cell in self.cells.values():
            cell.looks_left = inf

    def _now(self) -> float:
        return time.monotonic() + self.moved_s


def serve(address: str, target: object) -> None:
    """Answer calls of the public methods of `target`, one after the other, as long as this process lives."""
    with Listener(address) as listener:
        while True:
            with contextlib.suppress(OSError, EOFError), listener.accept() as call:  # its caller may be killed
                method, words, fields = call.recv()
                try:
                    call.send((getattr(target, method)(*words, **fields), None))
                except KeyError as missing:
                    call.send((None, str(missing)))


@dataclass(frozen=True, slots=True)
class Place:
    """The process that answers at this address."""

    address: str

    def __call__(self, method: str, *words: Any, **fields: Any) -> Any:
        """Raises KeyError for what is not in the table."""
        try:
            with Client(self.address) as call:
                call.send((method, words, fields))
                answer, missing = call.recv()
        except (OSError, EOFError) as error:
            raise errors.CloudUnavailable(f"the place does not answer: {error}") from error
        if missing is not None:
            raise KeyError(missing)
        return answer


# -- what the engine needs of it: a cloud, a crew, a stay --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToyCloud:
    """The calls of `promise.lease.cloud_api.Cloud` that programs make here."""

    place: Place
    capabilities = CAN

    def create(self, request: api.SliceRequest, in_time: Callable[[], bool] = api.always) -> api.Operation:
        if not self.place("create", request.name.node, dict(request.labels), dict(request.manifests[0])):
            raise errors.AlreadyExists(f"{request.name.node} exists")
        return api.Operation(request.name.node, done=True, verb="create")

    def get(self, name: api.SliceName) -> api.SliceView | None:
        return next((each for each in self.list(name.project, name.zone).rows if each.name == name), None)

    def list(self, project: str, zone: str, queued: bool = False) -> api.Listing[api.SliceView]:
        def view(node: str, labels: Mapping[str, str], deleting: bool) -> api.SliceView:
            state = api.SliceState.DELETING if deleting else api.SliceState.READY
            return api.SliceView(api.SliceName(project, zone, node), state, state.upper(), "cell", "", labels)

        return api.Listing(
            tuple(view(node, *said) for node, said in self.place("list").items()), server_now=time.time()
        )

    def delete(self, name: api.SliceName) -> None:
        self.place("delete", name.node)

    def operation(self, name: str) -> api.Operation | None:
        return None  # it keeps none

    def operations(self, project: str, zone: str) -> api.Listing[api.Operation]:
        return api.Listing(())

    def workers(self, name: api.SliceName) -> tuple[api.WorkerAddress, ...]:
        return (api.WorkerAddress(0, name.node),)


class ToyCrew:
    """The one worker of a cell."""

    index = 0  # as the source of results

    def __init__(self, place: Place, workers: tuple[api.WorkerAddress, ...]) -> None:
        self.place, self.workers, self._phase, self._read = place, workers, "main", 0
        self._wakeup = Wakeup()

    def connect(self, deadline_s: float, on_wait: Callable[[str], None] = lambda _text: None) -> None:
        """Do nothing: each question is a connection of its own."""

    def attach(self, attempt: str, phase: str) -> None:
        self._phase, self._read = phase, 0

    def follow(self, sink: Sink, metrics: Sink | None = None) -> None:
        self._sink = sink

    def wait(self, timeout_s: float) -> FleetStatus:
        ends_at = time.monotonic() + timeout_s
        while True:
            code, piece = self._ask("read", self._phase, self._read)
            self._read += len(piece)
            self._sink(0, piece)
            if code is not None or time.monotonic() >= ends_at:
                state = WorkerState.RUNNING if code is None else WorkerState.EXITED
                return FleetStatus((WorkerStatus(0, state, time.time(), self._read, code, code == STOPPED),))
            self._wakeup.sleep(LOOK_S)

    def stop(self, grace_s: float) -> None:
        self._ask("stop")

    def collect(self, order: CollectRequest) -> Collection:
        packer = ToyPacker(self._ask("files"))
        return Collection(Collector(order), (self,), self._wakeup, lambda slow, why: None, lambda here: packer)

    def cancel(self) -> None:
        self._wakeup.cancel()

    def canceled(self, timeout_s: float) -> bool:
        return self._wakeup.canceled.wait(timeout_s)

    def _ask(self, method: str, *words: Any) -> Any:
        try:
            return self.place(method, self.workers[0].host, *words)
        except (KeyError, errors.CloudUnavailable) as error:
            raise errors.Unreachable(f"worker0: {error}") from error


class ToyPacker(contextlib.AbstractContextManager["ToyPacker"]):
    """Sends the files of a job as the packer of a worker does: an index, then the contents that are asked for."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = [(f"artifacts/{path}", text.encode()) for path, text in files.items()]
        self._rows, self._content = iter(self._files), b""

    def __exit__(self, *_: object) -> None:
        """Do nothing: it holds nothing."""

    def answer(self, limit: int) -> dict[str, Any]:
        import hashlib

        for path, data in self._rows:
            return {"path": path, "size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        return {"end": len(self._files)}

    def send(self, data: bytes) -> None:
        if isinstance(wanted := json.loads(data), list):
            self._content = b"".join(file for begin, end in wanted for _, file in self._files[begin:end])

    def read(self, size: int) -> bytes:
        piece, self._content = self._content[:size], self._content[size:]
        return piece

    def close(self) -> None:
        """Do nothing: nothing waits."""


@dataclass(frozen=True, slots=True)
class ToyStay(LeasedStay):
    """`drafts`: the cell that is made, if it was not before."""

    drafts: tuple[Draft, ...] = ()
    traits = TRAITS

    async def obtain(self, ask: Ask, owed: Obligations, capabilities: api.Capabilities) -> Lease:
        owed.lease = self.drafts[0].lease
        try:
            owed.lease = lease = await acquire(*self.drafts[0], capabilities)
        except NotAllowed as error:
            raise errors.Vanished(f"{owed.lease.name.node} was released by another command") from error
        return lease

    async def settle(self, ask: Ask, lease: Lease | None, capabilities: api.Capabilities) -> Standing:
        assert lease is not None
        began = lease.ready_at or lease.created_at
        if not ask.attached:
            await Record(Leased(ask.attempt.id, await Now(), lease.id))
        return Standing(lease, began, End(began + ask.max_duration_s, LIMIT, movable=False), began)

    async def connect(self, ask: Ask, lease: Lease | None) -> Crew:
        assert lease is not None
        await check_slice(lease)
        return await Connect(lease, await Workers(lease.name), 0.0)


if __name__ == "__main__":
    serve(sys.argv[1], Table())
