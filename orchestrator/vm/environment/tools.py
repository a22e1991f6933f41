"""The tools that make a virtual environment (uv, or venv and pip), and the Pythons of a worker.

`environment` decides, this module calls. What a tool prints goes to the log of the job as it comes; what it says is wrong is
the message of a failure.
"""

from __future__ import annotations

import collections
import configparser
import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path

FIRST_LINE_S, NEXT_LINE_S = 5.0, 60.0  # a long installation says that it goes on
LOOK_S = 0.05
REMEMBERED_LINES = 200
# uv does not read pip's settings. An index that a job sets for pip must not be replaced by the public one.
UV_FROM_PIP = {
    "UV_DEFAULT_INDEX": ("index-url", " "),
    "UV_INDEX": ("extra-index-url", " "),
    "UV_FIND_LINKS": ("find-links", ","),
    "UV_CONSTRAINT": ("constraint", " "),
    "UV_INSECURE_HOST": ("trusted-host", " "),
    "PIP_NO_INDEX": ("no-index", " "),
}
CERTIFICATES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")  # that pip reads beside its own `cert`
PIP_OPTIONS = ("--quiet", "--no-input", "--disable-pip-version-check", "--progress-bar", "off")
BUNDLED_PIP = (
    "import ensurepip, os, sysconfig; "
    "print(sysconfig.get_config_var('WHEEL_PKG_DIR') or os.path.join(ensurepip.__path__[0], '_bundled'))"
)
OWN_INDEX = re.compile(r"^(-i|--index-url)\b", re.M)
PIP_LOG = "pip.log"
PACKAGE_LINE, HAS_HASH = re.compile(r"\s*[^\s#-]"), re.compile(r" --hash=\S+")
APT = "sudo apt-get -qq update && sudo DEBIAN_FRONTEND=noninteractive apt-get -qq install -y python3-venv"
# A fresh VM upgrades itself for minutes. apt's own option waits for one of its two locks only, and not in every version.
APT_LOCK = re.compile(r"Could not get lock (\S+?)\.?( It is held by process \d+ \(.+\))?$")
APT_LOCK_S, APT_PAUSE_S = 600.0, 10.0


class Failed(Exception):
    """The environment cannot be made; `code` is that of the tool."""

    def __init__(self, why: str, code: int = 2) -> None:
        super().__init__(why)
        self.code = code


class Tool:
    """uv, or venv and pip if `uv` is None, at work on one environment."""

    def __init__(self, uv: str | None, place: Path, lock: int, what: str, is_first: bool) -> None:
        self.uv, self.place, self.lock, self.what, self.is_first = uv, place, lock, what, is_first
        self.began = time.monotonic()
        self.python = place / "bin" / "python"

    def create(self, python: Path, *, with_pip: bool) -> None:
        """Create the environment, empty but for pip. Raises Failed."""
        if self.uv is not None:
            return self._call([self.uv, "venv", "--quiet", "--python", str(python), str(self.place)], "created")
        argv = [str(python), "-m", "venv", *([] if with_pip else ["--without-pip"]), str(self.place)]
        if ask(argv).returncode == 0:
            return None
        shutil.rmtree(self.place, ignore_errors=True)
        if shutil.which("apt-get"):
            say("this image lacks python3-venv; installing it")
            self._install_venv()
        return self._call(argv, "created")

    def _install_venv(self) -> None:
        """Wait until no other process installs packages. Raises Failed if that takes too long; the next call says the rest."""
        give_up_at, waits_for = time.monotonic() + APT_LOCK_S, ""
        while True:
            done = ask(["bash", "-c", APT])
            locked = next(filter(None, map(APT_LOCK.search, done.stderr.splitlines())), None)
            if locked is None:
                return print(done.stderr, end="", flush=True)
            if waits_for != locked[0]:
                waits_for = locked[0]
                say(f"waiting for the lock {locked[1]}.{locked[2] or ''}")
            if time.monotonic() >= give_up_at:
                waited = f"waited {APT_LOCK_S / 60:.0f} minutes for the lock {locked[1]}.{locked[2] or ''}"
                raise Failed(f"{self.what} cannot be created: {waited}", done.returncode)
            time.sleep(APT_PAUSE_S)

    def ensure_pip(self) -> None:
        """Put pip into it, for the job's own `setup:`. Without it, `pip` would be that of the system."""
        if (self.place / "bin" / "pip").exists() or self.uv is None:
            return
        install = [self.uv, "pip", "install", "--quiet", "--python", str(self.python), "pip"]
        bundled = ask([str(self.python), "-IS", "-c", BUNDLED_PIP]).stdout.strip()  # "" on Ubuntu without python3-venv
        if bundled and ask([*install, "--offline", "--no-index", "--find-links", bundled]).returncode == 0:
            return
        if ask(install).returncode != 0:
            script = self.place / "bin" / "pip"
            place, uv = shlex.quote(str(self.place)), shlex.quote(self.uv)
            script.write_text(f'#!/bin/sh\nVIRTUAL_ENV={place} exec {uv} pip "$@"\n')
            script.chmod(0o755)

    def install(self, requirements: str, constraints: str) -> None:
        """Install the lines of a requirements file. Raises Failed."""
        if self.uv is None and not all(map(HAS_HASH.search, filter(PACKAGE_LINE.match, requirements.splitlines()))):
            requirements = HAS_HASH.sub("", requirements)  # of pip, all have one or none: what is local has none
        files: list[str] = []
        for option, name, text in (("-r", "requirements.txt", requirements), ("-c", "constraints.txt", constraints)):
            if text:
                (self.place / name).write_text(text)
                files += [option, str(self.place / name)]
        if self.uv is None:
            argv = [str(self.python), "-m", "pip", "install", *PIP_OPTIONS, "--log", str(self.place / PIP_LOG), *files]
        else:
            argv = [self.uv, "pip", "install", "--quiet", "--python", str(self.python), *no_index(), *files]
        self._call(argv, "installed")

    def would_install(self, requirements: str, constraints: str) -> dict[str, str]:
        """Return the versions that `install` would add; nothing if the tool finds none, or is too old to say."""
        names = []
        for option, name, text in (("-r", "asked.txt", requirements), ("-c", "pins.txt", constraints)):
            (self.place / name).write_text(text)
            names += [option, str(self.place / name)]
        if self.uv is not None:
            done = ask([self.uv, "pip", "install", "--dry-run", "--python", str(self.python), *no_index(), *names])
            return dict(re.findall(r"^ \+ (\S+?)==(\S+)", done.stderr, re.M))
        done = ask([str(self.python), "-m", "pip", "install", *PIP_OPTIONS, "--dry-run", "--report", "-", *names])
        found = json.loads(done.stdout)["install"] if done.returncode == 0 else []
        return {plain(each["metadata"]["name"]): each["metadata"]["version"] for each in found}

    def check_import(self, modules: str) -> None:
        """Import these modules once, before anything relies on them. Raises Failed."""
        self._call([str(self.python), "-c", f"import {modules}"], "imported")

    def _call(self, argv: Sequence[str], done: str) -> None:
        """Run the tool, pass its output on, and report that it goes on. Raises Failed."""
        # It inherits the lock: if this program is killed, no other begins while the tool still writes.
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(),
            pass_fds=(self.lock,),
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        lines: collections.deque[str] = collections.deque(maxlen=REMEMBERED_LINES)
        rest, is_open, next_line = b"", True, time.monotonic() + FIRST_LINE_S
        while is_open:
            piece = process.stdout.read()
            is_open = piece != b""
            *ended, rest = (rest + (piece or b"")).split(b"\n") if is_open else [rest, b""]
            for line in ended:
                lines.append(line.decode("utf-8", "replace"))
                if lines[-1].strip():
                    print(lines[-1], flush=True)
            if time.monotonic() >= next_line:
                next_line += NEXT_LINE_S
                took_s = time.monotonic() - self.began
                if self.is_first or took_s >= NEXT_LINE_S:
                    say(f"{self.what}: still being {done} after {took_s:.0f} s")
            if piece is None:
                time.sleep(LOOK_S)
        code = process.wait()
        if code != 0:
            why = _conflict(self.place / PIP_LOG) or problem(lines) or f"{Path(argv[0]).name} ended with code {code}"
            raise Failed(f"{self.what} cannot be {done}: {why}", code if code > 0 else 128 - code)


def packages(place: Path) -> set[str]:
    """Return the names of the metadata directories in the environment, one for each package."""
    return {path.name for path in site_packages(place).glob("*.dist-info")}


def site_packages(place: Path) -> Path:
    """Return the directory of the packages of an environment."""
    return next(iter(place.glob("lib/python*/site-packages")))


def ask(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program whose failure is an answer, too."""
    try:
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=_environment(), check=False
        )
    except OSError as error:
        return subprocess.CompletedProcess(argv, 127, "", str(error))


def _environment() -> dict[str, str]:
    return {**os.environ, "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}


def adopt_settings_of_pip(prefix: str, requirements: str = "", environ: MutableMapping[str, str] = os.environ) -> None:
    """Let what pip is set up with hold for uv, too: variables and pip's files. What is set for uv itself counts more.

    `prefix`: the `sys.prefix` of the Python that pip is of. An index that the requirements name counts more for pip.
    """
    read = configparser.RawConfigParser(strict=False)
    for file in _files_of_pip(prefix, environ):
        with contextlib.suppress(OSError, ValueError, configparser.Error):
            read.read_string(file.read_text(encoding="utf-8"))
    sections = (read[name] for name in ("global", "install") if name in read)
    found = {name.replace("_", "-"): value for section in sections for name, value in section.items()}
    of_pip = {name[4:].lower().replace("_", "-"): text for name, text in environ.items() if name[:4] == "PIP_"}
    found.update(of_pip)
    if OWN_INDEX.search(requirements):
        found.pop("index-url", None)
    # Of several indexes uv takes the first that has the name, pip the best version.
    if "extra-index-url" in found and "UV_INDEX" not in environ:
        environ.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    for name, (key, separator) in UV_FROM_PIP.items():
        if key in found:
            environ.setdefault(name, separator.join(found[key].split()))
    certificates = found.get("cert") or next(filter(None, map(environ.get, CERTIFICATES)), None)
    if certificates:
        environ.setdefault("SSL_CERT_FILE", certificates)


def _files_of_pip(prefix: str, environ: Mapping[str, str]) -> list[Path]:
    """Return the places of pip's files, as `pip config debug` names them; what a later one says counts more."""
    named, home = environ.get("PIP_CONFIG_FILE", ""), Path(environ.get("HOME") or "~").expanduser()
    if named == os.devnull:
        return []
    found = [Path(each, "pip") for each in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)]
    found.append(Path("/etc"))
    if not (named and Path(named).exists()):
        own = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        found += [home / ".pip", own / "pip", home / "Library" / "Application Support" / "pip"]
    return [*(each / "pip.conf" for each in (*found, Path(prefix))), *([Path(named)] if named else [])]


def no_index(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the option of uv for what pip is set up with, and uv has no variable for."""
    return ["--no-index"] if environ.get("PIP_NO_INDEX", "").lower() in ("1", "true", "yes", "on") else []


def plain(name: str) -> str:
    """Return the name of a package as tools compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _conflict(log: Path) -> str:
    """Return which package wants what by the log of pip, which prints it only where it prints everything; "" for none."""
    text = log.read_text(errors="replace") if log.exists() else ""
    lines = (line.partition(" ")[2].strip() for line in text.partition("The conflict is caused by:\n")[2].splitlines())
    return ", but ".join(itertools.takewhile(bool, lines))


def problem(lines: Iterable[str]) -> str:
    """Return what is wrong by the output of pip or uv, on one line; "" if it does not say."""
    error, cause, of_pip = "", "", ""
    for line in lines:
        text = line.strip()
        if cause and text.startswith("And because "):
            cause += f" {text}"
        begin, _, rest = text.partition(" ")
        if begin == "ERROR:":
            of_pip = rest
        elif begin in ("error:", "×"):
            error = error or rest.rstrip(":")
        elif begin in ("cause:", "╰─▶", "├─▶") or text.startswith("Caused by:"):
            cause = cause or rest.replace("by: ", "", 1).strip()
    return of_pip or ": ".join(part for part in (error, cause) if part)


def say(line: str) -> None:
    """Print a line of the setup."""
    print(f"setup    {line}", flush=True)


def base_python(named: str | None) -> Path:
    """Return the Python that environments are made of: the worker's, or one that a variable names."""
    return Path(os.path.expandvars(named) if named else shutil.which("python3") or sys.executable)


def find_uv(root: Path) -> str | None:
    """Return the path of uv: that of the system, of the user, or the one that `install_uv` installed."""
    places = ("~/.local/bin/uv", "~/.cargo/bin/uv", str(_own_uv(root) / "bin" / "uv"))
    found = shutil.which("uv")
    return found or next((path for path in map(os.path.expanduser, places) if os.access(path, os.X_OK)), None)


def install_uv(root: Path, python: Path) -> str | None:
    """Install uv in a directory of its own, which needs neither a venv module nor root; None if pip cannot get it."""
    place = _own_uv(root)
    draft = place.with_name(f"uv.{os.getpid()}")
    options = ("--quiet", "--no-input", "--disable-pip-version-check", "--no-deps", "--retries", "1", "--timeout", "10")
    done = ask([str(python), "-m", "pip", "install", *options, "--target", str(draft), "uv"])
    if done.returncode == 0 and ask([str(draft / "bin" / "uv"), "--version"]).returncode == 0:
        with contextlib.suppress(OSError):  # another one was first
            draft.rename(place)
    shutil.rmtree(draft, ignore_errors=True)
    return find_uv(root)


def _own_uv(root: Path) -> Path:
    return root.with_name("tools") / "uv"


def find_python(wanted: str, base: Path, uv: str | None) -> Path | None:
    """Return an interpreter of this version that runs: a shim of pyenv may have nothing behind it."""
    name = f"python{wanted}"
    versions = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser() / "versions"
    candidates = [base, *(Path(path) for path in [shutil.which(name)] if path)]
    candidates += sorted(versions.glob(f"{wanted}*/bin/{name}"), reverse=True)
    found = next((path for path in candidates if version_of(path) == wanted), None)
    if found is None and uv is not None:
        done = ask([uv, "python", "find", "--no-python-downloads", wanted])
        found = Path(done.stdout.strip()) if done.returncode == 0 else None
    return found


def download_python(wanted: str, uv: str | None) -> Path:
    """Return an interpreter that uv downloads. Raises Failed."""
    missing = f"there is no Python {wanted} on this worker (in PATH, or of pyenv)"
    if uv is None:
        raise Failed(f"{missing}, and no uv to download it")
    done = ask([uv, "python", "install", wanted])
    found = find_python(wanted, Path(f"python{wanted}"), uv) if done.returncode == 0 else None
    if found is None:
        why = problem(done.stderr.splitlines()) or f"it ended with code {done.returncode}"
        raise Failed(f"{missing}, and uv cannot download it: {why}", done.returncode or 2)
    return found


def version_of(python: Path, *, full: bool = False) -> str | None:
    """Return the version of an interpreter, such as 3.12, or 3.12.1 in full; None if it does not run."""
    done = ask([str(python), "-IS", "-c", "import platform; print(platform.python_version())"])
    found = done.stdout.strip()
    return None if done.returncode != 0 else found if full else ".".join(found.split(".")[:2])


def numbers(version: str) -> tuple[int, ...]:
    """Return major and minor version, to compare."""
    return tuple(int(part) for part in version.split(".")[:2])
