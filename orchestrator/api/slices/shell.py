"""The workers of a slice that is READY, by the user's own OpenSSH: shells, commands on all of them, ports, `ssh-config`.

`~/.ssh/config` belongs to the user: `ssh-config` puts one line at its top and takes it out again, nothing else changes, and
where that cannot be done the line is told.
"""

import contextlib
import os
import pwd
import re
import shlex
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.api.session import lookup
from orchestrator.api.session.session import Session
from orchestrator.api.slices import elsewhere
from orchestrator.errors import CloudError, ConfigError, Interrupted, TpujobError, UnknownRun, UserError
from orchestrator.hosts.fleet.fleet import Fleet
from orchestrator.hosts.fleet.on_workers import Ended, Forwarded, SideBySide
from orchestrator.hosts.ssh import openssh
from orchestrator.hosts.ssh.openssh import FILE
from orchestrator.promise.effects.cloud import Get, Workers
from orchestrator.promise.effects.retry import until
from orchestrator.promise.lease.cloud_api import SliceState
from orchestrator.promise.lease.lease import Lease, Purpose
from orchestrator.system import whole_file
from orchestrator.text.redaction import RedactedStream
from orchestrator.text.terminal import LineSplitter, grouped, masked, said_once, worker_names

ASK_S = 30.0  # how long the API is asked for the slice and its workers
KEY_S = 60.0  # for the key of this machine to arrive on the workers of a slice that another one made


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


def open_shell(session: Session, name: str | None, owner: str | None = None) -> Shell:
    """Return the way to the workers of a slice, which the API is asked for, and write it down for OpenSSH.

    One that another machine made is found by its labels: of this user, or of another `owner` who is named. Raises UserError
    where there is no such slice, or it is not READY.
    """
    session.announce()
    session.recover()
    lease = elsewhere.require(session, name, owner)
    shell = open_lease(session, lease)
    if lease.purpose is Purpose.ELSEWHERE:
        shell.fleet.connect(KEY_S, lambda text: session.reporter.progress("connect", text))
    return shell


def open_lease(session: Session, lease: Lease) -> Shell:
    """Return the way to the workers of this slice. Raises UserError where it is not READY."""
    lease = elsewhere.let_in(session, lease)
    give_up_at = session.now(lease.cloud) + ASK_S
    view = session.run(until(give_up_at, Get(lease.name)), lease.cloud)
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
    workers = session.run(until(session.now(lease.cloud) + ask_s, Workers(lease.name)), lease.cloud)
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


def ssh_argv(
    session: Session, name: str | None, options: SshOptions, command: Sequence[str], owner: str | None = None
) -> list[str]:
    """Return the OpenSSH command line for a shell, or for `command`, on one worker of a slice.

    Raises UserError where there is no such slice or worker, it is not READY, or this machine has no `ssh`.
    """
    if options.no_command and command:
        raise UserError("-N runs no command", hint="leave out -N, or what follows `--`")
    require_program("ssh")
    shell = open_shell(session, name, owner)
    return openssh.ssh_argv(shell.config, shell.host(options.worker), options.words(), as_line(command))


def as_line(command: Sequence[str]) -> Sequence[str] | None:
    """Return the words of a command; one word is a line for the shell, as with ssh itself. None: there is none."""
    return ["bash", "-c", command[0]] if len(command) == 1 else command or None


def require_program(name: str) -> None:
    """Raise UserError unless this machine has a program of OpenSSH."""
    if shutil.which(name) is None:
        raise UserError(f"there is no `{name}` on this machine's PATH", hint="install an OpenSSH client")


END_S = 3.0  # from Ctrl-C to SIGKILL
Show = Callable[[int, bool, list[str]], None]  # the worker, whether it is stderr, and clean lines


def run_on_all(session: Session, name: str | None, command: Sequence[str], show: Show, owner: str | None = None) -> int:
    """Run a command on every worker of a slice; return 0, or the exit code of the first one that failed.

    A worker that cannot be reached, or whose connection is cut, counts as 255, as with ssh. KeyboardInterrupt ends the command
    everywhere; so does BrokenPipeError of `show`, when nothing reads the lines any more, which is no failure. Raises UserError
    where there is no such slice, or it is not READY; HostKeyMismatch.
    """
    fleet = open_shell(session, name, owner).fleet
    lines = _Lines(session, show, lambda: _end(running))
    running = fleet.side_by_side(lines)
    try:
        ended = running.run(shlex.join(as_line(command) or ()))
    except KeyboardInterrupt:
        _end(running)
        raise
    finally:
        fleet.cancel()
    if lines.unread:
        return 0
    for text in failures(ended):
        session.reporter.notice("failed", text)
    return next((each.code for each in ended if each.code), 0)


def failures(ended: Iterable[Ended]) -> list[str]:
    """Return a line for each way in which the command failed, with all workers on which it did; the first failure first."""
    failed = [each for each in ended if each.code]
    return [_failure(alike) for alike in grouped(failed, lambda each: (each.code, masked(each.why)))]


def _failure(alike: Sequence[Ended]) -> str:
    if alike[0].why:
        return said_once([each.why for each in alike])
    return f"{worker_names(each.worker for each in alike)}: exit code {alike[0].code}"


def _end(running: SideBySide) -> None:
    """End the command as Ctrl-C in a terminal does, and for certain."""
    running.signal("INT")
    if not running.idle.wait(END_S):
        running.signal("KILL")
        running.idle.wait(END_S)


class _Lines:
    """Makes clean lines of what the workers write, without secrets. `end` ends what writes them, once nothing reads them."""

    def __init__(self, session: Session, show: Show, end: Callable[[], None]) -> None:
        self._secrets, self._show, self._end = session.reporter.secrets, show, end
        self.unread = False
        self._lock = threading.Lock()
        self._streams: dict[tuple[int, bool], tuple[RedactedStream, LineSplitter]] = {}

    def __call__(self, worker: int, is_error: bool, piece: bytes) -> None:
        """Take the next bytes; none at the end."""
        with self._lock:
            key = (worker, is_error)
            if key not in self._streams:
                self._streams[key] = RedactedStream(self._secrets), LineSplitter()
            stream, splitter = self._streams[key]
            lines = splitter.feed(stream.feed(piece) if piece else stream.flush())
            if not piece:
                lines += splitter.flush()
            if not lines or self.unread:
                return
            try:
                self._show(worker, is_error, lines)
            except BrokenPipeError:
                self.unread = True
                threading.Thread(target=self._end, name="end", daemon=True).start()


LOOK_S, ASK_EVERY_S = 0.5, 60.0  # between two looks at the ledger, and two questions to the API
PORT = re.compile(r"(?:(\d{1,5}):)?(\d{1,5})")
MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class PortWish:
    """A port of the worker. `local`: the port here; None: the same one, or another if that is in use."""

    port: int
    local: int | None = None


def port_wish(text: str) -> PortWish | None:
    """Return what `PORT` or `LOCAL:PORT` asks for; None if it is neither. Raises UserError for a number that is no port."""
    found = PORT.fullmatch(text)
    if found is None:
        return None
    local, port = (None if number is None else int(number) for number in found.groups())
    if any(number is not None and not 1 <= number <= MAX_PORT for number in (local, port)):
        raise UserError(f"{text} is no port", hint=f"ports are numbers from 1 to {MAX_PORT}")
    assert port is not None, "the expression has it"
    return PortWish(port, local)


@contextmanager
def forwarding(
    session: Session, name: str | None, wishes: Sequence[PortWish], worker: int = 0
) -> Iterator[tuple[Shell, list[Forwarded]]]:
    """Forward ports of a worker of a slice, or of the slice of a run, for a block. Without wishes: the `ports:` of the run.

    Raises UserError for what there is not, and for a `local` port that is in use; Unreachable and TunnelRefused.
    """
    shell = open_shell(session, name)
    wishes = wishes or [PortWish(port) for port in _ports_of_run(session, shell.lease.run, name)]
    if not wishes:
        raise UserError("there is no port to forward", hint=f"`tpujob forward {shell.lease.handle} 6006`")
    shell.host(worker)
    try:
        shell.fleet.reach(worker)
        yield shell, [_forward(shell, wish, worker) for wish in wishes]
    finally:
        shell.fleet.cancel()


def wait_for_end(session: Session, shell: Shell) -> str:
    """Wait until the slice is released or gone, and return which."""
    ask_at = time.monotonic() + ASK_EVERY_S
    while True:
        time.sleep(LOOK_S)
        if session.ledger.lease(shell.lease.id).down_at is not None:
            return f"{shell.lease.handle} is being released"
        if time.monotonic() >= ask_at:
            ask_at = time.monotonic() + ASK_EVERY_S
            with suppress(CloudError):  # which proves nothing; the connection may be fine
                view = session.run(until(0.0, Get(shell.lease.name)), shell.lease.cloud)
                if view is None or view.state is not SliceState.READY:
                    return f"{shell.lease.handle} is {view.native_state if view else 'gone'}"


def _ports_of_run(session: Session, *names: str | None) -> list[int]:
    for name in names:
        with suppress(UnknownRun):
            if name is not None:
                return list(lookup.run(session, name)[0].spec.ports)
    return []


def _forward(shell: Shell, wish: PortWish, worker: int) -> Forwarded:
    try:
        return shell.fleet.forward(wish.port, worker, wish.local)
    except OSError as error:
        where = f"port {wish.local or wish.port} of this machine"
        raise UserError(f"{where} cannot be had: {error.strerror}", hint="`PORT` alone takes a free one") from error


SECTION = re.compile(rb"[ \t]*(host|match)\b", re.IGNORECASE)  # what follows is only about some hosts
GLOB = re.compile(r"([][*?\\])")
LOCK = "ssh-config"


@dataclass(frozen=True, slots=True)
class Include:
    """The line, and the file that has it or is to have it. `changed`: this call changed the file."""

    line: str
    file: Path
    changed: bool = False


def include(session: Session) -> Include:
    """Return the line for ~/.ssh/config that includes the configuration of every slice of this machine."""
    directory = GLOB.sub(r"\\\1", str(session.directory))
    return Include(f'Include "{directory}/leases/*/{FILE}"', Path.home() / ".ssh" / "config")


def install_include(session: Session) -> Include:
    """Put the line at the top of ~/.ssh/config, once. Raises ConfigError where the file cannot be changed."""
    return _change(session, with_line)


def remove_include(session: Session) -> Include:
    """Take the line out of ~/.ssh/config. Raises ConfigError where the file cannot be changed."""
    return _change(session, without_line)


def config_of(session: Session, name: str) -> str:
    """Return the configuration of a slice, for which the API is asked. Raises UserError unless there is one, and READY."""
    return open_shell(session, name).config.read_text(encoding="utf-8")


def foreign_home() -> Path | None:
    """Return the home directory in which OpenSSH looks, if it is not the one that HOME names."""
    with contextlib.suppress(KeyError, OSError):
        found = Path(pwd.getpwuid(os.getuid()).pw_dir)
        if not found.samefile(Path.home()):
            return found
    return None


def with_line(content: bytes, line: bytes) -> bytes:
    """Return the content with the line before every section; as it is, if it is there already."""
    for each in content.splitlines():
        if SECTION.match(each):
            break
        if each.strip() == line:
            return content
    return line + b"\n" + without_line(content, line)


def without_line(content: bytes, line: bytes) -> bytes:
    """Return the content without the line."""
    return b"".join(each for each in content.splitlines(keepends=True) if each.strip() != line)


def _change(session: Session, change: Callable[[bytes, bytes], bytes]) -> Include:
    wanted = include(session)
    session.lock(LOCK)
    try:
        before = _content(wanted.file)
        after = change(before or b"", wanted.line.encode())
        if after == (before or b""):
            return wanted
        if before is None and not wanted.file.is_symlink():
            wanted.file.parent.mkdir(mode=0o700, exist_ok=True)
        whole_file.write(wanted.file, after, 0o600 if before is None else None)
    except OSError as error:
        raise ConfigError(
            f"{wanted.file} is left as it is: {error.strerror or error}", hint=f"the line is: {wanted.line}"
        ) from error
    return replace(wanted, changed=True)


def _content(file: Path) -> bytes | None:
    """Return the content of a file that this user may replace; None if there is none. Raises OSError."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "it is no file")
    if found.st_uid != os.getuid():
        raise OSError(0, "it belongs to another user")
    if not os.access(file, os.W_OK):
        raise OSError(0, "it is read-only")
    return file.read_bytes()
