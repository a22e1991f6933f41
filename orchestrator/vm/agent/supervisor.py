"""The supervisor of a phase on a worker: starts it once, outlives every connection, and writes down how it ended.

Its promises: a phase starts at most once, however often and however brokenly it is asked to; its exit code and the size
of its log are on disk before its lock is dropped; and when it has ended, nothing that it started is left running.
`hosts.fleet.fleet` calls `start` and `stop` over SSH, on every worker, and again after every cut connection.
"""

# Paths are text: pathlib takes 5 ms to import, on each of many workers.
# ruff: noqa: PTH103, PTH104, PTH106, PTH110, PTH111, PTH119, PTH123
from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
import time
from typing import Any, NoReturn

from ..files import phases
from ..files.frames import reply
from ..files.phases import PhaseFiles, boot_id, boot_s, private
from . import stream
from .stream import BoundedLog

LEFTOVER_GRACE_S = 2.0  # for what a job left running when its main process ended by itself
LEFTOVER_LOOK_S = 0.5  # what ends so soon after it, such as a pool of workers, is not named
SHUTDOWN_GRACE_S = 5.0  # the machine itself is going down
START_WAIT_S = 300.0  # while another launcher unpacks a large shipment
STOP_WAIT_S = 15.0  # beyond its grace
BESIDE = frozenset(("chips", "tpu_metrics", "host_metrics", "job_packages", "save_work"))  # verbs that run beside a job
FULL_BYTES = 1 << 20  # a disk with less room is full
PR_SET_CHILD_SUBREAPER = 36

# The main process waits here until started.json is on disk; if the supervisor dies before, it reads the end and ends.
GATE = 'umask 022; read -r go && exec bash -- "$0" </dev/null'


def start() -> None:
    """Start the phase unless it was started, and go on as `follow` from the first byte of its log.

    The request comes on stdin: it holds secrets, and an argument list is public.
    """
    request = json.loads(sys.stdin.buffer.read())
    phase = PhaseFiles(request["attempt"], request["phase"])
    os.makedirs(phase.dir, exist_ok=True)
    lock = _lock_to_start(phase)
    answer = {"started": False} if lock is None else _launch(phase, request, lock)
    reply(answer)
    if "error" not in answer:
        offsets = ["0"] * len(stream.FOLLOWED) if request.get("metrics") else []
        stream.follow(request["attempt"], request["phase"], "0", *offsets)  # saves the caller a call


def _launch(phase: PhaseFiles, request: dict[str, Any], lock: int) -> dict[str, Any]:
    """What the supervisor said when the phase was started, or was not."""
    news, tell = os.pipe()
    if os.fork() == 0:
        os.close(news)
        _daemonise(phase.dir)
        _supervise(phase, request, tell)
    os.close(tell)
    os.close(lock)  # the supervisor inherited it: the lock goes from hand to hand without a gap
    with os.fdopen(news, "rb") as pipe:
        said = pipe.read()
    answer: dict[str, Any] = json.loads(said or '{"error": "the supervisor ended before it could start the phase"}')
    return answer


def _lock_to_start(phase: PhaseFiles) -> int | None:
    """None: it was started already. A busy lock alone says nothing (it may be a short look): only started.json does."""
    deadline = time.monotonic() + START_WAIT_S
    while phase.read("started.json") is None:
        lock = phase.lock(fcntl.LOCK_EX)
        if lock is not None:
            if phase.read("started.json") is None:
                return lock
            os.close(lock)
            break
        if time.monotonic() > deadline:
            raise TimeoutError(f"another launcher holds the lock since {START_WAIT_S:.0f} s")
        time.sleep(0.01)
    return None


def _daemonise(directory: str) -> None:
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    errors = os.open(f"{directory}/supervisor.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for fd, target in ((null, 0), (null, 1), (errors, 2)):
        os.dup2(fd, target)


def _supervise(phase: PhaseFiles, request: dict[str, Any], tell: int) -> NoReturn:
    code = 1
    try:
        inherit_orphans()
        try:
            if request.get("delete") is not None:
                _remove(PhaseFiles(request["delete"], "main").run)  # the files of an earlier attempt
            unpack(phase, request.get("manifest"), request.get("saved"))
            supervisor = Supervisor(phase, request)
        except Exception as error:
            _say(tell, {"error": f"{type(error).__name__}: {error}"})
            raise
        _say(tell, {"started": True})
        supervisor.watch()
        code = 0
    except Exception:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)  # never back into the launcher's code; the lock is dropped here


def inherit_orphans() -> None:
    """What the job leaves behind becomes our child, so that we can end it."""
    if sys.platform == "linux":
        import ctypes  # a worker without it runs the job all the same

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _say(fd: int, word: dict[str, Any]) -> None:
    try:
        os.write(fd, json.dumps(word).encode())
    except BrokenPipeError:
        sys.stderr.write("the launcher was gone before it could be told\n")
    os.close(fd)


def unpack(phase: PhaseFiles, manifest: str | None, saved: str | None = None, place: str | None = None) -> None:
    """Make `work/` of a manifest, once per attempt, and over it what an earlier attempt left in `work/` and `artifacts/`.

    `place`: the store, if that is not the worker's. Raises Damaged, and OSError for a full disk.
    """
    work, artifacts = f"{phase.run}/work", f"{phase.run}/artifacts"
    if os.path.exists(work):
        return
    draft = f"{phase.run}/.draft.{os.getpid()}"
    for name in ("work", "artifacts"):
        os.makedirs(f"{draft}/{name}")
    if manifest is not None or saved is not None:
        from ..files.store import Store, free_bytes, is_full  # a setup unpacks nothing

        store = Store(place)
        lock = store.lock()
        try:
            if manifest is not None:
                store.make_tree(manifest, f"{draft}/work")
            if saved is not None:
                from ..files import beside  # only for saved work

                text = store.manifest(saved)
                restored = [] if text is None else [path for path, *_ in json.loads(text)["files"]]
                store.make_tree(saved, draft, take=True)
                with open(f"{phase.run}/{beside.RESTORED}", "w") as out:
                    json.dump([path[5:] for path in restored if path.startswith("work/")], out)
        except Exception as error:
            _remove(draft)
            if isinstance(error, OSError) and is_full(error):
                raise OSError(
                    f"no room to unpack the code: {free_bytes() / 1e6:,.0f} MB are free on this disk"
                ) from error
            raise
        finally:
            if lock is not None:
                os.close(lock)  # the supervisor lives on
    if not os.path.exists(artifacts):
        os.rename(f"{draft}/artifacts", artifacts)
    try:
        os.rename(f"{draft}/work", work)
    except OSError:
        if not os.path.exists(work):  # else another phase was first
            raise
    try:
        os.rmdir(draft)
    except OSError:  # not empty: another phase was first
        _remove(draft)


def _remove(directory: str) -> None:
    import shutil  # seldom needed, and slow to import

    shutil.rmtree(directory, ignore_errors=True)


def spawn(argv: list[str], stdin: int, output: int, directory: str, environment: dict[str, str]) -> int:
    """Start a program in a session of its own; return its process id. Raises OSError. subprocess takes 5 ms to import."""
    here = os.open(".", os.O_RDONLY)
    os.chdir(directory)
    try:
        return os.posix_spawnp(
            argv[0],
            argv,
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, target) for fd, target in ((stdin, 0), (output, 1), (output, 2))],
            setsid=True,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python ignores
        )
    finally:
        os.fchdir(here)
        os.close(here)


class Supervisor:
    """Made by starting the phase; `watch` returns when nothing of it is left and exit.json is written."""

    def __init__(self, phase: PhaseFiles, request: dict[str, Any], *, remote: bool = True) -> None:
        """`remote`: on a worker, whose network the user does not sit in."""
        self.phase, self.remote = phase, remote
        self.environment = self._environment(request["env"])
        self.main_status: int | None = None
        self.going_down = self.is_alone = False
        self.stop_request: dict[str, Any] | None = None  # as stop.json, from a thread of `local`
        with open(phase.path("script"), "w", opener=private) as file:
            file.write(request["script"])
        public = {key: value for key, value in request.items() if key not in ("env", "script")}
        phase.write("request.json", dict(public, env=sorted(request["env"])))  # names only: the values are secret
        phase.reserve("exit.json", "stop.json")
        if os.path.basename(phase.dir) == "main":
            self._remember()
        wait, go = os.pipe()
        self.log = os.open(phase.path("log"), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self.bound = BoundedLog(phase.path("log"), request.get("max_log"))
        command = ["bash", "-c", GATE, phase.path("script")]
        self.main = spawn(command, wait, self.log, f"{phase.run}/work", self.environment)
        os.close(wait)
        self.started_at = time.time()
        phase.write("started.json", {"pid": self.main, "started_at": self.started_at, "boot": boot_id()})
        os.write(go, b"go\n")
        os.close(go)

    def _remember(self) -> None:
        """Note what is there before the job: what it writes beside its artifacts is collected, too."""
        from ..files import beside  # before `main` only

        try:
            beside.remember(self.phase.run, os.path.expanduser("~") if self.remote else None)
        except OSError:  # of a full disk: the job may run all the same
            sys.excepthook(*sys.exc_info())

    def _environment(self, asked: dict[str, str]) -> dict[str, str]:
        phase = self.phase
        environment = dict(os.environ, PYTHONUNBUFFERED="1")  # the log must not lag by a buffer
        environment["TPUJOB_ARTIFACTS"] = f"{phase.run}/artifacts"
        if self.remote:  # a later attempt, or run, on a held slice finds there what JAX has compiled
            environment.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.expanduser("~/tpujob/jax"))
            # Caches for GPUs, whose directory would make the same program another one below another home.
            environment.setdefault("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "none")
        environment.update(asked)
        environment.update({phases.MARK: phase.dir, "TPUJOB_ATTEMPT": phase.attempt})
        return environment

    def watch(self) -> None:
        """Wait until the main process has ended or its end is asked for; then end the rest, and write exit.json."""
        wake, waker = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "going_down", True))
        stop = None
        while not self.reap() and stop is None:
            if select.select([wake], [], [], 0.1)[0]:
                os.read(wake, 4096)
            stop = (
                {"grace_s": SHUTDOWN_GRACE_S} if self.going_down else self.stop_request or self.phase.read("stop.json")
            )
        if stop is None:
            try:
                self._name_leftovers()
            except OSError:
                pass  # such as of a full disk
        if phases.end(self.members, LEFTOVER_GRACE_S if stop is None else float(stop["grace_s"])):
            while not self.reap():  # the main process may have died after the last look
                time.sleep(0.01)
        self._write_exit(stopped=stop is not None)

    def _name_leftovers(self) -> None:
        """Say in the log what the job left running: it is ended now, though it may have had something to do."""
        for pause_s in (LEFTOVER_LOOK_S, 0.0):
            words = (phases.text(f"/proc/{pid}/cmdline").rstrip("\0").split("\0") for pid in self.members())
            of_job = (each for each in words if BESIDE.isdisjoint(each))  # tpujob's own run beside it
            # Options and further words may be secret.
            shown = ([each[0].split(" ")[0], *(word for word in each[1:2] if word[:1] != "-")] for each in of_job)
            left = {" ".join(" ".join((os.path.basename(each[0]), *each[1:])).split())[:80] for each in shown} - {""}
            if not left:
                return
            time.sleep(pause_s)
        begin = "\n" * (os.pread(self.log, 1, max(os.fstat(self.log).st_size - 1, 0)) not in (b"", b"\n"))
        os.write(self.log, f"{begin}tpujob: ended what was left running: {', '.join(sorted(left))[:400]}\n".encode())

    def _write_exit(self, *, stopped: bool) -> None:
        status = self.main_status
        died_of = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
        rc = None if status is None else 128 + died_of if died_of is not None else os.WEXITSTATUS(status)
        unreachable = self._unreachable() if rc and not stopped else []
        os.fsync(self.log)
        log_size, disk = os.fstat(self.log).st_size, os.statvfs(self.phase.dir)
        ended: dict[str, Any] = {"started_at": self.started_at, "ended_at": time.time(), "log_size": log_size}
        clock = {"boot": boot_id(), "ended_boot_s": boot_s()}
        is_full = disk.f_bavail * disk.f_frsize < FULL_BYTES
        ended.update(clock, rc=rc, signal=died_of, stopped=stopped, unreachable=unreachable, disk_full=is_full)
        self.phase.write("exit.json", ended)

    def _unreachable(self) -> list[str]:
        """Return the servers that a setup which has failed cannot download from; [] if it failed for another reason."""
        if not self.remote or os.path.basename(self.phase.dir) != "setup":
            return []
        from pathlib import Path  # only for a setup that failed

        from ..environment import egress  # this, too

        try:
            return egress.unreachable(Path(self.phase.path("log")), self.environment, Path(self.phase.run, "work"))
        except Exception:  # the setup's own failure must be told all the same
            sys.excepthook(*sys.exc_info())
            return []

    def reap(self) -> bool:
        """Collect every child that ended, orphans too. True once the main process is among them.

        Called again and again as long as anything of the phase may live, so the log is kept within its bound here.
        """
        self.bound.punch(self.log)
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
            while pid:
                if pid == self.main:
                    self.main_status = status
                pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            # All that a phase starts descends from a subreaper. A look at every process takes long where many run.
            self.is_alone = sys.platform == "linux"
            return True
        return self.main_status is not None

    def members(self) -> set[int]:
        self.reap()
        if self.is_alone:
            return set()
        return phases.members(self.phase.dir, session=self.main, supervisor=os.getpid())


def stop(attempt: str, name: str, grace_s: str) -> None:
    """Ask the supervisor; if it is dead or stuck, do its work. Returns when nothing of the phase is left running."""
    phase = PhaseFiles(attempt, name)
    if phase.alive():
        phase.write("stop.json", {"grace_s": float(grace_s)})
        deadline = time.monotonic() + float(grace_s) + STOP_WAIT_S
        while phase.alive() and time.monotonic() < deadline:
            time.sleep(0.02)
    status = phase.status()
    if status["state"] in ("lost", "running"):
        started = phase.read("started.json") or {}
        pid = int(started.get("pid", 0))
        # After a reboot, or where its process id has a new owner, the session of the dead main process proves nothing.
        ours = started.get("boot") == boot_id() and all(
            process.marked for process in phases.processes(phase.dir) if process.pid == pid
        )
        session = pid if ours else 0
        status["ended"] = phases.end(lambda: phases.members(phase.dir, session=session), float(grace_s))
    reply(status)
