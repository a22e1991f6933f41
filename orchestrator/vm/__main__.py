"""The agent's verbs. `serve` runs them for `remote`, over one connection; scripts of jobs and `on: local` call single ones.

Every answer of a verb is one line of JSON (see `frames`). Each verb imports only what it needs: on a host of sixteen emulated
workers, start-up time is most of what a run costs.
"""

from __future__ import annotations

import os
import sys

from .files.frames import reply

TYPE_CHECKING = False  # typing itself takes 5 ms to import, on each of many short calls
if TYPE_CHECKING:
    from typing import Any

VERBS = {  # verb: the module that has a function of that name
    "serve": "serve",
    "hello": "serve",
    "receive": "receive",
    "start": "supervisor",
    "stop": "supervisor",
    "status": "stream",
    "follow": "stream",
    "pack": "pack",
    "tpu_metrics": "chips",
    "chips": "chips",
    "upload": "upload",
    "environment": "environment",
    "data": "data",
    "heartbeat": "serve",
    "local": "local",
    "pod": "pod",
}


def load(verb: str) -> Any:
    """Return the module of a verb."""
    # importlib would do the same, and takes 5 ms to import itself.
    return __import__(f"{__package__}.{VERBS[verb]}", fromlist=[verb])


def run(verb: str, arguments: list[str]) -> int:
    """Run a verb in this process, and return its exit code; a failure is its answer."""
    try:
        getattr(load(verb), verb)(*arguments)
    except BrokenPipeError:
        return 1  # the client is gone
    except Exception as error:
        reply({"error": f"{type(error).__name__}: {error}"})
        return 1
    return 0


def main(argv: list[str]) -> int:
    os.umask(0o077)
    return run(argv[1], argv[2:])


if __name__ == "__main__":
    sys.exit(main(sys.argv))
