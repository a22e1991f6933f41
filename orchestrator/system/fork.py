"""What must end with this process: a forked child closes its copies of it before it runs anything else.

A forked child gets a copy of every open descriptor. A file lock stays held, and a pipe stays open, until the last copy is
closed. Without this module, `kill -9` of a process with living forked children (DataLoader workers of a notebook) would
leave its locks held, and its guardian and its local job would never read the end of their pipes.

A child closes its copy and never unlocks it (LOCK_UN): copies share one lock, so an unlock would take it from the parent.
Programs that are executed (`subprocess`) inherit nothing: descriptors that Python opens are close-on-exec. Children of
multiprocessing's `spawn` and `forkserver` inherit nothing either, once the server runs.

Out of reach: a fork that Python does not see (C code that calls fork(2) and does not exec), and the moment between the
fork and the child's first step.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.system.lazy import Later

if TYPE_CHECKING:
    import subprocess
else:
    subprocess = Later("subprocess")


class Closable(Protocol):
    """A file, a socket or the like, which a forked child must not keep open."""

    def close(self) -> object:
        """Close it."""


class Forked(Protocol):
    """Gets ready for a fork, and goes on after it, in the parent and in the child. Both are called in the thread that forks."""

    def before_fork(self) -> None:
        """Get ready for a fork."""

    def after_fork(self, *, in_child: bool) -> None:
        """Go on after the fork, in the parent or in the child."""


_forking = threading.RLock()  # held by the thread that forks, from before the fork until after it
_descriptors: set[Descriptor] = set()
_closed_in_child: weakref.WeakSet[Closable] = weakref.WeakSet()
_forked: weakref.WeakSet[Forked] = weakref.WeakSet()
_ready: list[Forked] = []  # for the fork under way


@contextmanager
def no_fork() -> Iterator[None]:
    """Hold off forks of this process, and other blocks of this kind, in any other thread. For a few quick steps."""
    with _forking:
        yield


class Descriptor:
    """An open descriptor that no forked child keeps. It stays open until `close`, also when nothing refers to it."""

    def __init__(self, open_: Callable[[], int]) -> None:
        """`open_` returns the descriptor; no fork comes between its opening and its registration. Raises what it raises."""
        with _forking:
            self._number: int | None = open_()
            _descriptors.add(self)

    def fileno(self) -> int:
        """Raise ValueError when it is closed, as in a forked child."""
        if self._number is None:
            raise ValueError("the descriptor is closed")
        return self._number

    @property
    def closed(self) -> bool:
        return self._number is None

    def close(self) -> None:
        """Close it, once."""
        with _forking:
            number, self._number = self._number, None
            _descriptors.discard(self)
            if number is not None:
                os.close(number)


def pipe() -> tuple[int, Descriptor]:
    """Return the read end of a new pipe, for a process that is to be started, and the write end, which ends with this one."""
    with _forking:
        read_end, write_end = os.pipe()
        return read_end, Descriptor(lambda: write_end)


def start(argv: Sequence[str], **options: Any) -> tuple[subprocess.Popen[bytes], Descriptor]:
    """Start a program, and return it with the pipe to its stdin, which ends with this process. Raises OSError."""
    read_end, write_end = pipe()
    try:
        return subprocess.Popen(argv, stdin=read_end, **options), write_end
    except BaseException:
        write_end.close()
        raise
    finally:
        os.close(read_end)


def close_in_child(thing: Closable) -> None:
    """Have forked children close it, such as a socket. It is not kept alive."""
    with _forking:
        _closed_in_child.add(thing)


def register(thing: Forked) -> None:
    """Call its `before_fork` and `after_fork` around each fork. It is not kept alive."""
    with _forking:
        _forked.add(thing)


def _before() -> None:
    _forking.acquire()
    failed: Exception | None = None
    for thing in list(_forked):
        try:
            thing.before_fork()
        except Exception as error:
            failed = error
        else:
            _ready.append(thing)
    if failed is not None:
        raise failed  # Python prints it, and forks


def _after_in_child() -> None:
    for descriptor in list(_descriptors):
        with contextlib.suppress(OSError):
            descriptor.close()
    for thing in list(_closed_in_child):
        with contextlib.suppress(Exception):
            thing.close()
    _finish(in_child=True)


def _finish(*, in_child: bool) -> None:
    try:
        for thing in _ready:
            thing.after_fork(in_child=in_child)
    finally:
        _ready.clear()
        _forking.release()


os.register_at_fork(before=_before, after_in_parent=lambda: _finish(in_child=False), after_in_child=_after_in_child)
