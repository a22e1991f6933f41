"""Inhibit suspend while a run is attached, and say what it does all the same: a suspended machine sends no heartbeat."""

from __future__ import annotations

import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import traits
from orchestrator.system import fork
from orchestrator.text.units import format_duration

if TYPE_CHECKING:
    from orchestrator.api.session.session import Session

POWER = Path("/sys/class/power_supply")
ANSWER_S = 5.0
GRANTED = (
    "sh",
    "-c",
    "echo; exec cat",
)  # runs once suspend is inhibited; `cat` ends with the pipe, so with this process


@contextmanager
def awake(session: Session, why: str, *, else_do: str = "") -> Iterator[None]:
    """Inhibit suspend within the block, and say what a sleep does all the same, where it would delete a slice that is real."""
    if traits.is_emulated(session.target.kind):
        yield
        return
    with inhibit_sleep(why) as inhibited:
        if text := about_sleep(inhibited=inhibited, ttl_s=session.target.timings.ttl_s, else_do=else_do):
            session.reporter.notice("note", text)
        yield


@contextmanager
def inhibit_sleep(why: str) -> Iterator[bool]:
    """Inhibit suspend within the block; yield whether the system promised it. Closing a laptop may suspend it all the same.

    A program of the system does it: `systemd-inhibit` or `caffeinate`. It ends with the block, or with this process.
    """
    started = _start(why)
    try:
        yield started is not None
    finally:
        if started is not None:
            _end(*started)


def about_sleep(*, inhibited: bool, ttl_s: float, else_do: str = "") -> str | None:
    """Return what a sleep of this machine does, None where none is to be expected: no terminal with a battery, and inhibited.

    `ttl_s`: how long the claim on a slice lives without this machine. No inhibitor holds up a lid.
    """
    has_lid = sys.stderr.isatty() and _has_battery()
    what = "you close the lid" if has_lid else "this machine sleeps"
    text = f"if {what} for longer than {format_duration(ttl_s)}, the slice is deleted{else_do}"
    return text if has_lid or not inhibited else None


def _has_battery() -> bool:
    """Return whether this machine itself has one, and not a mouse."""
    try:
        if sys.platform == "darwin":
            found = subprocess.run(["pmset", "-g", "batt"], capture_output=True, check=False, timeout=ANSWER_S)
            return b"InternalBattery" in found.stdout
        scopes = [each.parent / "scope" for each in POWER.glob("*/type") if each.read_text().strip() == "Battery"]
        return any(not scope.exists() or scope.read_text().strip() == "System" for scope in scopes)
    except (OSError, subprocess.SubprocessError):
        return False


def _start(why: str) -> tuple[subprocess.Popen[bytes], fork.Descriptor] | None:
    if sys.platform == "darwin":
        argv = ["caffeinate", "-i", *GRANTED]
    else:
        options = ["--what=sleep:idle", "--who=tpujob", f"--why={why}", "--mode=block"]
        argv = ["systemd-inhibit", *options, *GRANTED]
    if shutil.which(argv[0]) is None:
        return None
    try:
        process, pipe = fork.start(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    except OSError:
        return None
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], ANSWER_S)
    if readable and process.stdout.read(1) == b"\n":
        return process, pipe
    _end(process, pipe)
    return None


def _end(process: subprocess.Popen[bytes], pipe: fork.Descriptor) -> None:
    pipe.close()
    process.kill()
    process.communicate()
