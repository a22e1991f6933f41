"""All workers of a slice at once: the interface to everything over SSH. Programs and the API use it.

A fleet works on one attempt at a time. Its calls raise only errors of `orchestrator.errors`, and all have a timeout; `cancel`
ends them at once by shutting the sockets. Phases that were started on the workers continue.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

from orchestrator.errors import RemoteError, Unreachable
from orchestrator.hosts.fleet.connecting import Connecting, check_limits
from orchestrator.hosts.fleet.crew import (
    FleetStatus,
    Following,
    FoundAttempt,
    Sink,
    StartRequest,
    WorkerFacts,
    found_attempts,
    locked,
)
from orchestrator.hosts.fleet.follow import Follower, Heartbeats, WorkerState, WorkerStatus
from orchestrator.hosts.fleet.on_workers import Forwarded, Output, PortForward, SideBySide
from orchestrator.hosts.shipping.sending import Sending
from orchestrator.hosts.shipping.shipment import OnProgress, PushResult, Shipment
from orchestrator.hosts.ssh.call import Completed, WorkerCall, run
from orchestrator.hosts.ssh.connection import Connection, Credentials
from orchestrator.hosts.ssh.dial import Dialer, Direct
from orchestrator.hosts.ssh.fan_out import PATIENCE, Patience, Rules, Wakeup, combined_error, fan_out, outcomes
from orchestrator.hosts.ssh.known_hosts import KnownHosts
from orchestrator.hosts.ssh.openssh import write_config
from orchestrator.hosts.transfer.collect import CollectRequest
from orchestrator.hosts.transfer.collection import Collection, packer_of
from orchestrator.hosts.transfer.collector import Collector
from orchestrator.promise.lease.cloud_api import WorkerAddress
from orchestrator.text.terminal import printable, worker_names

__all__ = ["Fleet", "FleetStatus", "PushResult", "StartRequest", "WorkerFacts", "WorkerState", "WorkerStatus"]

T = TypeVar("T")

PERSIST_S = 60.0  # how long a step goes on trying new connections
START_S = 300.0  # a large shipment is unpacked
SILENCE_S = 30.0
STOP_EXTRA_S = 30.0
DRAIN_S = 5.0  # after a stop, for the last lines of the log
OUTPUT_BYTES = 1 << 20
NAME_CHARS, MOST_LOG_BYTES = 200, 1 << 50
HELD_EVERY_S = 10.0  # a byte, as `hold` of the agent expects it


class Fleet:
    def __init__(
        self,
        workers: Sequence[WorkerAddress],
        *,
        user: str,
        key_path: Path,
        known_hosts: Path,
        on_notice: Callable[[str], None],
        now: Callable[[], float] = time.time,
        dialer: Dialer | None = None,
        patience: Patience = PATIENCE,
        shares_loopback: bool = False,
    ) -> None:
        """`known_hosts` is written here, one file per node. `on_notice` receives messages for the user.

        `dialer`: the way to the workers; None: by their addresses. `patience`: when a worker is slow, and is named.
        `shares_loopback`: the workers' loopback is that of this machine, as on the emulator.
        """
        self.workers = tuple(workers)
        self._now = now
        self._wakeup = Wakeup()
        self._credentials = Credentials(user, key_path, KnownHosts(known_hosts, self.workers, on_notice))
        self.dialer = dialer or Direct()
        self._connections = [Connection(each, self._credentials, self._wakeup, self.dialer) for each in self.workers]
        self._attempt = self._phase = ""
        self._following = Following[Follower]()
        self._streams: dict[int, WorkerCall] = {}
        self._held: WorkerCall | None = None
        self._on_notice = on_notice
        self._patience = patience
        self._heartbeats: dict[int, Heartbeats] = {}
        self._shares_loopback = shares_loopback
        self._forwards: list[PortForward] = []
        self._callback_lock = threading.Lock()

    # -- connections --

    def connect(self, deadline_s: float, on_wait: Callable[[str], None] = lambda _text: None) -> None:
        """Connect to every worker, retrying until `deadline_s`: sshd of a new VM takes minutes, and the key arrives even later.

        `on_wait` receives which workers are waited for, by which way, and why the last try failed. Raises Unreachable with
        the names of missing workers, HostKeyMismatch at once, and ConfigError for too few open files or too little memory.
        Nothing runs there yet: the first step starts the agent, and shows whether the worker can run it.
        """
        check_limits(len(self.workers), self.dialer.files)
        connecting = Connecting(self.dialer.way, self._now() + deadline_s, on_wait, self._patience.say_s)
        found = outcomes(self._connections, connecting.connect, self._wakeup, self._rules(deadline_s))
        failures = [outcome for outcome in found if isinstance(outcome, Exception)]
        if final := [failure for failure in failures if not isinstance(failure, Unreachable)]:
            raise combined_error(final)
        if failures:
            missing = [c.index for c, outcome in zip(self._connections, found, strict=True) if outcome is not None]
            first, within = cast(Unreachable, failures[0]), f"within {deadline_s:.0f} s"
            raise Unreachable(
                f"{worker_names(missing)} of {len(self.workers)} could not be reached {within} {self.dialer.way}: "
                f"{first.message}",
                hint=first.hint or self.dialer.hint,
                exit_code=first.exit_code,
            )

    def send_heartbeats(self, every_s: float, *, everywhere: bool = False) -> None:
        """Send heartbeats to the watchdog on worker 0 (or on all), in the background, until `cancel`."""
        for connection in self._connections if everywhere else [self._connection(0)]:
            if connection.index not in self._heartbeats:
                heartbeats = Heartbeats(connection, every_s, self._wakeup, self._on_notice)
                self._heartbeats[connection.index] = heartbeats
                heartbeats.thread.start()

    def facts(self, worker: int = 0) -> WorkerFacts:
        """Return what a worker reports about itself; asked on every call, so `free_port` is free now. Raises RemoteError."""

        def ask(connection: Connection) -> WorkerFacts:
            with WorkerCall(connection, "hello", silence_s=SILENCE_S) as call:
                call.end_input()
                found = call.answer()
            host = connection.worker.host
            address, port = found.get("address"), found.get("port")
            if not (isinstance(address, str) and type(port) is int):
                raise RemoteError(f"{connection.name}: an answer without an address and a port")
            return WorkerFacts(worker, host if host in ("127.0.0.1", "::1", "localhost") else address, port)

        return self._on_each([self._connection(worker)], ask)[0]

    # -- what another machine began --

    def attempts(self, run: str) -> list[FoundAttempt]:
        """Return the attempts of a run of which worker 0 has a record. Raises RemoteError."""

        def ask(connection: Connection) -> list[FoundAttempt]:
            with WorkerCall(connection, "attempts", run, silence_s=SILENCE_S) as call:
                call.end_input()
                found = call.answer().get("attempts")
            return found_attempts(found)

        return self._on_each([self._connection(0)], ask)[0]

    def log_sizes(self, attempt: str) -> dict[int, int]:
        """Return how many bytes the log of an attempt has by now, setup included, by worker. Raises RemoteError."""

        def ask(connection: Connection) -> tuple[int, int]:
            with WorkerCall(connection, "log_size", attempt, silence_s=SILENCE_S) as call:
                call.end_input()
                size = call.answer().get("bytes")
            return connection.index, size if isinstance(size, int) and 0 <= size < MOST_LOG_BYTES else 0

        return dict(self._on_each(self._connections, ask))

    def hold(self, attempt: str, name: str) -> str | None:
        """Lock the attempt on worker 0 for this process, of this name, until `cancel`.

        Return the name of the process that has the lock; None: this one. Raises RemoteError.
        """

        def lock(connection: Connection) -> str | None:
            with contextlib.ExitStack() as unless_held:
                call = unless_held.enter_context(WorkerCall(connection, "hold", attempt, name, silence_s=SILENCE_S))
                said = call.answer()
                if said.get("held") is not True:
                    return printable(str(said.get("holder")))[:NAME_CHARS]
                self._held = call
                threading.Thread(target=self._keep_held, args=(call,), name="hold", daemon=True).start()
                unless_held.pop_all()
                return None

        if self._held is not None:
            return None
        return self._on_each([self._connection(0)], lock)[0]

    def _keep_held(self, call: WorkerCall) -> None:
        """Send a byte now and then; once that fails, the lock is lost, and the next `hold` asks for it again.

        Each is answered with who else has asked for the lock.
        """
        told = None
        with contextlib.suppress(RemoteError):
            while not self._wakeup.canceled.wait(HELD_EVERY_S):
                call.send(b".")
                asked = call.answer().get("asked")
                if isinstance(asked, str) and asked != told:
                    told = asked
                    who = printable(asked)[:NAME_CHARS]
                    self._on_notice(
                        f"{who} asked to follow the job, too: this process goes on, and collects its results"
                    )
        call.close()
        self._held = None

    # -- the steps of an attempt --

    def push(self, shipment: Shipment, on_progress: OnProgress | None = None) -> list[PushResult]:
        """Send each worker what it lacks of the shipment; return what travelled to each. See `push_each`."""
        return self.push_each([shipment] * len(self.workers), on_progress)

    def push_each(
        self, shipments: Sequence[Shipment | None], on_progress: OnProgress | None = None
    ) -> list[PushResult]:
        """Send each worker what it lacks of its shipment, in the order of workers. None: nothing for that worker.

        `on_progress` receives the bytes sent, and those to send. A cut connection costs what was under way at most.
        """
        assert len(shipments) == len(self.workers), "one shipment per worker, or None"
        sending = Sending() if on_progress is None else Sending(on_progress)

        def push_one(connection: Connection) -> PushResult:
            shipment = shipments[self._connections.index(connection)]
            return PushResult() if shipment is None else sending.send(connection, shipment)

        return self._on_each(self._connections, push_one)

    def start(self, request: StartRequest) -> None:
        """Start a phase on every worker. Starting again has no effect, so a cut connection is retried. Raises RemoteError."""
        assert len(request.env_by_worker) == len(self.workers), "one environment per worker"
        self.attach(request.attempt, request.phase)
        names = ("attempt", "phase", "script", "manifest", "delete", "max_log")
        common = {name: getattr(request, name) for name in names}

        def start_one(connection: Connection) -> None:
            position = self._connections.index(connection)
            env = dict(request.env_by_worker[position])
            saved = request.saved_by_worker[position] if request.saved_by_worker else None
            with contextlib.ExitStack() as unless_started:
                call = unless_started.enter_context(WorkerCall(connection, "start", silence_s=START_S))
                metrics = connection.index == 0 and request.phase == "main"
                record = request.record if connection.index == 0 else None
                more = {"env": env, "saved": saved, "metrics": metrics, "record": record}
                call.send(json.dumps({**common, **more}).encode())
                call.end_input()
                call.answer()
                self._streams[connection.index] = call  # `follow` reads on from this stream
                unless_started.pop_all()

        self._on_each(self._connections, start_one, START_S)

    def attach(self, attempt: str, phase: str) -> None:
        """Select the phase that later calls act on, for example one that an earlier process started."""
        self._attempt, self._phase = attempt, phase
        self._following = Following[Follower]()
        for call in self._streams.values():
            call.close()
        self._streams = {}

    def follow(self, sink: Sink, metrics: Sink | None = None) -> None:
        """Fetch every worker's log from its first byte, in the background. `sink` is called with one piece at a time.

        `metrics` receives what worker 0 writes to metrics.jsonl in phase `main`; b"" says that the file begins anew.
        """
        deliver = locked(self._callback_lock, sink)
        figures = locked(self._callback_lock, metrics) if metrics is not None and self._phase == "main" else None

        def follower(connection: Connection) -> Follower:
            return Follower(
                connection,
                self._attempt,
                self._phase,
                opened=self._streams.pop(connection.index, None),
                deliver=deliver,
                metrics=figures if connection.index == 0 else None,
                wakeup=self._wakeup,
                now=self._now,
            )

        self._following = Following([follower(connection) for connection in self._connections])
        for each in self._following.followers:
            each.thread.start()

    def wait(self, timeout_s: float) -> FleetStatus:
        """Wait until a worker's state changes, `timeout_s` at most; return all states. Returns at once when all ended."""
        return self._following.wait(self._wakeup, timeout_s)

    def stop(self, grace_s: float) -> None:
        """End the phase and everything it started on every worker: SIGTERM, and after `grace_s` SIGKILL. Raises RemoteError."""

        def stop_one(connection: Connection) -> None:
            arguments = ("stop", self._attempt, self._phase, str(grace_s))
            with WorkerCall(connection, *arguments, silence_s=grace_s + STOP_EXTRA_S) as call:
                call.end_input()
                if call.answer().get("ended") is False:
                    raise call.failure(1, "a process of the job cannot be killed")

        self._on_each(self._connections, stop_one, grace_s + STOP_EXTRA_S)
        with self._wakeup.changed:
            self._wakeup.wait_for(lambda: all(f.done for f in self._following.followers), DRAIN_S)

    def collect(self, order: CollectRequest) -> Collection:
        """Start collecting every worker's results into `order.destination/worker<i>/`; return the running collection."""
        order = replace(order, attempt=order.attempt or self._attempt)
        return Collection(Collector(order), self._connections, self._wakeup, self._name_slow, packer_of)

    # -- short commands --

    def run(self, worker: int, argv: Sequence[str], *, timeout_s: float = 60.0) -> Completed:
        """Run a short command, one try, without input. Raises Unreachable."""

        def run_one(connection: Connection) -> Completed:
            return run(connection, argv, timeout_s=timeout_s, cap_bytes=OUTPUT_BYTES)

        return fan_out([self._connection(worker)], run_one, self._wakeup)[0]

    def side_by_side(self, output: Output) -> SideBySide:
        """Return what runs one command line on every worker at once and passes on its output."""
        return SideBySide(self._connections, self._wakeup, output)

    def reach(self, worker: int) -> None:
        """Connect to one worker; one try. Raises Unreachable, HostKeyMismatch, TunnelRefused."""
        self._connection(worker).connect()

    def forward(self, port: int, worker: int = 0, local: int | None = None) -> Forwarded:
        """Let a port of 127.0.0.1 lead to a port of the worker's loopback, until `end_forwards`; return which one.

        `local` None: the same one, or another if that is taken. Raises OSError for a `local` port that cannot be had.
        """
        avoid = self._shares_loopback and local is None
        opened = PortForward(self._connection(worker), port, local, self._on_notice, avoid=avoid)
        self._forwards.append(opened)
        if self._wakeup.canceled.is_set():
            self.end_forwards()
        return opened.forwarded

    def end_forwards(self) -> None:
        """Close every port that `forward` opened."""
        for opened in self._forwards:
            opened.close()
        self._forwards.clear()

    def write_openssh_config(self, directory: Path, handle: str, node: str) -> Path:
        """Write the configuration with which OpenSSH reaches the workers into `directory`; return the file."""
        return write_config(directory, handle, node, self.workers, self._credentials, self.dialer)

    # -- the end --

    def cancel(self) -> None:
        """End every running call, in any thread, with FanOutAbandoned; every later call, too.

        Connections close themselves once their sockets are shut; nothing waits for that.
        """
        self._wakeup.cancel()
        self.end_forwards()
        for connection in self._connections:
            connection.shut_socket()

    def canceled(self, timeout_s: float) -> bool:
        """Wait until `cancel`, `timeout_s` at most; return whether it was called."""
        return self._wakeup.canceled.wait(timeout_s)

    def _connection(self, worker: int) -> Connection:
        found = [connection for connection in self._connections if connection.index == worker]
        if not found:
            raise RemoteError(f"there is no worker{worker}; the workers are 0 to {len(self.workers) - 1}")
        return found[0]

    def _on_each(
        self, connections: Sequence[Connection], work: Callable[[Connection], T], persist_s: float = PERSIST_S
    ) -> list[T]:
        """Run `work` on each; over a new connection after every cut, for so long: every step may be repeated."""
        return fan_out(connections, work, self._wakeup, replace(self._rules(persist_s), names_failed=True))

    def _rules(self, persist_s: float) -> Rules[Connection]:
        deadline = time.monotonic() + persist_s
        return Rules(lambda _: deadline, lambda each: each.moved_at, self._name_slow, patience=self._patience)

    def _name_slow(self, slow: Sequence[Connection], why: Unreachable | None) -> None:
        names = worker_names(connection.index for connection in slow)
        reason = "" if why is None else f": {why.message}"
        self._on_notice(f"waiting for {names} ({len(slow)} of {len(self.workers)}){reason}")
