"""The agent's verbs. `serve` runs them for `hosts`, over one connection; scripts of jobs and `on: local` call single ones.

Every answer of a verb is one line of JSON (see `frames`). Each verb imports only what it needs: on a host of sixteen emulated
workers, start-up time is most of what a run costs.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from .files.frames import reply

VERBS = {  # verb: the module that has a function of that name
    "serve": "agent.serve",
    "hello": "agent.serve",
    "heartbeat": "agent.serve",
    "receive": "files.receive",
    "start": "agent.supervisor",
    "stop": "agent.supervisor",
    "status": "agent.stream",
    "follow": "agent.stream",
    "attempts": "agent.attempts",
    "hold": "agent.attempts",
    "log_size": "agent.attempts",
    "pack": "files.pack",
    "tpu_metrics": "agent.chips",
    "chips": "agent.chips",
    "host_metrics": "agent.host",
    "job_packages": "agent.packages",
    "upload": "buckets.upload",
    "jax_cache": "buckets.jax_cache",
    "restore_work": "buckets.restore_work",
    "save_work": "buckets.save_work",
    "environment": "environment.virtualenv",
    "data": "buckets.data",
    "local": "agent.local",
    "pod": "pod.pod",
}


def load(verb: str) -> Any:
    """Return the module of a verb."""
    return import_module(f"{__package__}.{VERBS[verb]}")


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
