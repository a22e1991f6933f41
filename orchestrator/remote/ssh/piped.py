"""The way to workers through a command, such as `ssh -W %h:%p bastion`: OpenSSH's ProxyCommand.

A bastion lets only so many logins be under way at once (sshd's MaxStartups): connections take turns, over all slices of this
process that are reached by the same command.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from orchestrator import fork
from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.core.text.terminal import printable
from orchestrator.errors import ConfigError
from orchestrator.remote.ssh.dial import DOCTOR

if TYPE_CHECKING:
    from subprocess import Popen

AT_ONCE = 8  # logins under way: from the 10th on, sshd refuses some (its MaxStartups is 10:30:100)
HANGS, HANGS_S = 4, 1.0  # a login that takes so many times as long as the slowest one so far, and a second at least
LAST_WORDS_S, LAST_WORDS_BYTES = 1.0, 2000
THROUGH_COMMAND = "does `ssh_proxy_command` work by hand, and may the bastion reach tcp:22 of the workers?"
CANNOT_RUN = (126, 127)  # with which a shell, here or on the bastion, says that there is no such command
TOKENS = re.compile(r"%(.?)")
# Runs the command on the socket that is its stdout, and ends it with stdin, which is open as long as this process wants it: the
# command by itself might never notice that its other end is gone.
KEEPER = """\
exec 3<&0
sh -c "exec $1" <&1 3<&- &
command=$!
exec >&-
trap 'exit 1' HUP
{ read -r _ <&3; kill -HUP 0; } &
exec 3<&- <&-
wait $command 2> /dev/null
trap "exit $?" HUP
kill -HUP 0
"""


class Turns:
    """At most `most` logins at once. One takes its turn until the worker's first byte, which shows that the bastion let it in.

    A login that takes much longer than those before it has passed the bastion and waits there for a dead worker: it counts no
    more, so that 32 dead workers hold up no other one.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._began: list[float] = []  # monotonic, of the logins under way
        self._slowest_s: float | None = None

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        with self._changed:
            while (wait_s := self._wait_s()) != 0:
                self._changed.wait(wait_s)
            began = time.monotonic()
            self._began.append(began)
        passed = False
        try:
            yield
            passed = True
        finally:
            with self._changed:
                self._began.remove(began)
                if passed:
                    self._slowest_s = max(self._slowest_s or 0.0, time.monotonic() - began)
                self._changed.notify_all()

    def _wait_s(self) -> float | None:
        """Return after how long to look again whether there is room; 0.0: there is, None: when a login ends."""
        if len(self._began) < self._most:
            return 0.0
        if self._slowest_s is None:
            return None
        hangs_at = sorted(self._began)[len(self._began) - self._most] + max(HANGS * self._slowest_s, HANGS_S)
        return max(0.0, hangs_at - time.monotonic())


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

    def turn(self) -> AbstractContextManager[object]:
        return turns(os.getpid(), self._command).turn()

    def dial(self, worker: WorkerAddress) -> socket.socket:
        host = worker.internal or worker.host
        values = {"h": host, "n": host, "p": str(worker.port), "r": self._user}
        line = TOKENS.sub(lambda found: "%" if found[1] == "%" else shlex.quote(values[found[1]]), self._command)
        theirs, ours = socket.socketpair()
        fork.close_in_child(theirs)
        with ours:
            return _PipedSocket(theirs, ours, line)

    def openssh(self, worker: WorkerAddress) -> dict[str, str]:
        command = TOKENS.sub(lambda found: "%h" if found[1] == "n" else found[0], self._command)
        return {"HostName": worker.internal or worker.host, "ProxyCommand": command}


class _PipedSocket(socket.socket):
    """The socket to a command. Whatever shuts or closes it ends the command; so does the end of this process."""

    def __init__(self, theirs: socket.socket, ours: socket.socket, line: str) -> None:
        import subprocess

        super().__init__(fileno=theirs.detach())
        fork.close_in_child(self)
        self._errors, self._code = b"", 0
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

    def last_words(self) -> str:
        """Return the last line that the command wrote to stderr; empty without one."""
        self._reader.join(LAST_WORDS_S)
        text = self._errors.decode(errors="replace").strip()
        return printable(text.rpartition("\n")[2])[:200]

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


def last_words(sock: socket.socket | None) -> str:
    """Return what a failed way said of its failure; empty if nothing."""
    return sock.last_words() if isinstance(sock, _PipedSocket) else ""


def cannot_run(sock: socket.socket | None) -> bool:
    """Return whether the way is a command that there is not."""
    return isinstance(sock, _PipedSocket) and sock.cannot_run()
