"""Shells and copies on the workers of a slice that is READY, by the user's own OpenSSH and the slice's configuration."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.client import lookup
from orchestrator.client.session import Session
from orchestrator.core.lease.cloud_api import SliceState
from orchestrator.core.lease.lease import Lease
from orchestrator.engine.effects.cloud import Get, Workers
from orchestrator.engine.runtime.retry import until
from orchestrator.errors import Interrupted, TpujobError, UserError
from orchestrator.remote.fleet.fleet import Fleet
from orchestrator.remote.ssh import openssh

ASK_S = 30.0  # how long the API is asked for the slice and its workers


@dataclass(frozen=True, slots=True)
class Shell:
    """How OpenSSH reaches the workers of a slice now."""

    lease: Lease
    fleet: Fleet
    config: Path

    def host(self, worker: int) -> str:
        """Return what `config` calls a worker. Raises UserError for one that there is not; Unreachable and TunnelRefused."""
        workers = self.fleet.workers
        if worker >= len(workers):
            raise UserError(f"{self.lease.handle} has no worker {worker}; its last one is worker {len(workers) - 1}")
        self.fleet.dialer.openssh(workers[worker])
        return openssh.host(self.lease.name.node, worker)


def open_shell(session: Session, name: str | None) -> Shell:
    """Return the way to the workers of a slice, which the API is asked for, and write it down for OpenSSH.

    Raises UserError where there is no such slice, or it is not READY.
    """
    session.announce()
    session.recover()
    lease = lookup.require(session, name)
    give_up_at = session.now() + ASK_S
    view = session.run(until(give_up_at, Get(lease.name)))
    if view is None or view.state is not SliceState.READY:
        state = view.native_state if view else "gone"
        raise UserError(f"{lease.handle} is {state}", hint=f"`tpujob up {lease.handle}` brings it to READY")
    return _written(session, lease, ASK_S)


def write_down(session: Session, lease: Lease) -> None:
    """Write the way to the workers of a slice that is READY down for OpenSSH. What keeps it from that is only reported."""
    try:
        _written(session, lease, 0.0)
    except Interrupted:
        raise
    except TpujobError as error:
        later = f"`tpujob ssh-config {lease.handle}` asks again"
        session.reporter.notice("ssh", f"nothing is known of its workers yet ({error.message}): {later}")


def _written(session: Session, lease: Lease, ask_s: float) -> Shell:
    workers = session.run(until(session.now() + ask_s, Workers(lease.name)))
    notice = lambda text: session.reporter.notice("ssh", text)  # noqa: E731
    fleet = session.world(lease.cloud).reach.fleet(lease, workers, notice, session.now)
    assert isinstance(fleet, Fleet), "a shell is of a slice, never of pods"
    return Shell(lease, fleet, session.lease_directory(lease.id) / openssh.FILE)


@dataclass(frozen=True, slots=True)
class SshOptions:
    """What `tpujob ssh` passes on to OpenSSH."""

    worker: int = 0
    terminal: bool = False  # -t
    no_command: bool = False  # -N
    forward: tuple[str, ...] = ()  # -L
    remote_forward: tuple[str, ...] = ()  # -R
    dynamic_forward: tuple[str, ...] = ()  # -D

    def words(self) -> list[str]:
        """Return them as OpenSSH has them."""
        forwards = {"-L": self.forward, "-R": self.remote_forward, "-D": self.dynamic_forward}
        words = [word for option, values in forwards.items() for value in values for word in (option, value)]
        # Nothing but its forwards is wanted of an ssh without a command: one that cannot be had is to end it.
        words += ["-N", "-o", "ExitOnForwardFailure=yes"] if self.no_command else []
        return words + (["-t"] if self.terminal else [])


def check_forwards(option: str, values: Sequence[str]) -> None:
    """Raise UserError for what ssh takes neither for a port nor for the path of a socket. -R takes a port alone, -D no more."""
    for value in values:
        found = re.fullmatch(r"(?:(?:\[[^]]*\]|[^:/]*):)?(\d+)(:.+)?", value)
        whole = found is not None and (option == "-R" or (found[2] is None) == (option == "-D"))
        taken = found is not None and whole and int(found[1]) < 65536
        if not taken and option == "-D":
            raise UserError(f"-D {value}: not a port", hint="-D takes [ADDRESS:]PORT, such as `-D 1080`")
        if not taken and "/" not in value:
            hint = f"{option} takes [ADDRESS:]PORT:HOST:PORT, such as `{option} 6006:localhost:6006`"
            raise UserError(f"{option} {value}: not a port to forward, and where to", hint=hint)


def ssh_argv(session: Session, name: str | None, options: SshOptions, command: Sequence[str]) -> list[str]:
    """Return the OpenSSH command line for a shell, or for `command`, on one worker of a slice.

    Raises UserError where there is no such slice or worker, it is not READY, or this machine has no `ssh`.
    """
    if options.no_command and command:
        raise UserError("-N runs no command", hint="leave out -N, or what follows `--`")
    require_program("ssh")
    shell = open_shell(session, name)
    return openssh.ssh_argv(shell.config, shell.host(options.worker), options.words(), as_line(command))


def as_line(command: Sequence[str]) -> Sequence[str] | None:
    """Return the words of a command; one word is a line for the shell, as with ssh itself. None: there is none."""
    return ["bash", "-c", command[0]] if len(command) == 1 else command or None


def require_program(name: str) -> None:
    """Raise UserError unless this machine has a program of OpenSSH."""
    if shutil.which(name) is None:
        raise UserError(f"there is no `{name}` on this machine's PATH", hint="install an OpenSSH client")
