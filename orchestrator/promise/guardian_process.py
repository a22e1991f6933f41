"""The guardian: a small detached process that outlives a tpujob process and releases what that one left.

It starts before the first create call leaves, and reads from a pipe whose write end only its tpujob process holds: when
that process ends, in whatever way, the kernel closes the write end and the guardian wakes at once. So do forked children
(`orchestrator.system.fork`), and `Guardian.close` where a long-lived process has no slices left. What the guardian then does
is `loop`. While it waits it is nothing but a Python process with a blocked read; everything heavier runs in a process of its
own when it is needed.

Where systemd manages the user's session it starts in a scope of its own, which a logout leaves alone if lingering is on.
It dies with the machine, with a logout that kills all user processes, and with a CI job; then the next tpujob command,
the timer of `tpujob install-gc` or the watchdog on the VM does the same.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orchestrator
from orchestrator.system import fork, private_files

READY_TIMEOUT_S = 30.0  # for a guardian that hangs; the end of one is seen at once
SCOPE_TIMEOUT_S = 2.0  # the user manager answers within some 30 ms, or something is wrong with it
SCOPE = ("systemd-run", "--user", "--scope", "--quiet", "--collect", "--description=tpujob guardian", "--")
SETTING, CI_DETACH = "TPUJOB_GUARDIAN", "ci-detach"
CRASH_AT = "TPUJOB_GUARDIAN_CRASH_AT"
CRASH_POINTS = ("armed", "woke", "before_recovery", "after_recovery", "locked")
# Variables that name files: credentials, and settings of how to reach a cloud.
ONE_FILE = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "CLOUDSDK_CONFIG",
    "TPUJOB_TOKEN_FILE",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
)
SEVERAL_FILES = ("KUBECONFIG",)  # separated by `:`


class GuardianNotStarted(Exception):
    """The guardian did not start: nothing may be created."""


# -- in the process that is guarded --------------------------------------------------------------------------------


class Guardian:
    """A guardian that has started: it waits for `close`, or for the end of this process."""

    def __init__(self, pid: int, pipe: fork.Descriptor) -> None:
        self.pid = pid
        self._pipe = pipe

    @property
    def waits(self) -> bool:
        """False after `close`, and in a forked child: nothing guards that one."""
        return not self._pipe.closed

    @property
    def lives(self) -> bool:
        """Whether its process is there: it alone has the other end of the pipe."""
        poll = select.poll()
        poll.register(self._pipe, 0)
        return not poll.poll(0)

    def close(self) -> None:
        """Wake it: it releases what this process has left and no longer locks, and ends."""
        self._pipe.close()


def start_guardian(directory: Path, notice: Callable[[str], None] = lambda text: None) -> Guardian:
    """Start one for this process and return it once it waits. Raises GuardianNotStarted."""
    watched, ours = fork.pipe()
    try:
        with private_files.open_file(directory / "guardian.log", "ab") as log:
            pid = _start_in_scope(directory, watched, log) or _start(directory, watched, log, (), READY_TIMEOUT_S)
    except OSError as error:
        ours.close()
        raise GuardianNotStarted(f"the guardian process cannot be started: {error.strerror}") from error
    finally:
        os.close(watched)
    if pid is None:
        ours.close()
        raise GuardianNotStarted(f"the guardian process did not start; see {directory / 'guardian.log'}")
    if text := ci_notice(os.environ):
        notice(text)
    return Guardian(pid, ours)


def _start_in_scope(directory: Path, watched: int, log: Any) -> int | None:
    if not has_user_manager(os.environ):
        return None
    pid = None
    with contextlib.suppress(OSError):
        pid = _start(directory, watched, log, SCOPE, SCOPE_TIMEOUT_S)
    if pid is None:
        log.write(b"no scope of its own: systemd-run did not start it; it starts as a plain process\n")
        log.flush()
    return pid


def has_user_manager(environ: Mapping[str, str]) -> bool:
    """Return whether a systemd of this user runs and can be asked."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    if not runtime or not (Path(runtime) / "systemd" / "private").exists():
        return False

    return shutil.which(SCOPE[0], path=environ.get("PATH")) is not None


def _start(directory: Path, watched: int, log: Any, prefix: Sequence[str], timeout_s: float) -> int | None:
    """Return its pid once it is ready; None when it ended, or was not ready in time (then it is killed)."""
    ready, tell = fork.pipe()
    try:
        numbers = [watched, tell.fileno()]
        argv = [sys.executable, "-m", "orchestrator.promise.guardian_process", str(directory), *map(str, numbers)]
        process = subprocess.Popen(
            [*prefix, *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=orchestrator.ROOT,
            env=_environment(os.environ),
            pass_fds=numbers,
            start_new_session=True,
        )
        tell.close()
        poll = select.poll()  # `select` takes no descriptor above 1023
        poll.register(ready, select.POLLIN)
        if poll.poll(timeout_s * 1000) and os.read(ready, 1) == b"!":
            return process.pid
        process.kill()
        process.wait()
        return None
    finally:
        tell.close()
        os.close(ready)


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    dropped = {"TPUJOB_CRASH_AT"}
    if environ.get(SETTING, "").lower() == CI_DETACH:
        dropped.add("RUNNER_TRACKING_ID")  # by which a GitHub runner finds and ends what a job left running
    kept = {name: value for name, value in environ.items() if name not in dropped}
    try:
        here = str(Path.cwd())
    except FileNotFoundError:  # deleted: nothing that is relative to it can be meant
        return kept
    return with_absolute_paths(kept, here)  # it runs in another directory


def with_absolute_paths(environ: Mapping[str, str], directory: str) -> dict[str, str]:
    """Return the variables; what they name relative to `directory`, they name in full. A leading `~` stays."""
    found = dict(environ)
    for name in (*ONE_FILE, *SEVERAL_FILES):
        if environ.get(name):
            paths = environ[name].split(":") if name in SEVERAL_FILES else [environ[name]]
            found[name] = ":".join(_absolute(path, directory) for path in paths)
    return found


def _absolute(path: str, directory: str) -> str:
    return path if not path or path.startswith(("/", "~")) else f"{directory.rstrip('/')}/{path}"


def ci_notice(environ: Mapping[str, str]) -> str | None:
    """Return what a user of a CI job should know; None elsewhere."""
    if not (environ.get("RUNNER_TRACKING_ID") or environ.get("CI")):
        return None
    if environ.get(SETTING, "").lower() == CI_DETACH:
        return None
    return (
        "this is a CI job: the guardian dies with it, and then only the watchdog on the VM and `tpujob gc` delete what "
        f"is left ({SETTING}={CI_DETACH} lets it outlive a job on a GitHub runner of your own)"
    )


# -- the guardian's own process ------------------------------------------------------------------------------------


def main() -> None:
    directory, watched, ready = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    crash_point = CrashPoint(os.environ.get(CRASH_AT, ""))
    os.write(ready, b"!")
    os.close(ready)
    crash_point("armed")
    while os.read(watched, 1):
        pass  # nothing is ever written; the read ends when the last copy of the write end is closed
    crash_point("woke")
    from orchestrator.promise.guardian import POLL_S, GuardianWorld, drive, guardian_loop  # what waits has none of it

    world = GuardianWorld(directory, crash_point)

    while True:
        try:
            drive(guardian_loop(), world)
        except Exception:
            import traceback  # only for a bug

            traceback.print_exc()  # a bug must not leave slices without a guardian
            sys.stderr.flush()
            time.sleep(POLL_S)
        else:
            return


class CrashPoint:
    """`TPUJOB_GUARDIAN_CRASH_AT=woke:1` kills this guardian with SIGKILL at that point, for tests."""

    def __init__(self, text: str) -> None:
        self._name, _, nth = text.partition(":")
        self._nth = int(nth or 1)
        self._seen = 0

    def __call__(self, name: str) -> None:
        assert name in CRASH_POINTS, f"{name} is not a registered crash point"
        self._seen += name == self._name
        if name == self._name and self._seen == self._nth:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
