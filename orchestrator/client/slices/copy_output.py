"""What several programs say of their workers, shown once where they say the same: `tpujob scp --worker all`."""

from collections.abc import Callable, Sequence
from subprocess import Popen

from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.core.text.terminal import LineSplitter
from orchestrator.remote.ssh.openssh import host

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
