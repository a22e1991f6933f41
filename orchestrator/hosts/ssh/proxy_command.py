"""The way to workers through a command, such as `ssh -W %h:%p bastion`: OpenSSH's ProxyCommand.

A bastion lets only so many logins be under way at once (sshd's MaxStartups): connections take turns, over all slices of this
process that are reached by the same command.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError
from orchestrator.hosts.ssh.dial import DOCTOR, GivenUp, Took
from orchestrator.promise.lease.cloud_api import WorkerAddress
from orchestrator.system import fork
from orchestrator.text.terminal import printable

if TYPE_CHECKING:
    from subprocess import Popen

AT_ONCE = 8  # logins under way: with 10, sshd refuses some of the next (its MaxStartups is 10:30:100)
HANGS, HANGS_S = 4, 1.0  # a login that takes so many times as long as the slowest one so far, and a second at least
UNKNOWN_S = 5.0  # instead, before the first one was through
LOGIN_GRACE_S = 120.0  # then sshd gives a login up
LAST_WORDS_S, LAST_WORDS_BYTES = 1.0, 2000
THROUGH_COMMAND = "does `ssh_proxy_command` work by hand, and may the bastion reach tcp:22 of the workers?"
OPENSSH_ENDS = "stdio forwarding failed"  # its last line of a `-W` that does not connect; the one before says why
CANNOT_RUN = (126, 127)  # with which a shell, here or on the bastion, says that there is no such command
TOKENS = re.compile(r"%(.?)")
# Runs the command on the socket that is its stdout, and ends it with stdin, which is open as long as this process wants it: the
# command by itself might never notice that its other end is gone. SIGTERM, since under nohup it would ignore SIGHUP.
KEEPER = """\
exec 3<&0
sh -c "exec $1" <&1 3<&- &
command=$!
exec >&-
trap 'exit 1' TERM
{ read -r _ <&3; kill -TERM 0; } &
exec 3<&- <&-
wait $command 2> /dev/null
trap "exit $?" TERM
kill -TERM 0
"""


@dataclass(eq=False, slots=True)
class _Login:
    tries: int  # that were given up before
    began: float  # monotonic
    sock: _PipedSocket | None = None
    given_up: bool = False
    closed_at: float = math.inf  # when it failed; its connection may be open for a moment more

    def hangs_at(self, slowest_s: float | None) -> float:
        patience_s = UNKNOWN_S if slowest_s is None else max(HANGS * slowest_s, HANGS_S)
        return self.began + patience_s * float(2**self.tries)


class Turns:
    """At most `most` logins at once. One takes its turn until the worker's first byte, which shows that the bastion let it in.

    Whether a login that takes much longer than those before it waits for the bastion or, past it, for a dead worker cannot be
    seen. Where others wait, it is ended, and takes another turn after them, with twice the patience: so dead workers hold up
    no other for long, and the bound is certain. Its place is free once its command has ended, or sshd has given it up.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._logins: list[_Login] = []  # under way, the oldest first
        self._waiting: list[int] = []  # the tries of those that wait
        self._slowest_s: float | None = None

    @contextlib.contextmanager
    def turn(self, tries: int = 0) -> Iterator[Took]:
        """Hold a turn, and take the socket of its login. Raises GivenUp; `tries`: how often it did before."""
        login = self._enter(tries)

        def took(sock: socket.socket) -> None:
            with self._changed:
                if isinstance(sock, _PipedSocket):
                    login.sock = sock
                self._changed.notify_all()

        try:
            yield took
        except BaseException as error:
            with self._changed:
                login.closed_at = time.monotonic()
            if login.sock is None:
                self._leave(login)
            else:
                login.sock.on_end(lambda: self._leave(login))
            if login.given_up and isinstance(error, EOFError | OSError):
                raise GivenUp from error
            raise
        with self._changed:
            self._slowest_s = max(self._slowest_s or 0.0, time.monotonic() - login.began)
        self._leave(login)

    def _enter(self, tries: int) -> _Login:
        with self._changed:
            self._waiting.append(tries)
            try:
                while (wait_s := self._wait_s(tries)) != 0:
                    self._changed.wait(wait_s)
                login = _Login(tries, time.monotonic())
                self._logins.append(login)
                return login
            finally:
                self._waiting.remove(tries)
                self._changed.notify_all()

    def _leave(self, login: _Login) -> None:
        with self._changed:
            if login in self._logins:
                self._logins.remove(login)
            self._changed.notify_all()

    def _wait_s(self, tries: int) -> float | None:
        """Return after how long to look again whether there is room; 0.0: there is, None: when a login ends.

        Ends a login that hangs, if none that was ended makes room already.
        """
        now = time.monotonic()
        self._logins = [each for each in self._logins if now < each.closed_at + LOGIN_GRACE_S]
        if tries > min(self._waiting):
            return None
        if len(self._logins) < self._most:
            return 0.0
        moments = [each.closed_at + LOGIN_GRACE_S for each in self._logins if each.closed_at < math.inf]
        leaving = sum(each.given_up for each in self._logins)
        for login in sorted(self._logins, key=lambda each: each.hangs_at(self._slowest_s)):
            if login.given_up or login.sock is None or login.closed_at < math.inf:
                continue
            if (hangs_at := login.hangs_at(self._slowest_s)) > now:
                moments.append(hangs_at)
                break
            if leaving < len(self._waiting):
                login.given_up, leaving = True, leaving + 1
                login.sock.give_up()
        return max(0.001, min(moments) - now) if moments else None


@functools.cache
def turns(_pid: int, _command: str) -> Turns:
    """Return those of this process for this command; a forked child has its own."""
    return Turns(AT_ONCE)


class Piped:
    """Through a command that carries its stdin and stdout to the worker's internal address: OpenSSH's ProxyCommand."""

    files = 3  # our end of its stdin and stdout, its stderr, and what ends it

    def __init__(self, command: str, user: str) -> None:
        """Raises ConfigError for a command with a %-token that is not %h, %p, %r, %n or %%."""
        unknown = next((token for token in TOKENS.findall(command) if token not in tuple("hprn%")), None)
        if not command.strip() or unknown is not None:
            what = "is empty" if unknown is None else f"has %{unknown}, which means nothing there"
            raise ConfigError(
                f"ssh_proxy_command {what}", hint="%h is the host, %p the port, %r the user, %% a percent sign"
            )
        self._command, self._user = command, user
        self.way, self.hint = "through `ssh_proxy_command`", THROUGH_COMMAND + DOCTOR

    def turn(self, tries: int = 0) -> AbstractContextManager[Took]:
        return turns(os.getpid(), self._command).turn(tries)

    def dial(self, worker: WorkerAddress) -> socket.socket:
        host = worker.internal or worker.host
        values = {"h": host, "n": host, "p": str(worker.port), "r": self._user}
        line = TOKENS.sub(lambda found: "%" if found[1] == "%" else shlex.quote(values[found[1]]), self._command)
        theirs, ours = socket.socketpair()
        for end in (theirs, ours):
            fork.close_in_child(end)
        with ours:
            return _PipedSocket(theirs, ours, line)

    def openssh(self, worker: WorkerAddress) -> dict[str, str]:
        command = TOKENS.sub(lambda found: "%h" if found[1] == "n" else found[0], self._command)
        return {"HostName": worker.internal or worker.host, "ProxyCommand": command}


class _PipedSocket(socket.socket):
    """The socket to a command. Whatever shuts or closes it ends the command; so does the end of this process."""

    def __init__(self, theirs: socket.socket, ours: socket.socket, line: str) -> None:
        super().__init__(fileno=theirs.detach())
        fork.close_in_child(self)
        self._errors, self._code = b"", 0
        self._lock, self._ended = threading.Lock(), False
        self._at_end: list[Callable[[], None]] = []
        argv = ["sh", "-c", KEEPER, "tpujob-proxy", line]
        try:
            process, self._lifeline = fork.start(argv, stdout=ours, stderr=subprocess.PIPE, start_new_session=True)
        except OSError:
            super().close()
            raise
        self._reader = threading.Thread(target=self._read_errors, args=(process,), name="ssh-proxy", daemon=True)
        self._reader.start()

    def shutdown(self, how: int) -> None:
        self._lifeline.close()
        super().shutdown(how)

    def close(self) -> None:
        self._lifeline.close()
        super().close()

    def give_up(self) -> None:
        """End the command, so that whatever waits for it here fails. From any thread."""
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def on_end(self, call: Callable[[], None]) -> None:
        """Make the call once the command has ended, at once if it has."""
        with self._lock:
            if not self._ended:
                self._at_end.append(call)
                return
        call()

    def last_words(self) -> str:
        """Return the last line that the command wrote to stderr and that says why; empty without one."""
        self._reader.join(LAST_WORDS_S)
        lines = self._errors.decode(errors="replace").strip().splitlines() or [""]
        return printable(next((line for line in reversed(lines) if line != OPENSSH_ENDS), lines[-1]))[:200]

    def cannot_run(self) -> bool:
        """Return whether there is no such command, so that waiting mends nothing."""
        self._reader.join(LAST_WORDS_S)
        return self._code in CANNOT_RUN

    def _read_errors(self, process: Popen[bytes]) -> None:
        with process:
            assert process.stderr is not None, "it is a pipe"
            while piece := process.stderr.read1():  # type: ignore[attr-defined]
                self._errors = (self._errors + piece)[-LAST_WORDS_BYTES:]
        self._code = process.returncode
        with self._lock:
            self._ended = True
        for call in self._at_end:
            call()


def last_words(sock: socket.socket | None) -> str:
    """Return what a failed way said of its failure; empty if nothing."""
    return sock.last_words() if isinstance(sock, _PipedSocket) else ""


def cannot_run(sock: socket.socket | None) -> bool:
    """Return whether the way is a command that there is not."""
    return isinstance(sock, _PipedSocket) and sock.cannot_run()
