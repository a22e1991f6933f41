"""Makes the virtual environment of a job on a worker, once: later runs with the same requirements find it complete.

The setup script of a job runs this verb, and one line says what it did. Each environment has a lock file beside it: who makes
the environment holds the lock alone, and the scripts of the job share it, so that none is deleted while it is used. An
environment without its mark is half made, and is made again.
"""

from __future__ import annotations

import configparser
import contextlib
import fcntl
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import tools
from .tools import Failed, Tool, ask, plain, say, site_packages, version_of

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
    """One environment. `text.scripts` writes the request and describes its keys."""

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
            with _locked(self.place, fcntl.LOCK_EX) as lock:
                if not self._is_complete():
                    self._build(lock)
        self._prune()

    def _is_there(self) -> bool:
        with _locked(self.place, fcntl.LOCK_SH):  # a job that uses it shares this lock for hours
            if not self._is_complete():
                return False
            os.utime(self.place / MARK)
            if self.is_first:
                say(f"{json.loads((self.place / MARK).read_text())['said']}, is there already")
            return True

    def _is_complete(self) -> bool:
        """Also false when its interpreter was removed since."""
        return (self.place / MARK).exists() and version_of(self.place / "bin" / "python") is not None

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
        request, base = self.request, tools.base_python(self.request["base"])
        prefix = ask([str(base), "-IS", "-c", "import sys; print(sys.prefix)"]).stdout.strip()
        tools.adopt_settings_of_pip(prefix, request["requirements"])
        uv = None if request["needs_pip"] else tools.find_uv(self.root)
        if uv is None and request["install_uv"] and not request["needs_pip"]:
            uv = tools.install_uv(self.root, base)
        python = self._interpreter(base, uv)
        lent = lent_to(base, python)
        pins, (requirements, constraints) = pins_of(lent), self._asked(python)
        tool = Tool(uv, self.place, lock, self.what or "the environment", self.is_first)
        tool.create(python, with_pip=lent is None)
        if lent is not None:
            lend(lent, "pip", self.place)
        # A training uses what is lent: on a TPU VM, too, it does not choose its torch.
        choice = "" if request["base"] else pins
        other = refusal_of(choice, requirements + constraints, base)
        if other or "torch-xla" not in pins:
            constraints += pair_of(tool, requirements, constraints)
            other = other or refusal_of(choice, constraints, base)
        if other:
            pins = ""
            if self.is_first:
                say(f"emulated: this machine's torch is not lent: {other} is asked for, and is installed instead")
        elif lent is not None:
            lend(lent, "torch", self.place)
        tool.ensure_pip()
        before = tools.packages(self.place)
        if requirements:
            self._install(tool, requirements, constraints, pins)
        if request["imports"]:
            tool.check_import(request["imports"])
        return ", ".join(self._parts(uv, pins, len(tools.packages(self.place) - before)))

    def _asked(self, python: Path) -> tuple[str, str]:
        """Return the requirements and constraints to install: those of the lock, if it is for this Python."""
        lock, meant = self.request.get("lock"), self.request.get("lock_python")
        if not lock or meant == version_of(python):
            return lock or self.request["requirements"], "" if lock else self.request["constraints"]
        if self.is_first:
            say(
                f"the versions that were chosen are for Python {meant}, and this worker has {version_of(python)}: chosen anew"
            )
        return self.request["requirements"], self.request["constraints"]

    def _install(self, tool: Tool, requirements: str, constraints: str, pins: str) -> None:
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
            yield f"Python {version_of(self.place / 'bin' / 'python', full=True)}"
        if self.what:
            yield f"{self.what}: {count} package{'' if count == 1 else 's'}"
        if pins:
            yield "torch of this machine lent (emulated)"

    def _interpreter(self, base: Path, uv: str | None) -> Path:
        """Return the Python to make it of. Raises Failed if the worker has none of the version that is asked for."""
        wanted = self.request["python"]
        found = base if wanted is None else tools.find_python(wanted, base, uv) or tools.download_python(wanted, uv)
        version, least = version_of(found), self.request["least_python"]
        if version is None:
            raise Failed(f"{found} does not run")
        if least and tools.numbers(version) < tools.numbers(least):
            raise Failed(self.request["too_old"].replace("{version}", version_of(found, full=True) or version))
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
                with contextlib.suppress(BlockingIOError), _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    _delete(path)  # unless a job uses it, or makes it


def _delete(path: Path) -> None:
    """Delete the environment. Its mark goes first: if this is killed, what is left does not count as complete."""
    with contextlib.suppress(OSError):
        (path / MARK).unlink()
    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(place: Path, how: int) -> Iterator[int]:
    lock = os.open(f"{place}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, how)
        yield lock
    finally:
        os.close(lock)


# torch: torch_xla does not name what it is built for in its metadata, so no resolver knows it.
PACKAGE = re.compile(r"\s*(torch(?:[-_.](?:xla|tpu))?)\s*(?=[\[<>=!~;@(\s]|$)", re.I)
# The first line that another version is asked for by. Every emulated worker has pip, which knows versions and markers.
_REFUSED = """
import re, sys
from pip._vendor.packaging.requirements import Requirement
pins = dict(line.split("==") for line in sys.argv[1].split())
for line in sys.argv[2].splitlines():
    asked = Requirement(line.split(" --")[0])
    pin = pins.get(re.sub("[-_.]+", "-", asked.name).lower())
    if pin and (asked.marker is None or asked.marker.evaluate({"extra": ""})):
        if asked.url or not asked.specifier.contains(pin, prereleases=True):
            sys.exit(print(line))
"""


def pins_of(lent: Path | None) -> str:
    """Return what is lent of these packages, as lines of a constraints file."""
    found = () if lent is None else sorted(path.name[: -len(".dist-info")] for path in lent.glob("*/*.dist-info"))
    parts = (name.partition("-") for name in found)
    return "".join(f"{plain(name)}=={version}\n" for name, _, version in parts if PACKAGE.fullmatch(name))


def refusal_of(pins: str, asked: str, python: Path) -> str:
    """Return the line of requirements that asks for another version than these; "" if none does."""
    lines = "\n".join(line for line in asked.splitlines() if PACKAGE.match(line))
    return ask([str(python), "-c", _REFUSED, pins, lines]).stdout.strip() if pins and lines else ""


def pair_of(tool: Tool, requirements: str, constraints: str) -> str:
    """Return the constraint by which torch and torch_xla are of one version; "" where none is needed, or possible."""
    if not any(plain(match[1]) == "torch-xla" for match in map(PACKAGE.match, requirements.splitlines()) if match):
        return ""
    lines = [line for line in (requirements + constraints).splitlines() if PACKAGE.match(line)]
    plainly = r"\s*(torch(?:[-_.]xla)?)(?:\[.*\])?\s*==\s*(\d[\d.]*)\s*"
    fixed = [re.fullmatch(plainly, line.partition(" --hash=")[0], re.I) for line in lines]
    found = {plain(match[1]): match[2] for match in fixed if match}
    if None in fixed or len(found) < 2:
        found = tool.would_install(requirements, constraints)
    torch, xla = (".".join(found.get(name, "").split(".")[:2]) for name in ("torch", "torch-xla"))
    if not torch or not xla or torch == xla:
        return ""
    pins = (f"torch=={xla}.*", f"torch-xla=={torch}.*")
    pin = next((each for each in pins if tool.would_install(requirements, f"{constraints}{each}\n")), "")
    if tool.is_first:
        what = f"torch_xla works with the torch of its own version only, not {xla} with {torch}"
        say(f"{what}: {pin} is asked for, too" if pin else what)
    return pin and f"{pin}\n"


# What an emulated worker lends to the virtual environments of jobs: packages of the machine that it runs on.
SCRIPT = """#!/bin/sh
'''exec' {python} "$0" "$@"
' '''
import sys
from {module} import {name}
sys.exit({function}())
"""


def lent_to(base: Path, python: Path) -> Path | None:
    """Return the directory of what an emulated worker lends to environments of this Python; None where that is nothing."""
    lent = base.parent.parent / "tpujob-lent"  # `cloud_tpu_emulator.vms.pythons` writes it
    if not lent.is_dir():
        return None
    version = version_of(python)
    found = lent / f"python{version}"
    if found.is_dir():
        return found
    if any(lent.glob("*/*/torch-*.dist-info")):
        say(f"emulated: torch is not lent to Python {version}, only to the one that tpujob runs on")
    return None


def lend(lent: Path, what: str, place: Path) -> None:
    """Add what names the lent packages to the environment: for Python a .pth file, for pip and uv their metadata. `what`:
    pip or torch, with what they need.

    The metadata list no files of the packages, so that replacing a package by another version deletes none of them.
    """
    site = site_packages(place)
    for path in lent.glob(f"{what}/*"):
        if path.is_dir():
            shutil.copytree(str(path), str(site / path.name))
            _write_scripts(path / "entry_points.txt", place)
        else:
            shutil.copy(str(path), str(site / path.name))


def _write_scripts(entry_points: Path, place: Path) -> None:
    python = shlex.quote(str(place / "bin" / "python"))
    points = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    points.read(str(entry_points))
    for name, entry in points.items("console_scripts") if points.has_section("console_scripts") else ():
        module, _, function = entry.partition("[")[0].strip().partition(":")
        path = place / "bin" / name
        first = function.partition(".")[0]
        path.write_text(SCRIPT.format(python=python, module=module, name=first, function=function))
        path.chmod(0o755)
