"""The traces of profilers among the files of a run, whatever wrote them, and how to look at them. Pure."""

import shlex
from collections.abc import Iterable
from pathlib import PurePosixPath

LAYOUT = "/plugins/profile/"  # where XProf and TensorBoard look for `<time>/<host>.xplane.pb` below a directory
XPLANE, TRACE_EVENTS = ".xplane.pb", (".trace.json.gz", ".trace.json")


def log_directories(paths: Iterable[str]) -> list[str]:
    """Return the directories that XProf opens, below which these files of a run are."""
    found = (path.rpartition(LAYOUT)[0] for path in paths if path.endswith(XPLANE) and LAYOUT in path)
    return list(dict.fromkeys(found))


def trace_events(paths: Iterable[str]) -> list[str]:
    """Return the files that Perfetto opens."""
    return [path for path in paths if path.endswith(TRACE_EVENTS)]


def command(directory: str, below: str) -> str:
    """Return the command that opens a directory of `log_directories`. `directory`: that of the run."""
    return f"xprof --logdir {shlex.quote(str(PurePosixPath(directory) / below))}"


def how_to_open(directory: str, paths: Iterable[str]) -> list[str]:
    """Return a line for each trace: a command for those that XProf opens; if there is none, those for Perfetto."""
    found = list(paths)
    commands = [command(directory, below) for below in log_directories(found)]
    return commands or [f"{path} opens in ui.perfetto.dev" for path in trace_events(found)]
