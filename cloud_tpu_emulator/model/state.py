"""The state directory: the lock of the one daemon, its token, and the state files that survive a kill -9.

A change is on disk before its reply leaves: written to a temporary file, then renamed over the old one.
"""

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import IO, Any

from cloud_tpu_emulator.faults.plain_data import as_fields
from cloud_tpu_emulator.model import meter
from cloud_tpu_emulator.model.cloud_state import CloudState
from cloud_tpu_emulator.model.records import Settings, dump_operation
from cloud_tpu_emulator.model.transitions import KEEP_OPERATIONS
from orchestrator.system import boot_clock

LOCK, STATE, ENDPOINT, PORT = "daemon.lock", "state.json", "daemon.json", "port"
TOKEN, TPUJOB_TOKEN = "token", "tpujob-token"  # of all clients, and of tpujob's own, whose startup-scripts run here
ENVIRONMENT = "TPUJOB_EMULATOR_"
LOCK_PAUSE_S = 0.01
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
        self._archive = Archive(self.directory)

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
            found = restored(json.loads(path.read_text()), self.directory) if path.exists() else None
            state = CloudState(secrets.token_hex(16)) if found is None else CloudState.load(found)
        except (ValueError, KeyError, TypeError, AttributeError, FileNotFoundError) as error:
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
        where = self._archive.append(state)
        # All that may still change.
        operations = [dump_operation(each) for each in state.operations.values() if each.ended_at is None]
        live = {"operations": operations, "bills": [bill for bill in state.meter.bills if bill.until is None]}
        rows = state.dump_rest() | live | {"archive": where}
        self._write(STATE, json.dumps(rows, separators=(",", ":"), default=as_fields))
        self._archive.drop_old()

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


# The archive: done operations and closed bills in a file that only grows, so that a save costs only what has changed.
#
# The state file names the archive and how many of its lines count, so that both are replaced in one step.

MOST_LINES = 4 * (KEEP_OPERATIONS + meter.KEEP)  # then a new archive begins, without what the cloud has dropped
Key = str | tuple[str, float]


class Archive:
    """The archive of one daemon. A daemon always begins a new one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: IO[str] | None = None
        self._name, self._lines = "", 0
        self._known: set[Key] = set()
        self._old: list[Path] = []

    def append(self, state: CloudState) -> dict[str, Any]:
        """Append what has ended since the last call. Return where it is, for the state file.

        Raises OSError. The next call begins anew: this archive may end with half a line, which no state file counts.
        """
        new = list(_ended(state, self._known))
        if begins := self._file is None or self._lines + len(new) > MOST_LINES:
            self._begin()
            new = list(_ended(state, self._known))
        assert self._file is not None, "`_begin` opened it"
        try:
            self._file.write("".join(f"{json.dumps(row, separators=(',', ':'))}\n" for _, row in new))
            self._file.flush()
        except OSError:
            with contextlib.suppress(OSError):
                self._file.close()  # tries to write again what is left
            self._file = None
            if begins:  # no state file names it
                (self._directory / self._name).unlink()
            raise
        self._known.update(key for key, _ in new)
        self._lines += len(new)
        return {"file": self._name, "lines": self._lines}

    def drop_old(self) -> None:
        """Remove older archives. Call it once the state file names the present one."""
        while self._old:
            self._old.pop().unlink(missing_ok=True)

    def _begin(self) -> None:
        old = list(self._directory.glob("archive-*.jsonl"))
        number = max((int(path.stem.rpartition("-")[2]) for path in old), default=0) + 1
        name, flags = f"archive-{number}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        opened = os.fdopen(os.open(self._directory / name, flags, 0o600), "w", encoding="utf-8")
        if self._file is not None:  # on a full disk the present one goes on
            self._file.close()
        self._old, self._file, self._name, self._lines, self._known = old, opened, name, 0, set()


def _ended(state: CloudState, known: set[Key]) -> Iterator[tuple[Key, dict[str, Any]]]:
    for operation in state.operations.values():
        if operation.ended_at is not None and operation.name not in known:
            yield operation.name, {"operation": dump_operation(operation)}
    for bill in state.meter.bills:
        if bill.until is not None and (bill.uid, bill.since) not in known:
            yield (bill.uid, bill.since), {"bill": asdict(bill)}


def restored(data: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Return what `CloudState.load` reads: the state file's `data` with the rows of its archive.

    Raises ValueError, KeyError, TypeError or FileNotFoundError if they are damaged or of another version.
    """
    where = data.pop("archive")
    with (directory / where["file"]).open(encoding="utf-8") as file:
        rows = [json.loads(line) for _, line in zip(range(where["lines"]), file, strict=False)]
    if len(rows) < where["lines"]:
        raise ValueError(f"{where['file']} is too short")
    operations = [row["operation"] for row in rows if "operation" in row][-KEEP_OPERATIONS:]
    bills = [row["bill"] for row in rows if "bill" in row][-meter.KEEP :]
    data["operations"] = _in_order(operations + data["operations"], "created_at")
    data["bills"] = _in_order(bills + data["bills"], "since")
    return data


def _in_order(rows: Iterable[dict[str, Any]], when: str) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: float(row[when]))


# The clock of the emulated cloud: steady, whatever is done to the wall clock of this machine.

FILE = "clock.json"


def _counting_from(zero: float) -> Callable[[], float]:
    """Return a clock of Unix seconds. `zero` is its time at zero of this machine's boot clock."""
    return lambda: zero + boot_clock.boot_s()


def steady_clock(directory: Path, not_before: float, wall: Callable[[], float] = time.time) -> Callable[[], float]:
    """Return the clock of the last daemon, or, after a restart of this machine, one that begins with the wall clock's time.

    It begins at `not_before` or later, so that recorded events stay in the past.
    """
    path, boot = directory / FILE, boot_clock.boot_id()
    try:
        saved = json.loads(path.read_text())
        if saved["boot"] == boot:
            return _counting_from(float(saved["zero"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass  # missing or damaged: as after a restart
    zero = max(wall(), not_before) - boot_clock.boot_s()
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps({"boot": boot, "zero": zero}))
    draft.replace(path)
    return _counting_from(zero)
