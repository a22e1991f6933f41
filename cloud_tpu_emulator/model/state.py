"""The state directory: the lock of the one daemon, its token, and the state file that survives a kill -9.

A change is on disk before its reply leaves: written to a temporary file, then renamed over the old one.
"""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path

from cloud_tpu_emulator.faults.plain_data import as_fields
from cloud_tpu_emulator.model.cloud_state import CloudState
from cloud_tpu_emulator.model.meter import Bill
from cloud_tpu_emulator.model.records import OperationRecord, Settings, dump_operation
from orchestrator.system import boot_clock

LOCK, STATE, ENDPOINT, PORT = "daemon.lock", "state.json", "daemon.json", "port"
TOKEN, TPUJOB_TOKEN = "token", "tpujob-token"  # of all clients, and of tpujob's own, whose startup-scripts run here
ENVIRONMENT = "TPUJOB_EMULATOR_"
LOCK_PAUSE_S = 0.01
Key = str | tuple[str, float]  # of an operation, or of a bill
DELAYS = tuple(each.name for each in fields(Settings) if each.name.endswith("_s"))


class AlreadyRunning(RuntimeError):
    """Another daemon holds this state directory."""


class DamagedState(RuntimeError):
    """The state file cannot be read. It is the record of what is billed, so it is never replaced automatically."""


class Store:
    """The state directory of this daemon. The constructor locks it until the process ends.

    Raises AlreadyRunning, PermissionError or ValueError.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory = directory.resolve()
        if self.directory.stat().st_uid != os.getuid():
            raise PermissionError(f"{self.directory} belongs to another user.")
        if os.pathsep in str(self.directory):  # directories below it are on the PATH of the workers
            raise ValueError(f"{self.directory}: the path of a state directory cannot contain {os.pathsep!r}.")
        self.directory.chmod(0o700)
        self._lock = os.open(self.directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        self._acquire_lock()
        # By its beginning tpujob's client knows which of them it has, wherever the file was copied.
        self.token, self.tpujob_token = self._token(TOKEN), self._token(TPUJOB_TOKEN, "tpujob-")
        self._ended: dict[Key, str] = {}  # what does not change any more, as JSON

    def _acquire_lock(self) -> None:
        """Lock the directory. Clients that check for a daemon share the lock for a moment, which another daemon never does."""
        while not self._locked(fcntl.LOCK_EX):
            if not self._locked(fcntl.LOCK_SH):
                raise AlreadyRunning(f"An emulator is already running in {self.directory}.")
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            time.sleep(LOCK_PAUSE_S)

    def _locked(self, how: int) -> bool:
        try:
            fcntl.flock(self._lock, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_ours(self) -> bool:
        """Return whether the directory is the one that was locked: a user may have removed it, and begun anew in its place."""
        try:
            return os.path.samestat((self.directory / LOCK).stat(), os.fstat(self._lock))
        except OSError:
            return False

    def _token(self, name: str, begins: str = "") -> str:
        path = self.directory / name
        if not path.exists() or not path.read_text().startswith(begins):
            self._write(name, begins + secrets.token_urlsafe(32))
        path.chmod(0o600)
        return path.read_text().strip()

    def load(self) -> CloudState:
        """Return the state of the last daemon, or an empty cloud; delays in the environment override saved ones.

        Raises DamagedState, or ValueError for a bad delay.
        """
        path = self.directory / STATE
        try:
            found = json.loads(path.read_text()) if path.exists() else None
            state = CloudState(secrets.token_hex(16)) if found is None else CloudState.load(found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedState(
                f"{path} is damaged or of another version ({error}); to begin with an empty cloud, move it away."
            ) from error
        set_delays_from(os.environ, state.settings)
        return state

    def save(self, state: CloudState) -> None:
        """Write the state; it is on disk when this returns. A directory that is not this daemon's any more is left alone.

        Raises OSError, such as for a full disk; the state that was saved last stays.
        """
        if not self.is_ours():
            return
        was, self._ended = self._ended, {}

        def text(key: Key, row: OperationRecord | Bill, ended: bool) -> str:
            found = was.get(key) or json.dumps(dump_operation(row) if isinstance(row, OperationRecord) else asdict(row))
            if ended:
                self._ended[key] = found
            return found

        operations = (text(row.name, row, row.ended_at is not None) for row in state.operations.values())
        bills = (text((row.uid, row.since), row, row.until is not None) for row in state.meter.bills)
        rest = json.dumps(state.dump_rest(), default=as_fields).removesuffix("}")
        self._write(STATE, f'{rest}, "operations": [{", ".join(operations)}], "bills": [{", ".join(bills)}]}}')

    def publish_endpoint(self, url: str) -> None:
        """Write the file by which clients find the daemon. Call it once the daemon accepts requests."""
        self._write(ENDPOINT, json.dumps({"url": url, "pid": os.getpid()}))
        self._write(PORT, url.rpartition(":")[2])

    def last_port(self) -> int:
        """Return the port of the last daemon; 0: there was none."""
        try:
            return int((self.directory / PORT).read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def _write(self, name: str, text: str) -> None:
        temporary = self.directory / f"{name}.new"
        temporary.unlink(missing_ok=True)
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
        except OSError:
            temporary.unlink(missing_ok=True)  # half a file, on a full disk
            raise
        temporary.replace(self.directory / name)


def set_delays_from(environment: os._Environ[str] | dict[str, str], settings: Settings) -> None:
    """Override delays by `TPUJOB_EMULATOR_PROVISION_S` and the like. Raises ValueError."""
    for name in DELAYS:
        text = environment.get(ENVIRONMENT + name.upper())
        if text is not None:
            value = float(text)
            if not 0 <= value < 1e6:
                raise ValueError(f"{ENVIRONMENT}{name.upper()} must be a number of seconds, not {text!r}.")
            setattr(settings, name, value)


# The clock of the emulated cloud: steady, whatever is done to the wall clock of this machine.

FILE = "clock.json"


class SteadyClock:
    """A clock of Unix seconds, kept in a file. `zero` is its time at zero of this machine's boot clock."""

    def __init__(self, path: Path, zero: float) -> None:
        self._path, self._zero = path, zero

    def __call__(self) -> float:
        """Return the time now."""
        return self._zero + boot_clock.boot_s()

    def advance(self, seconds: float) -> None:
        """Jump forward."""
        self._zero += seconds
        self.save()

    def save(self) -> None:
        """Write it for the next daemon."""
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps({"boot": boot_clock.boot_id(), "zero": self._zero}))
        draft.replace(self._path)


def steady_clock(directory: Path, not_before: float, wall: Callable[[], float] = time.time) -> SteadyClock:
    """Return the clock of the last daemon, or, after a restart of this machine, one that begins with the wall clock's time.

    It begins at `not_before` or later, so that recorded events stay in the past.
    """
    path = directory / FILE
    try:
        saved = json.loads(path.read_text())
        if saved["boot"] == boot_clock.boot_id():
            return SteadyClock(path, float(saved["zero"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass  # missing or damaged: as after a restart
    clock = SteadyClock(path, max(wall(), not_before) - boot_clock.boot_s())
    clock.save()
    return clock
