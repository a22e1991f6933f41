"""The agent's verbs, as `remote` calls them over SSH. Every answer is one line of JSON (see `frames`).

Each verb imports only what it needs: on a host of sixteen emulated workers, start-up time is most of what a run costs.
"""

from __future__ import annotations

import os
import sys

from .frames import reply

VERBS = {  # verb: the module that has a function of that name
    "hello": "presence",
    "receive": "receive",
    "start": "supervisor",
    "stop": "supervisor",
    "status": "stream",
    "follow": "stream",
    "pack": "pack",
    "upload": "upload",
    "environment": "environment",
    "heartbeat": "presence",
    "local": "local",
}


def main(argv: list[str]) -> int:
    os.umask(0o077)
    verb, *arguments = argv[1:]
    try:
        # importlib would do the same, and takes 5 ms to import itself.
        module = __import__(f"{__package__}.{VERBS[verb]}", fromlist=[verb])
        getattr(module, verb)(*arguments)
    except BrokenPipeError:
        return 1  # the client is gone
    except Exception as error:
        reply({"error": f"{type(error).__name__}: {error}"})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
