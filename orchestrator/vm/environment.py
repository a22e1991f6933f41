"""Makes the virtual environment of a job on a worker, once: later runs with the same requirements find it complete.

The setup script of a job runs this verb, and one line says what it did. Each environment has a lock file beside it: who makes
the environment holds the lock alone, and the scripts of the job share it, so that none is deleted while it is used. An
environment without its mark is half made, and is made again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import environment_lent as lending
from . import environment_pythons as pythons
from . import environment_tools as tools
from . import environment_torch as torches
from .environment_tools import Failed, say

KEPT = 3  # environments; one with torch takes 7 GB
MARK = ".complete"


def environment() -> None:
    """Make the environment that stdin describes, unless it is there. Exits with the code of the tool that failed."""
    request = json.loads(sys.stdin.buffer.read())
    os.umask(0o022)
    maker = Maker(request)
    try:
        maker.make()
    except Failed as error:
        say(str(error))
        sys.exit(error.code)
    except OSError as error:
        say(f"the environment {maker.place} cannot be made: {error.strerror or error}")
        sys.exit(2)


class Maker:
    """One environment. `core.text.environments` writes the request and describes its keys."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.request = request
        self.root = Path(request["root"]).expanduser()
        self.place = self.root / request["name"]
        self.what: str = request["what"]
        self.is_first = os.environ.get("TPUJOB_WORKER", "0") == "0"  # the others would say the same

    def make(self) -> None:
        """Make it unless it is complete; delete old ones. Raises Failed and OSError."""
        self.root.mkdir(parents=True, exist_ok=True)
        if self.request["remark"] and self.is_first:
            say(self.request["remark"])
        if not self._is_there():
            with self._locked(fcntl.LOCK_EX) as lock:
                if not self._is_complete():
                    self._build(lock)
        self._prune()

    def _is_there(self) -> bool:
        with self._locked(fcntl.LOCK_SH):  # a job that uses it shares this lock for hours
            if not self._is_complete():
                return False
            os.utime(self.place / MARK)
            if self.is_first:
                say(f"{json.loads((self.place / MARK).read_text())['said']}, is there already")
            return True

    def _is_complete(self) -> bool:
        """Also false when its interpreter was removed since."""
        return (self.place / MARK).exists() and pythons.version_of(self.place / "bin" / "python") is not None

    @contextlib.contextmanager
    def _locked(self, how: int) -> Iterator[int]:
        lock = os.open(f"{self.place}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, how)
            yield lock
        finally:
            os.close(lock)

    def _build(self, lock: int) -> None:
        began = time.monotonic()
        _delete(self.place)
        try:
            said = self._fill(lock)
        except BaseException:
            _delete(self.place)  # gigabytes, perhaps on a full disk
            raise
        draft = self.place / f"{MARK}.new"
        draft.write_text(json.dumps({"said": said}))
        draft.rename(self.place / MARK)
        if self.is_first:
            say(f"{said} in {time.monotonic() - began:.1f} s")

    def _fill(self, lock: int) -> str:
        """Create it and install everything; return what was done, in words."""
        request, base = self.request, pythons.base_python(self.request["base"])
        tools.adopt_settings_of_pip(base)
        uv = None if request["needs_pip"] else pythons.find_uv(self.root)
        if uv is None and request["install_uv"] and not request["needs_pip"]:
            uv = pythons.install_uv(self.root, base)
        python = self._interpreter(base, uv)
        lent = lending.lent_to(base, python)
        pins, requirements, constraints = torches.pins_of(lent), request["requirements"], request["constraints"]
        tool = tools.Tool(uv, self.place, lock, self.what or "the environment", self.is_first)
        tool.create(python, with_pip=lent is None)
        if lent is not None:
            lending.lend(lent, "pip", self.place)
        # A training uses what is lent: on a TPU VM, too, it does not choose its torch.
        choice = "" if request["base"] else pins
        other = torches.refusal_of(choice, requirements + constraints, base)
        if other or "torch-xla" not in pins:
            constraints += torches.pair_of(tool, requirements, constraints)
            other = other or torches.refusal_of(choice, constraints, base)
        if other:
            pins = ""
            if self.is_first:
                say(f"emulated: this machine's torch is not lent: {other} is asked for, and is installed instead")
        elif lent is not None:
            lending.lend(lent, "torch", self.place)
        tool.ensure_pip()
        before = tools.packages(self.place)
        if requirements:
            self._install(tool, requirements, constraints, pins)
        if request["imports"]:
            tool.check_import(request["imports"])
        return ", ".join(self._parts(uv, pins, len(tools.packages(self.place) - before)))

    def _install(self, tool: tools.Tool, requirements: str, constraints: str, pins: str) -> None:
        """Install them beside what is lent of torch. Raises Failed, which says so if that is in the way."""
        try:
            tool.install(requirements, constraints + pins)
        except Failed as error:
            named = [pin for pin in pins.split() if pin in str(error)]
            if not named:
                raise
            advice = "" if self.request["base"] else "; requirements that name another torch get it instead"
            lent = f"{' and '.join(named)} of this machine is lent (emulated){advice}"
            raise Failed(f"{str(error).rstrip('.')}; {lent}", error.code) from error

    def _parts(self, uv: str | None, pins: str, count: int) -> Iterator[str]:
        yield "uv venv" if uv else "venv"
        if self.request["python"]:
            yield f"Python {pythons.version_of(self.place / 'bin' / 'python', full=True)}"
        if self.what:
            yield f"{self.what}: {count} package{'' if count == 1 else 's'}"
        if pins:
            yield "torch of this machine lent (emulated)"

    def _interpreter(self, base: Path, uv: str | None) -> Path:
        """Return the Python to make it of. Raises Failed if the worker has none of the version that is asked for."""
        wanted = self.request["python"]
        found = base if wanted is None else pythons.find_python(wanted, base, uv) or pythons.download_python(wanted, uv)
        version, least = pythons.version_of(found), self.request["least_python"]
        if version is None:
            raise Failed(f"{found} does not run")
        if least and pythons.numbers(version) < pythons.numbers(least):
            raise Failed(self.request["too_old"].replace("{version}", pythons.version_of(found, full=True) or version))
        return found

    def _prune(self) -> None:
        """Delete what was never completed, and all but the newest environments, if no job uses them."""
        used_at: dict[Path, float] = {}
        for path in self.root.iterdir():
            if path.is_dir() and path != self.place:
                with contextlib.suppress(FileNotFoundError):
                    used_at[path] = 0.0
                    used_at[path] = (path / MARK).stat().st_mtime
        newest = sorted(used_at, key=lambda path: used_at[path], reverse=True)
        for number, path in enumerate(newest, 2):  # the first is that of this job
            if number > KEPT or not used_at[path]:
                _delete_unused(path)


def _delete(path: Path) -> None:
    """Delete the environment. Its mark goes first: if this is killed, what is left does not count as complete."""
    with contextlib.suppress(OSError):
        (path / MARK).unlink()
    shutil.rmtree(path, ignore_errors=True)


def _delete_unused(path: Path) -> None:
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _delete(path)
    except BlockingIOError:
        pass  # a job uses it, or makes it
    finally:
        os.close(lock)
