"""The Pythons of a worker, and its uv: those that are there, and those that can be had."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path

from .environment_tools import Failed, ask, problem


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
