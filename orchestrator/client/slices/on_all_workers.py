"""One command on all workers of a slice, side by side: `tpujob ssh --worker all -- COMMAND`."""

import shlex
import threading
from collections.abc import Callable, Iterable, Sequence

from orchestrator.client.session import Session
from orchestrator.client.slices.shell import as_line, open_shell
from orchestrator.core.text.alike import grouped, masked, said_once, worker_names
from orchestrator.core.text.redaction import RedactedStream
from orchestrator.core.text.terminal import LineSplitter
from orchestrator.remote.fleet.side_by_side import Ended, SideBySide

END_S = 3.0  # from Ctrl-C to SIGKILL
Show = Callable[[int, bool, list[str]], None]  # the worker, whether it is stderr, and clean lines


def run_on_all(session: Session, name: str | None, command: Sequence[str], show: Show) -> int:
    """Run a command on every worker of a slice; return 0, or the exit code of the first one that failed.

    A worker that cannot be reached, or whose connection is cut, counts as 255, as with ssh. KeyboardInterrupt ends the command
    everywhere; so does BrokenPipeError of `show`, when nothing reads the lines any more, which is no failure. Raises UserError
    where there is no such slice, or it is not READY; HostKeyMismatch.
    """
    fleet = open_shell(session, name).fleet
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
