"""Copies between this machine and the workers of a slice, by the user's own scp: `tpujob scp`.

A place is written as for scp, with the slice for the host: `SLICE:PATH`, or `SLICE:N:PATH` for worker N. Everything else is a
local file, also one whose colon comes after a slash.
"""

import contextlib
import re
import stat
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen

from orchestrator.api.session.arguments import worker_or_all
from orchestrator.api.session.session import Session
from orchestrator.api.slices.shell import Shell, failures, open_shell, require_program
from orchestrator.errors import UserError
from orchestrator.hosts.fleet.on_workers import UNKNOWN, Ended
from orchestrator.hosts.ssh.openssh import host, scp_argv
from orchestrator.promise.lease.cloud_api import WorkerAddress
from orchestrator.system import fork
from orchestrator.text.terminal import LineSplitter

# What several programs say of their workers, shown once where they say the same: `tpujob scp --worker all`.

MOST_LINES = 1000  # of one program
Show = Callable[[int, list[str]], None]  # the worker, and clean lines


class Said:
    """Shows what scp said of a worker, unless it said the same of another one, but for the names of the two."""

    def __init__(self, node: str, workers: Sequence[WorkerAddress]) -> None:
        self._names = {
            each.index: (host(node, each.index), each.instance, each.host, each.internal, f"port {each.port}")
            for each in workers
        }
        self._shown: set[tuple[int, tuple[str, ...]]] = set()

    def __call__(self, worker: int, code: int, lines: list[str], show: Show) -> None:
        alike = code, tuple(self._without_names(worker, line) for line in lines)
        if lines and alike not in self._shown:
            self._shown.add(alike)
            show(worker, lines)

    def _without_names(self, worker: int, line: str) -> str:
        for name in (f"/worker{worker}/", *sorted(filter(None, self._names[worker]), key=len, reverse=True)):
            line = line.replace(name, "#")
        return line


def lines_of(process: Popen[bytes]) -> list[str]:
    """Return what a program says until it ends: clean lines, of very many the first."""
    assert process.stdout is not None, "it is a pipe"
    splitter, lines, left = LineSplitter(), list[str](), 0
    while piece := process.stdout.read1():  # type: ignore[attr-defined]
        lines += splitter.feed(piece)
        left += len(lines[MOST_LINES:])
        del lines[MOST_LINES:]
    lines += splitter.flush()
    return [*lines, f"(and {left:,} more lines)"] if left else lines


AT_ONCE = 8  # as logins through a bastion: with 10, sshd refuses some of the next
REMOTE = re.compile(r"(?P<slice>[^:/]+):(?:(?P<worker>\d+):)?(?P<path>.*)", re.DOTALL)
# Runs a program, and ends it with stdin, which is open as long as this process lives.
LEASH = """\
exec 3<&0
"$@" </dev/null 3<&- &
program=$!
{ read -r _ <&3; kill $program; } 2>/dev/null &
exec 3<&-
wait $program
code=$?
kill $! 2>/dev/null
exit $code
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A file or directory. `slice` None: on this machine. `worker` None: none is named."""

    path: str
    slice: str | None = None
    worker: int | None = None


def place(word: str) -> Place:
    """Return the place that a word names."""
    found = REMOTE.fullmatch(word)
    if found is None:
        return Place(word)
    worker = found["worker"]
    return Place(found["path"], found["slice"], None if worker is None else int(worker))


@dataclass(frozen=True, slots=True)
class Copy:
    """What is copied where, from one slice or to it. `everywhere`: from all workers, or to all."""

    slice: str
    sources: tuple[Place, ...]
    target: Place
    everywhere: bool = False
    worker: int = 0  # of places that name none
    recursive: bool = False


def parse(words: Sequence[str], worker: str | None, *, recursive: bool) -> Copy:
    """Return the copy that the words and `--worker` ask for. Raises UserError."""
    *sources, target = map(place, words)
    slices = {each.slice for each in (*sources, target) if each.slice is not None}
    if not sources:
        raise UserError("there is nothing to copy to", hint="`tpujob scp SRC... DST`, one of them `SLICE:PATH`")
    if not slices:
        raise UserError(
            "neither SRC nor DST names a slice", hint="write `SLICE:PATH`, or `SLICE:N:PATH` for a worker other than 0"
        )
    if len(slices) > 1:
        raise UserError(
            f"one slice at a time, not {' and '.join(sorted(slices))}", hint="a local file: `./NAME:WITH-COLON`"
        )
    index = None if worker is None else worker_or_all(worker)
    if worker is not None and any(each.worker is not None for each in (*sources, target)):
        raise UserError("a worker is named twice: by SLICE:N:PATH and by --worker", hint="leave one of them out")
    everywhere = worker is not None and index is None
    if everywhere and len({each.slice for each in sources}) + (target.slice == sources[0].slice) != 1:
        raise UserError("--worker all copies from this machine to all workers, or from them to a directory here")
    return Copy(slices.pop(), tuple(sources), target, everywhere, index or 0, recursive)


def copy_argv(shell: Shell, copy: Copy) -> list[str]:
    """Return the command line of scp for a copy that is not everywhere. Raises UserError for a worker that there is not."""
    return scp_argv(
        shell.config, copy.recursive, [_word(shell, each, copy.worker) for each in (*copy.sources, copy.target)]
    )


def check_sources(copy: Copy) -> None:
    """Raise UserError for a local file that scp could copy to no worker."""
    for source in (each for each in copy.sources if each.slice is None):
        try:
            is_directory = stat.S_ISDIR(Path(source.path).stat().st_mode)
        except OSError as error:
            raise UserError(f"{source.path}: {error.strerror}") from error
        if is_directory and not copy.recursive:
            raise UserError(f"{source.path}: is a directory", hint="copy it with `-r`")


def open_copy(session: Session, copy: Copy) -> Shell:
    """Return the way to the slice.

    Raises UserError where there is none, it is not READY, this machine has no `scp`, or a local file cannot be copied.
    """
    require_program("scp")
    check_sources(copy)
    return open_shell(session, copy.slice)


def copy_everywhere(session: Session, shell: Shell, copy: Copy, show: Show) -> int:
    """Copy to all workers, or from each into `worker<i>` below the target, 8 at once; return 0, or the first failure's code.

    `show` gets what scp says, once it has ended, and once for all workers of which it says the same.
    KeyboardInterrupt, like the end of this process, ends every scp. Raises UserError for a target that is no directory.
    """
    workers = [worker.index for worker in shell.fleet.workers]
    jobs = [(index, _argv_for(shell, copy, index)) for index in workers]
    waiting, ended = deque(jobs), list[Ended]()
    said = Said(shell.lease.name.node, shell.fleet.workers)
    running: set[fork.Descriptor] = set()
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                index, argv = waiting.popleft()
                try:
                    process, leash = fork.start(["sh", "-c", LEASH, "scp", *argv], stdout=PIPE, stderr=STDOUT)
                except OSError as error:  # such as too many open files
                    ended.append(Ended(index, UNKNOWN, f"worker{index}: scp cannot be started: {error.strerror}"))
                    continue
                running.add(leash)
            with process:
                lines = lines_of(process)
            with lock:
                running.discard(leash)
                ended.append(Ended(index, process.returncode))
                said(index, process.returncode, lines, show)
            leash.close()

    threads = [threading.Thread(target=work, name="scp", daemon=True) for _ in range(min(AT_ONCE, len(jobs)))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        with lock:
            waiting.clear()
        for leash in list(running):
            leash.close()
        raise
    finally:
        _remove_empty(copy, workers)
    for text in failures(ended):
        session.reporter.notice("failed", text)
    return next((each.code for each in ended if each.code), 0)


def _argv_for(shell: Shell, copy: Copy, worker: int) -> list[str]:
    places = [_word(shell, each, worker) for each in copy.sources]
    if copy.target.slice is not None:
        return scp_argv(shell.config, copy.recursive, [*places, _word(shell, copy.target, worker)])
    directory = _directory(copy, worker)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{directory} cannot be created: {error.strerror}", hint="the target of all workers is a directory"
        ) from error
    return scp_argv(shell.config, copy.recursive, [*places, f"{directory}/"])


def _directory(copy: Copy, worker: int) -> Path:
    return Path(copy.target.path).absolute() / f"worker{worker}"


def _remove_empty(copy: Copy, workers: Sequence[int]) -> None:
    """Leave no directory of a worker from which nothing came."""
    if copy.target.slice is None:
        for worker in workers:
            with contextlib.suppress(OSError):
                _directory(copy, worker).rmdir()


def _word(shell: Shell, place: Place, worker: int) -> str:
    """Return a place as scp has it."""
    if place.slice is None:
        return place.path
    return f"{shell.host(worker if place.worker is None else place.worker)}:{place.path}"
