"""Processes that end with the one that started them, each with a log file of its own."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def end_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends, however that ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nothing listens on."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]


class Children:
    """The programs of a control plane by name. Start them from the main thread: they end with the thread that did it."""

    def __init__(self, logs: Path) -> None:
        logs.mkdir()
        self.logs = logs
        self._down: set[str] = set()
        self._running: dict[str, tuple[subprocess.Popen[bytes], list[str], Mapping[str, str]]] = {}

    def start(self, name: str, words: Iterable[str | Path], env: Mapping[str, str] | None = None) -> None:
        """Start it; what it prints goes to `<name>.log`."""
        line, env = [str(word) for word in words], env or {}
        with (self.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"PATH": os.environ["PATH"], "HOME": str(self.logs), **env},
                cwd=self.logs,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - one system call
            )
        self._running[name] = (process, line, env)

    def pid(self, name: str) -> int:
        return self._running[name][0].pid

    def kill(self, name: str) -> None:
        """SIGKILL, and wait for its end."""
        self._down.add(name)
        process = self._running[name][0]
        process.kill()
        process.wait()

    def again(self, name: str) -> None:
        """Start it with the same words as before."""
        _, words, env = self._running[name]
        self.start(name, words, env)
        self._down.discard(name)

    def check(self) -> None:
        """Raise RuntimeError with the end of the log of a program that has ended by itself."""
        for name, (process, _, _) in self._running.items():
            if name not in self._down and (code := process.poll()) is not None:
                raise RuntimeError(f"{name} ended with {code}: {self.logs / f'{name}.log'}\n{self.tail(name)}")

    def tail(self, name: str, lines: int = 15) -> str:
        return "\n".join((self.logs / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])

    def close(self) -> None:
        """End all of them."""
        for process, _, _ in self._running.values():
            process.kill()
        for process, _, _ in self._running.values():
            process.wait()
