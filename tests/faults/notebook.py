"""A program that uses the Python API as a notebook does, with forked children as a DataLoader makes them.

`python notebook.py WHAT JOB…`: it prints what happens, and lives on when the work has ended, as a kernel does.
"""

import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import tpujob

forked = threading.Lock()


def tell(text: str) -> None:
    print(text, flush=True)


def fork_children() -> None:
    """They live until they are killed, whatever becomes of this process."""
    for _ in range(2):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
        child.start()
        tell(f"child {child.pid}")


def forking_at(kind: type[tpujob.Event], text: str = "") -> Callable[[tpujob.Event], None]:
    """For `on_event`: at the first event of this kind with this text, in the thread where it happens."""

    def on_event(event: tpujob.Event) -> None:
        if isinstance(event, kind) and text in str(event) and forked.acquire(blocking=False):
            fork_children()
            tell("forked")

    return on_event


def run(job: str, on_event: Callable[[tpujob.Event], Any] | None = None) -> None:
    try:
        tpujob.Client().run(tpujob.Job.load(job), on_event=on_event)
    except tpujob.TpujobError as error:
        tell(f"{type(error).__name__}: {error}")


def tell_log(event: tpujob.Event) -> None:
    if isinstance(event, tpujob.LogLines):
        tell("\n".join(event.lines))
    else:
        print(event, file=sys.stderr, flush=True)


def main(what: str, *jobs: Any) -> None:
    if what == "forks during its run":
        run(*jobs, on_event=forking_at(tpujob.LogLines))
    elif what == "forks during the create":
        run(*jobs, on_event=forking_at(tpujob.Progress, "CREATING"))
    elif what == "forks in a with block":
        with tpujob.Client().slice("v5litepod-8", zone="us-central1-a") as lent:
            tell(f"with {lent.name}")
            fork_children()
            tell("forked")
            time.sleep(3600)
    elif what == "runs in threads":
        for job in jobs:
            threading.Thread(target=run, args=[job, tell_log], daemon=True).start()
    elif what == "runs in a cell":
        run(*jobs, on_event=tell_log)
    tell("idle")
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(*sys.argv[1:])
