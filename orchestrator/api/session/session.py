"""The session of a command or a call: its cloud, ledger, locks and world, and the recovery of what earlier ones left.

Opening a session uses no network: the first effect that needs the cloud connects to it. What runs programs is imported when
there is a program to run, so that commands that find nothing to do stay quick.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from orchestrator import places, settings, traits
from orchestrator.api.session.connections import Connections
from orchestrator.api.session.reporter import Reporter
from orchestrator.errors import NOT_PROVEN, CloudUnavailable, ConfigError, Interrupted, TeardownUnproven, TpujobError
from orchestrator.notify.notifier import Notifier
from orchestrator.promise.effects.locks import FileLocks
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.ledger.clocks import Clocks
from orchestrator.settings import Target
from orchestrator.system import fork, private_files
from orchestrator.system.lazy import Later
from orchestrator.system.user import user_name
from orchestrator.text import names
from orchestrator.text.units import clock

if TYPE_CHECKING:
    import hashlib
    import socket

    from orchestrator.api.session import left_keys
    from orchestrator.places.desk import Emulator
    from orchestrator.promise import recover, server_time
    from orchestrator.promise.effects.base import Program
    from orchestrator.promise.effects.interpreter import Interpreter
    from orchestrator.promise.effects.world import RealWorld
    from orchestrator.promise.lease import absence, claim_labels, cloud_api
    from orchestrator.promise.lease.run_and_attempt import RunRecord
    from orchestrator.report import messages
else:  # where something is owed
    hashlib, socket = Later("hashlib"), Later("socket")
    left_keys = Later("orchestrator.api.session.left_keys")
    recover, server_time = Later("orchestrator.promise.recover"), Later("orchestrator.promise.server_time")
    absence = Later("orchestrator.promise.lease.absence")
    claim_labels = Later("orchestrator.promise.lease.claim_labels")
    cloud_api = Later("orchestrator.promise.lease.cloud_api")
    messages = Later("orchestrator.report.messages")

T = TypeVar("T")
AfterEnd = Callable[["Session", "RunRecord"], None]

LOCK_POLL_S = 0.1
RECOVERY_S = 20.0  # how long a command that only reads waits for the proof of an old teardown


class Session:
    """`unproven` has the releases of this session without a proof, by lease: with any of them the exit code is 75."""

    def __init__(
        self,
        target: Target,
        directory: Path,
        reporter: Reporter | None = None,
        *,
        quiet: bool = False,
        light: bool = False,
        cloud_is_named: bool = False,
        after_end: AfterEnd | None = None,
    ) -> None:
        self.target = target
        self._after_end = after_end  # called with a run whose process was killed, once it has ended
        self.cloud_is_named = cloud_is_named  # by the caller, not by the settings
        self.directory = directory
        self.reporter = reporter or Reporter()
        self.notifier = Notifier(directory, target.notify, self.reporter.secrets)
        self.ledger = self.notifier.open_ledger()
        self.clocks = Clocks(self.ledger)
        self.locks = FileLocks(directory / "locks")
        self.unproven: dict[str, absence.Released] = {}
        self._connections = Connections(target, directory, self.reporter, light=light)
        self._worlds: dict[str, RealWorld] = {}
        self._running: list[Interpreter] = []
        self._asked_to_end: tuple[int, str, bool] | None = None  # and no program was told of it yet
        self._announced = self._told_of_newer = False
        self._asked_time: set[str] = set()
        self.keys_left: set[str] = set()  # leases whose key OS Login did not remove
        self.quiet = quiet
        self._interrupted: Interrupted | None = None

    @classmethod
    def open(
        cls,
        cloud: str | None = None,
        project: str | None = None,
        *,
        reporter: Reporter | None = None,
        quiet: bool = False,
        light: bool = False,
        after_end: AfterEnd | None = None,
    ) -> Session:
        """Return a session for this cloud, or for the configured one. Raises ConfigError.

        `light`: for commands that create nothing: they sign in with their first call, and accept a state directory that other
        users could change. `quiet`: report no release that is proven.
        """
        target = settings.resolve(cloud, project, os.environ)
        reporter = reporter or Reporter()
        warn = (lambda text: reporter.notice("warning", text)) if light else None
        directory = settings.open_state_dir(settings.state_dir(os.environ), warn=warn)
        if target.endpoint is not None:
            # An emulator that is not the embedded one: an absence there proves nothing here, so it has its own ledger.
            directory = directory / "endpoints" / hashlib.sha256(target.endpoint.encode()).hexdigest()[:12]
            private_files.make_directory(directory)
        named = cloud is not None or project is not None
        return cls(target, directory, reporter, quiet=quiet, light=light, cloud_is_named=named, after_end=after_end)

    def beside(self, reporter: Reporter, *, runs_dir: str | None = None) -> Session:
        """Return another session of the same cloud, for another thread. `runs_dir`: below which its runs get directories."""
        target = self.target if runs_dir is None else replace(self.target, runs_dir=runs_dir)
        return Session(target, self.directory, reporter, cloud_is_named=self.cloud_is_named, after_end=self._after_end)

    # -- the world ------------------------------------------------------------------------------------------------

    def now(self, cloud: str | None = None) -> float:
        """Return the ledger's time of this session's cloud, or of another one, in unix seconds (`promise.ledger.clocks`)."""
        return self.clocks.now(cloud or self.target.kind)

    def certain_now(self) -> float:
        """Return the same, for the start of a claim. Raises CloudUnavailable after a restart, until the cloud told its time."""
        if not self.clocks.is_certain(self.target.kind):
            raise CloudUnavailable(
                "this machine was restarted, and the cloud does not say how long it was off",
                hint="nothing was created; try again when the API answers",
            )
        return self.now()

    def announce(self) -> None:
        """Report the cloud of this session, and why it is that one. Reported once."""
        if not self._announced:
            self._announced = True
            self.reporter.notice("cloud", self.target.why)

    def world(self, cloud: str | None = None) -> RealWorld:
        """Return the world of the programs of this session's cloud, or of another one. Connects to nothing yet."""
        kind = cloud or self.target.kind
        if kind not in self._worlds:
            from orchestrator.promise.effects.world import RealWorld  # reading commands do without

            self._worlds[kind] = RealWorld(
                kind=kind,
                clocks=self.clocks,
                ledger=self.ledger,
                locks=self.locks,
                report=self.notifier.reporting(self.reporter.report, self.ledger),
                start_guardian=self._connections.guardian(),
                open_cloud=partial(self._connections.connect, kind),
                reach=places.place_of(kind).reach(self, kind),
                channel=traits.traits_of(kind).reached,
                still_there=partial(self._connections.still_there, kind),
            )
        return self._worlds[kind]

    def cloud(self, cloud: str) -> cloud_api.Cloud:
        """Return the client of a cloud, which is opened with its first use."""
        return self.world(cloud).cloud

    def emulator(self, cloud: str) -> Emulator | None:
        """Return where an emulated cloud answers, which is started if need be; None: the cloud is Google's."""
        return self._connections.emulator(cloud)

    def check_machine(self, workers: int = 0, files_each: int = 1) -> None:
        """Raise ConfigError for what would end a run on so many workers once its slice is billed."""
        from orchestrator.hosts.fleet.connecting import check_limits  # only for a run

        self.locks.check()
        check_limits(workers, files_each)

    def run_of(self, lease: Lease) -> RunRecord | None:
        """Return the run of a lease."""
        return self.ledger.run(lease.run)[0] if lease.run is not None else None

    def run(self, program: Program[T], cloud: str | None = None) -> T:
        """Run a program on this session's cloud, or another one, and return its result. Signals interrupt it.

        Raises TeardownUnproven when signals ended it before the proof that it owed.
        """
        from orchestrator.promise.effects.interpreter import Abandoned, Interpreter  # only for a program

        interpreter = Interpreter(self.world(cloud))
        with fork.no_fork():
            self._running.append(interpreter)
            if self._asked_to_end is not None:
                number, by, told = self._asked_to_end
                interpreter.interrupt(number, by, told=told)
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

    def interrupt(self, number: int = signal.SIGINT, by: str = "", *, told: bool = False) -> None:
        """Interrupt the running program, or else the next one, as this signal does. Called from any thread.

        `told`: the user has been told what follows.
        """
        with fork.no_fork():
            self._asked_to_end = (number, by, told)
            for interpreter in self._running:
                interpreter.interrupt(number, by, told=told)

    def close(self) -> None:
        """Close locks, connections, ledger and the guardian's pipe, once no program runs any more.

        The guardian then releases what is owed and not proven gone, as after the end of a process. In a forked child this
        closes nothing of the parent's.
        """
        self.notifier.close()
        self.locks.close()
        for world in self._worlds.values():
            world.close()
        self.ledger.close()

    def _left_behind(self, interrupted: Interrupted | None) -> TpujobError:
        """Report every slice that this process still owes; return the error of a command that ended before the proof."""
        reason = TeardownUnproven("you left before it was proven")
        owed = [lease for lease in self.ledger.open_leases() if self.locks.is_held(lease.id)]
        for lease in owed:
            self._alert(absence.unchecked(lease, reason))
        if not owed and interrupted is not None:
            return interrupted  # another process has the proof
        return TeardownUnproven(
            "left before the slice was proven gone", hint="every tpujob command continues the deletion"
        )

    def on_cloud(self, build: Callable[[cloud_api.Capabilities], Program[T]], cloud: str | None = None) -> T:
        """Run a program that needs the capabilities of the cloud, if one is asked."""
        asked = traits.traits_of(cloud or self.target.kind).billed
        return self.run(build(self.world(cloud).cloud.capabilities if asked else cloud_api.NO_CLOUD), cloud)

    @property
    def runs_directory(self) -> Path:
        """The directory below which every run gets its own."""
        return Path(self.target.runs_dir or "runs").absolute()

    @property
    def emulator_directory(self) -> Path:
        return self._connections.emulator_directory

    def lease_directory(self, lease_id: str) -> Path:
        """Return the private directory of a lease, for its SSH keys; create it if it is missing. Raises ConfigError."""
        directory = self.directory / "leases" / lease_id
        try:
            private_files.make_directory(directory)
        except OSError as error:
            raise ConfigError(
                f"{error.filename} cannot be created: {error.strerror}",
                hint="the SSH keys of the slice go there; TPUJOB_STATE_DIR can name another directory",
            ) from error
        return directory

    @property
    def owner(self) -> str:
        """Who owns what this user makes, as in labels and in the names of nodes: the same on every machine."""
        return self.target.owner or names.owner_name(user_name(), os.uname().nodename, self.target.account)

    # -- what is owed ---------------------------------------------------------------------------------------------

    def recover(self, *, budget_s: float = RECOVERY_S, spare: str | None = None, look: bool = False) -> None:
        """Finish what earlier commands left, in every cloud: releases that are overdue, attempts whose process died.

        `spare`: leave the slices of this handle alone. `look`: ask the cloud also about slices that are held or detached; their
        watchdog may have deleted them. Waits `budget_s` at most for proofs; a cloud that fails is reported, not raised. Raises
        Interrupted.
        """
        if self.ledger.newer is not None and not self._told_of_newer:
            text = f"{self.ledger.newer.message}; what is over is ended, and nothing new is created"
            self.reporter.notice("warning", text)
            self._told_of_newer = True
        open_before = {attempt.run_id for attempt in self.ledger.attempts_open()}
        if open_before or self.ledger.open_leases():
            self._recover(budget_s, spare, look)
            self._report_ended(open_before)
        self.notifier.attend(self.ledger)
        self._forget_left_keys()  # last: an OS Login that does not answer delays no release

    def _report_ended(self, runs: set[str]) -> None:
        """Tell of those of these runs that have ended: no process of their own does."""
        for run_id in runs - {attempt.run_id for attempt in self.ledger.attempts_open()}:
            if self._after_end is not None:
                self._after_end(self, self.ledger.run(run_id)[0])

    def _recover(self, budget_s: float, spare: str | None, look: bool) -> None:
        self.run(recover.close_attempts())
        for kind in traits.billed_clouds():
            self._ask_time(kind)
            if not self.run(recover.overdue(kind, spare=spare, look=look), kind):
                continue
            try:
                program = partial(recover.recover, kind, budget_s=budget_s, spare=spare, look=look)
                results = self.on_cloud(program, kind)
            except TpujobError as error:
                self._recovery_failed(kind, error)
                continue
            for released in results:
                self.note(released)
            if self._interrupted is not None:
                raise self._interrupted  # Ctrl-C is for the command, not only for its recovery
            self.run(recover.close_attempts())

    def _ask_time(self, kind: str) -> None:
        """Ask the cloud how long this machine was off: once a session, and only after a restart."""
        owed = [lease for lease in self.ledger.open_leases() if lease.cloud == kind]
        if owed and kind not in self._asked_time and not self.clocks.is_certain(kind):
            self._asked_time.add(kind)
            try:
                self.run(server_time.ask_time(owed[0]), kind)
            except Interrupted:
                raise  # Ctrl-C is for the command, not only for the question
            except TpujobError as error:  # such as no credentials for a cloud that this session does not use
                self.reporter.notice("clock", f"how long this machine was off is not known yet: {error.message}")

    def _recovery_failed(self, kind: str, error: TpujobError) -> None:
        self.reporter.fail(error)
        for lease, why, *_ in self.run(recover.overdue(kind), kind):
            self.reporter.alert(f"!! NOT VERIFIED GONE: {lease.name.node} ({lease.name.zone}): {why}")
            self.unproven[lease.id] = unchecked = absence.unchecked(lease, error)
            self.notifier.unproven(self.ledger, unchecked, self.now(kind))

    def know_secrets(self, run: RunRecord) -> None:
        """Hide what this process has in the variables from which the job got its secrets."""
        self.reporter.secrets.add(*(os.environ.get(name, "") for name in run.spec.secret_sources))

    def note(self, released: absence.Released) -> None:
        """Report how a release ended, and remember it for the exit code."""
        if released.gone:
            self.unproven.pop(released.lease.id, None)
            self.forget_keys(released.lease.id)
            if not self.quiet:
                self.reporter.notice(
                    "release", f"{released.lease.name.node} absent (checked {clock(released.checked_at)})"
                )
            return
        self.unproven[released.lease.id] = released
        self._alert(released)

    def _alert(self, released: absence.Released) -> None:
        lease = released.lease
        self.notifier.unproven(self.ledger, released, self.now(lease.cloud))
        timings = settings.timings_of(lease.cloud, os.environ)
        watchdog_by = (
            claim_labels.watchdog_acts_by(lease, self.now(lease.cloud), timings) if lease.sent_at is not None else None
        )
        self.reporter.alert(
            messages.unproven_alert(released, self._connections.guardian_words, watchdog_by=watchdog_by)
        )

    def forget_keys(self, lease_id: str) -> None:
        """Delete the SSH keys of a slice that is gone. Its directory stays while its key is left in the OS Login profile."""
        left_keys.forget(self, lease_id)

    def _forget_left_keys(self) -> None:
        if any((self.directory / "leases").glob("*")):
            left_keys.forget_gone(self)

    def forget_drafts(self, made: Iterable[str], *, kept: Lease | None = None) -> None:
        """Delete the SSH keys of these leases, but those of `kept` and of slices that are not proven gone."""
        for lease_id in made:
            if (kept is None or lease_id != kept.id) and lease_id not in self.unproven:
                self.forget_keys(lease_id)

    def exit_code(self, code: int = 0) -> int:
        """Return 75 if a release of this session is not proven, else `code`."""
        return NOT_PROVEN if self.unproven else code

    def open_leases(self) -> list[Lease]:
        """Return the open leases of this session's cloud."""
        return [lease for lease in self.ledger.open_leases() if lease.cloud == self.target.kind]

    def lock(self, name: str) -> None:
        """Wait for a lock of this name, such as `up alice`. It is held until the session closes or its process ends."""
        if self.locks.lock(name):
            return
        self.reporter.notice("wait", f"another tpujob process has the lock `{name}`; waiting for its end")
        while not self.locks.lock(name):
            time.sleep(LOCK_POLL_S)
