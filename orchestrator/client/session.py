"""The composition root of every command: which cloud, the ledger, the locks, the world, and what is overdue.

A command opens one Session. Opening touches no network: the cloud is connected when the first effect asks for it. Commands
that find nothing to do are quick because nothing is imported either: the engine is, when there is a program to run.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from orchestrator import fork, settings
from orchestrator.client.events import Event, Reporter
from orchestrator.core.lease.lease import Lease, LeaseState, Purpose
from orchestrator.core.text import names
from orchestrator.engine.runtime.locks import FileLocks
from orchestrator.errors import (
    CloudUnavailable,
    ConfigError,
    Interrupted,
    TeardownUnproven,
    TpujobError,
    UnknownRun,
    UserError,
)
from orchestrator.ledger.clocks import Clocks
from orchestrator.ledger.ledger import Ledger
from orchestrator.settings import Target

if TYPE_CHECKING:
    from orchestrator.core.lease.attempt import RunRecord
    from orchestrator.core.lease.slices import Capabilities, Cloud, SliceRequest
    from orchestrator.emulator.daemon.control import Endpoint
    from orchestrator.engine.effects.base import Program
    from orchestrator.engine.guardian.process import Guardian
    from orchestrator.engine.leases.release import Released
    from orchestrator.engine.runtime.interpreter import Interpreter
    from orchestrator.engine.runtime.world import RealWorld

T = TypeVar("T")

OFF = ("off", "0", "no")
EMULATED, GOOGLE = "emulated", "google"
RECOVERY_S = 20.0  # how long a command that only wants to read waits for the proof of an old teardown


class Session:
    """`unproven` collects leases that this command could not prove gone: with any of them it exits with 75."""

    def __init__(
        self,
        target: Target,
        directory: Path,
        reporter: Reporter | None = None,
        *,
        quiet: bool = False,
        light: bool = False,
        cloud_is_named: bool = False,
    ) -> None:
        self.target = target
        self.cloud_is_named = cloud_is_named  # by the caller, not by the settings
        self.directory = directory
        self.reporter = reporter or Reporter(_ignore)
        self.ledger = Ledger(directory / "ledger.sqlite3")
        self.clocks = Clocks(self.ledger)
        self.locks = FileLocks(directory / "locks")
        self.unproven: dict[str, Released] = {}
        self._worlds: dict[str, RealWorld] = {}
        self._running: list[Interpreter] = []
        self._asked_to_end: tuple[int, str] | None = None  # and no program was told of it yet
        self._asked_time: set[str] = set()
        self._quiet = quiet
        self._light = light
        self._endpoint: Endpoint | None = None
        self._interrupted: Interrupted | None = None
        self._guardian_words: str | None = None

    @classmethod
    def open(
        cls,
        cloud: str | None = None,
        project: str | None = None,
        *,
        reporter: Reporter | None = None,
        quiet: bool = False,
        light: bool = False,
        ends: bool = False,
    ) -> Session:
        """`light` is for commands that only ask and delete: they connect without google-cloud-tpu.

        They, and those that say `ends`, make nothing new, so they work in a state directory that others could change.
        """
        target = settings.resolve(cloud, project, os.environ)
        reporter = reporter or Reporter(_ignore)
        warn = (lambda text: reporter.notice("warning", text)) if light or ends else None
        directory = settings.open_state_dir(settings.state_dir(os.environ), warn=warn)
        if target.endpoint is not None:
            # Another emulator than our own: what is absent there proves nothing here, so it has a ledger of its own.
            import hashlib

            directory = directory / "endpoints" / hashlib.sha256(target.endpoint.encode()).hexdigest()[:12]
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        named = cloud is not None or project is not None
        return cls(target, directory, reporter, quiet=quiet, light=light, cloud_is_named=named)

    # -- the world ------------------------------------------------------------------------------------------------

    def now(self, cloud: str | None = None) -> float:
        """The time of the ledger, in unix seconds: of this command's cloud, or of another one (`core.lease.timekeeping`)."""
        return self.clocks.now(cloud or self.target.kind)

    def sure_now(self) -> float:
        """The same, for what is to be claimed from now on. Raises CloudUnavailable after a restart, until the cloud said it."""
        if not self.clocks.is_certain(self.target.kind):
            raise CloudUnavailable(
                "this machine was restarted, and the cloud does not say how long it was off",
                hint="nothing was created; try again when the API answers",
            )
        return self.now()

    def announce(self) -> None:
        """The first line of every command that acts: which cloud it is, and why."""
        self.reporter.notice("cloud", self.target.why)

    def world(self, cloud: str | None = None) -> RealWorld:
        from orchestrator.engine.runtime.world import RealWorld

        kind = cloud or self.target.kind
        if kind not in self._worlds:
            self._worlds[kind] = RealWorld(
                kind=kind,
                clocks=self.clocks,
                ledger=self.ledger,
                locks=self.locks,
                report=self.reporter.report,
                lease_directory=self.lease_directory,
                start_guardian=self._guardian(),
                open_cloud=lambda: self._connect(kind),
                still_there=lambda: kind != EMULATED or self._emulator_still_there(),
            )
        return self._worlds[kind]

    @property
    def cloud(self) -> Cloud:
        return self.world().cloud

    def run(self, program: Program[T], cloud: str | None = None) -> T:
        from orchestrator.engine.runtime.interpreter import Abandoned, Interpreter

        interpreter = Interpreter(self.world(cloud))
        with fork.no_fork():
            self._running.append(interpreter)
            if self._asked_to_end is not None:
                interpreter.interrupt(*self._asked_to_end)
        try:
            result = interpreter.run(program)
        except Abandoned:
            raise self._left_behind(interpreter.pending) from None
        finally:
            with fork.no_fork():
                self._running.remove(interpreter)
                if interpreter.interrupted:
                    self._asked_to_end = None
        self._interrupted = interpreter.pending
        return result

    def interrupt(self, number: int = signal.SIGINT, by: str = "") -> None:
        """Act as this signal on the program that runs, or else on the next one, from any thread: it unwinds and releases."""
        with fork.no_fork():
            self._asked_to_end = (number, by)
            for interpreter in self._running:
                interpreter.interrupt(number, by)

    def close(self) -> None:
        """End what a process that lives on would keep: heartbeats, locks, the guardian's wait. No program runs any more.

        The guardian then releases what is owed and not proven gone, as it does after the end of a process. In a forked child
        this closes nothing of the parent's.
        """
        self.locks.close()
        for world in self._worlds.values():
            world.close()
        self.ledger.close()

    def _left_behind(self, interrupted: Interrupted | None) -> TpujobError:
        """The person left before the proof: say what that means for each slice that this process answers for."""
        reason = TeardownUnproven("you left before it was proven")
        owed = [lease for lease in self.ledger.open_leases() if self.locks.is_held(lease.id)]
        for lease in owed:
            self._loud(_unasked(lease, reason))
        if not owed and interrupted is not None:
            return interrupted  # somebody else was quicker with the proof
        return TeardownUnproven("left before the slice was proven gone", hint="any tpujob command goes on with it")

    def on_cloud(self, build: Callable[[Capabilities], Program[T]], cloud: str | None = None) -> T:
        """Run a program that needs to know what the cloud can promise."""
        return self.run(build(self.world(cloud).cloud.capabilities), cloud)

    def _guardian(self) -> Callable[[], Guardian] | None:
        from orchestrator.engine.guardian import process

        if os.environ.get("TPUJOB_GUARDIAN", "").lower() in OFF:
            return None

        def arm() -> Guardian:
            guardian = process.start_guardian(self.directory, lambda text: self.reporter.notice("guardian", text))
            log = self.directory / "guardian.log"
            self._guardian_words = f"guardian {guardian.pid}, once this command has ended (log: {log})"
            return guardian

        return arm

    def _connect(self, kind: str) -> Cloud:
        from orchestrator.clouds.google.credentials import connect, connect_light, read_token

        # Who only tears down needs no google-cloud-tpu; a create would be a bug there, and fail as one.
        door = cast("Callable[..., Cloud]", connect_light if self._light else connect)
        target = self.target
        if kind != target.kind:
            target = replace(target, kind=kind, timings=settings.timings_of(kind, os.environ))
        if kind == EMULATED and target.endpoint is None:
            endpoint = self._endpoint = self.emulator()
            self.reporter.secrets.add(endpoint.token)
            return door(target, endpoint.url, endpoint.token)
        if kind == EMULATED:
            self.reporter.secrets.add(read_token(target.token_file))
        return door(target)

    def _emulator_still_there(self) -> bool:
        from orchestrator.emulator.daemon import control

        return self._endpoint is None or control.running(self.emulator_directory) == self._endpoint

    def emulator(self) -> Endpoint:
        """The embedded Cloud TPU, started if it is not running."""
        from orchestrator.emulator.daemon import control

        try:
            return control.ensure_running(self.emulator_directory)
        except RuntimeError as error:
            raise CloudUnavailable(str(error), hint=f"its log is {self.emulator_directory / 'daemon.log'}") from error

    def preview(self, request: SliceRequest) -> dict[str, Any]:
        """The exact API request that a create would send. Connects to nothing."""
        from orchestrator.clouds.tpu.client import preview

        return preview(request)

    @property
    def runs_directory(self) -> Path:
        return Path(self.target.runs_dir or "runs").absolute()

    @property
    def emulator_directory(self) -> Path:
        return self.directory / "emulator"

    def lease_directory(self, lease_id: str) -> Path:
        directory = self.directory / "leases" / lease_id
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{directory} cannot be made: {error.strerror}", hint="its keys would go there"
            ) from error
        return directory

    @property
    def owner(self) -> str:
        import socket

        return names.owner_id(user_name(), socket.gethostname())

    # -- what is owed ---------------------------------------------------------------------------------------------

    def recover(self, *, budget_s: float = RECOVERY_S, spare: str | None = None, look: bool = False) -> None:
        """First of all, finish what an earlier command left behind: in whichever cloud that was.

        `look`: ask the cloud also after slices that are held or detached, which may have been deleted by their switch.
        """
        if not self.ledger.open_leases() and not self.ledger.attempts_open():
            return
        from orchestrator.engine.leases.recover import close_attempts, overdue, recover

        self.run(close_attempts())
        for kind in (EMULATED, GOOGLE):
            self._ask_time(kind)
            if not self.run(overdue(kind, spare=spare, look=look), kind):
                continue
            try:
                program = partial(recover, kind, budget_s=budget_s, spare=spare, look=look)
                results = self.on_cloud(program, kind)
            except TpujobError as error:
                self._recovery_failed(kind, error)
                continue
            for released in results:
                self.note(released)
            if self._interrupted is not None:
                raise self._interrupted  # Ctrl-C meant the command, not only what it did first
            self.run(close_attempts())

    def _ask_time(self, kind: str) -> None:
        """Once a command, and only after a restart of this machine: how long was it off?"""
        from orchestrator.engine.leases.renewal import ask_time

        owed = [lease for lease in self.ledger.open_leases() if lease.cloud == kind]
        if owed and kind not in self._asked_time and not self.clocks.is_certain(kind):
            self._asked_time.add(kind)
            try:
                self.run(ask_time(owed[0]), kind)
            except Interrupted:
                raise  # Ctrl-C means the command, not only the question
            except TpujobError as error:  # such as no credentials for a cloud that is not this command's own
                self.reporter.notice("clock", f"how long this machine was off is not known yet: {error.message}")

    def _recovery_failed(self, kind: str, error: TpujobError) -> None:
        from orchestrator.engine.leases.recover import overdue

        self.reporter.fail(error)
        for lease, why in self.run(overdue(kind), kind):
            self.reporter.alert(f"!! NOT VERIFIED GONE: {lease.name.node} ({lease.name.zone}): {why}")
            self.unproven[lease.id] = _unasked(lease, error)

    def note(self, released: Released) -> None:
        """Say how a release ended, and remember it for the exit code."""
        from orchestrator.report.layout import clock

        if released.gone:
            self.unproven.pop(released.lease.id, None)
            self.forget_keys(released.lease.id)
            if not self._quiet:
                self.reporter.notice(
                    "release", f"{released.lease.name.node} absent (checked {clock(released.checked_at)})"
                )
            return
        self.unproven[released.lease.id] = released
        self._loud(released)

    def _loud(self, released: Released) -> None:
        from orchestrator.core.lease import claim_labels
        from orchestrator.report.messages import unproven_alert

        lease = released.lease
        timings = settings.timings_of(lease.cloud, os.environ)
        watchdog_by = (
            claim_labels.watchdog_acts_by(lease, self.now(lease.cloud), timings) if lease.sent_at is not None else None
        )
        self.reporter.alert(unproven_alert(released, self._guardian_words, watchdog_by=watchdog_by))

    def note_overdue(self) -> None:
        """Deletions that another process is at, and that take longer than any should: somebody has to look."""
        for lease in self.ledger.open_leases():
            timings = settings.timings_of(lease.cloud, os.environ)
            if lease.id in self.unproven or lease.down_at is None:
                continue
            if self.now(lease.cloud) - lease.down_at < 2 * timings.absent_s:
                continue
            self.note(_unasked(lease, TeardownUnproven("another process is still at it")))

    def collect_later(self, run: RunRecord) -> None:
        """A process that waits for the end of a detached run, as if somebody had left `tpujob attach` open.

        Nothing depends on it but who brings the artifacts home: it may be killed, and another `attach` takes its place.
        """
        import subprocess
        import sys

        if os.environ.get("TPUJOB_COLLECTOR", "").lower() in OFF:
            return
        with (self.directory / "collector.log").open("ab") as log:
            subprocess.Popen(
                [sys.executable, "-P", "-m", "orchestrator.cli", "attach", run.id],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={name: value for name, value in os.environ.items() if name != "TPUJOB_CRASH_AT"},
                start_new_session=True,
            )

    def forget_keys(self, lease_id: str) -> None:
        """The keys of a slice that is gone open nothing any more."""
        import shutil

        shutil.rmtree(self.directory / "leases" / lease_id, ignore_errors=True)

    def forget_drafts(self, made: Iterable[str], *, kept: Lease | None = None) -> None:
        """Delete the keys of leases that came to nothing, or whose slices are proven gone. `kept`: the slice that stays."""
        for lease_id in made:
            if (kept is None or lease_id != kept.id) and lease_id not in self.unproven:
                self.forget_keys(lease_id)

    def exit_code(self, code: int = 0) -> int:
        return TeardownUnproven.exit_code if self.unproven else code

    # -- leases by name -------------------------------------------------------------------------------------------

    def open_leases(self) -> list[Lease]:
        """Of this command's cloud."""
        return [lease for lease in self.ledger.open_leases() if lease.cloud == self.target.kind]

    def named(self, handle: str | None) -> list[Lease]:
        """Every open lease that may be meant, those that are being deleted included. Without a name: what `up` brought."""
        every = self.open_leases()
        if handle is not None:
            return [lease for lease in every if handle in (lease.handle, lease.name.node, lease.id)]
        held = [lease for lease in every if lease.purpose is Purpose.HOLD]
        return [lease for lease in held if lease.handle == default_handle()] or held

    def held(self, handle: str | None = None) -> Lease | None:
        """The slice that is meant, unless it is on its way out."""
        found = [lease for lease in self.named(handle) if lease.state is not LeaseState.DOWN]
        return self.one_of(found)

    def of_run(self, text: str) -> Lease | None:
        """The open lease that the run of this name or id works on, in whichever cloud. None for no such run too."""
        try:
            _, attempt = self.ledger.find_run(text)
        except UnknownRun:
            return None
        return next((lease for lease in self.ledger.open_leases() if lease.id == attempt.lease_id), None)

    def results_on(self, lease: Lease) -> str | None:
        """The run whose results are all that this slice is held for."""
        if lease.run is None:
            return None
        from orchestrator.core.lease.attempt import has_uncollected_results

        try:
            _, attempt = self.ledger.find_run(lease.run)
        except UnknownRun:
            return None
        return lease.run if has_uncollected_results(attempt, lease) else None

    def is_followed(self, lease: Lease) -> bool:
        """Does a process here follow the job on it to its end, to bring its artifacts home? (The collector, or an `attach`.)"""
        return any(a.lease_id == lease.id and self.locks.is_locked(a.id) for a in self.ledger.attempts_open())

    @staticmethod
    def one_of(found: list[Lease]) -> Lease | None:
        if len(found) > 1:
            listed = ", ".join(f"{lease.handle} ({lease.name.node})" for lease in found)
            raise UserError(f"several slices are meant: {listed}", hint="name one of them")
        return found[0] if found else None

    def alone(self, work: str) -> None:
        """Wait until no other process does the same, such as `up` of one name. Held until this process ends."""
        told = False
        while not self.locks.lock(work):
            if not told:
                self.reporter.notice("wait", f"another tpujob process is at it ({work}); waiting for that one")
                told = True

    def need(self, handle: str | None) -> Lease:
        lease = self.held(handle)
        if lease is None:
            what = f"no slice named {handle!r}" if handle else "no slice"
            raise UserError(f"there is {what} on the {self.target.kind} cloud", hint="`tpujob up` brings one")
        return lease


def _unasked(lease: Lease, error: TpujobError) -> Released:
    from orchestrator.core.lease.absence import Verdict
    from orchestrator.engine.leases.release import Released

    return Released(lease, False, 0.0, Verdict(gone=False, missing=(error.message,), last_seen="unknown"))


def _ignore(event: Event) -> None:
    """Of a session that nobody watches."""


def user_name() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container that runs as a number
        return f"user{os.getuid()}"


def default_handle() -> str:
    """The user's name, as `ctpu` did it, in the form that a label can carry."""
    return names.to_job_name(user_name())
