"""The guardian: a small detached process that outlives the CLI and finishes what it left.

Armed before the first create call leaves, it reads from a pipe whose other end only the CLI holds: when the CLI ends, in
whatever way, the kernel closes that end and the guardian wakes at once. It then runs the ordinary recovery until no lease
is overdue, and stays while slices are held (`up`, `--keep`) to release them when their time is over. While it waits it
is nothing but a Python process with a blocked read; everything heavier runs in a process of its own when it is needed.

It dies with the machine and with a logout that kills all user processes; then the next tpujob command does the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

READY_TIMEOUT_S = 5.0
POLL_S = 20.0  # while slices are held: `down` or a new hold may have changed what is due
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # between recoveries that could not prove everything gone


class NotArmed(Exception):
    """The guardian did not start: nothing may be created."""


def arm(directory: Path) -> int:
    """Start one for this process and wait until it watches. The answer is its pid; the pipe stays open until we die."""
    watched, ours = os.pipe()  # `ours` is not inheritable: only this process holds it
    ready, said = os.pipe()
    try:
        with (directory / "guardian.log").open("ab") as log:
            argv = [sys.executable, "-m", "orchestrator.engine.guardian", str(directory), str(watched), str(said)]
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=Path(__file__).resolve().parents[2],
                env={name: value for name, value in os.environ.items() if name != "TPUJOB_CRASH_AT"},
                pass_fds=[watched, said],
                start_new_session=True,
            )
        os.close(said)
        said = -1
        readable, _, _ = select.select([ready], [], [], READY_TIMEOUT_S)
        if not readable or os.read(ready, 1) != b"!":
            os.close(ours)
            raise NotArmed(f"the guardian process did not start; see {directory / 'guardian.log'}")
    except OSError as error:
        os.close(ours)
        raise NotArmed(f"the guardian process cannot be started: {error.strerror}") from error
    finally:
        for fd in (watched, ready, said):
            if fd >= 0:
                os.close(fd)
    return process.pid


def main() -> None:
    directory, watched, said = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.write(said, b"!")
    os.close(said)
    while os.read(watched, 1):
        pass  # nobody writes; the read ends when the CLI does
    _finish(directory)


def _finish(directory: Path) -> None:
    pause_s = FIRST_PAUSE_S
    on_duty = False
    while (due_in_s := _due_in_s(directory)) is not None:
        if due_in_s <= 0:
            subprocess.run([sys.executable, "-m", "orchestrator.cli.recovery", str(directory)], check=False)
            due_in_s = _due_in_s(directory)
            if due_in_s is not None and due_in_s <= 0:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            continue
        # Nothing is overdue, but something will be. One guardian is enough to wait for that.
        on_duty = on_duty or _take_duty(directory)
        if not on_duty:
            return
        pause_s = FIRST_PAUSE_S
        time.sleep(min(due_in_s, POLL_S))


def _due_in_s(directory: Path) -> float | None:
    """Seconds until the first open lease is overdue (0 or less: one is now); None when nothing is open."""
    from orchestrator.core.lease import dead_wood
    from orchestrator.engine.owners import FileOwners
    from orchestrator.errors import TpujobError
    from orchestrator.ledger.ledger import Ledger

    path = directory / "ledger.sqlite3"
    if not path.exists():
        return None
    owners, now = FileOwners(directory / "locks"), time.time()
    try:
        ledger = Ledger(path)
        leases = ledger.open_leases()
        ledger.close()
    except TpujobError as error:
        print(f"{error}; asking again", file=sys.stderr, flush=True)
        return POLL_S  # locked, or the disk is full: that may pass, and nobody else is watching
    if not leases:
        return None
    if any(dead_wood(lease, now=now, owner_alive=owners.alive(lease.id)) for lease in leases):
        return 0.0
    # What a living process claims is that process's (and its guardian's) until it ends.
    first = min(min(lease.hold_until or lease.deadline, lease.deadline) for lease in leases)
    return max(first - now, 1.0)


def _take_duty(directory: Path) -> bool:
    fd = os.open(directory / "guardian.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    os.close(fd)
    return False


if __name__ == "__main__":
    main()
