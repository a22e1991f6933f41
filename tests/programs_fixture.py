"""What this machine may have: a browser for pages that people look at, the Python of TPU VM images, and torch."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


HAS_TORCH, HAS_XLA = (importlib.util.find_spec(name) is not None for name in ("torch", "torch_xla"))
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="needs torch (the `local` extra)")
needs_xla = pytest.mark.skipif(not HAS_XLA, reason="needs torch_xla (the `local` extra)")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Without a Chromium on this machine, the test is skipped."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    sandbox = [] if os.geteuid() else ["--no-sandbox"]  # Chromium refuses to run as root with it
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=sandbox)
        yield started
        started.close()


ASK = (
    "import sys, importlib.util as util\n"
    "sys.exit(sys.version_info[:2] != (3, 10) or any(util.find_spec(name) is None for name in sys.argv[1:]))"
)


def _candidates() -> Iterator[str | None]:
    yield os.environ.get("PYTHON310")
    yield shutil.which("python3.10")
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, sorted(pyenv.glob("versions/3.10.*/bin/python3.10")))


@functools.cache
def find(*modules: str) -> str | None:
    """The first that is one (a shim of pyenv need not be), and has these modules."""
    for each in filter(None, _candidates()):
        asked = subprocess.run([each, "-c", ASK, *modules], capture_output=True, check=False)
        if asked.returncode == 0:
            return each
    return None


@pytest.fixture(scope="session")
def python310() -> str:
    return find() or pytest.skip("needs a Python 3.10: python3.10 on the PATH, in pyenv, or named by PYTHON310")


@pytest.fixture(scope="session")
def python310_with_torch() -> str:
    return find("torch", "numpy") or pytest.skip("needs a Python 3.10 with torch and numpy, named by PYTHON310")
