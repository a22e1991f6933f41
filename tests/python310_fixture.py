"""The Python of today's TPU VM images, 3.10, where this machine has one: what is shipped there has to run on it.

`python310` needs nothing else, `python310_with_torch` has torch and numpy, too. PYTHON310 may name an interpreter; else the one
on the PATH counts, and those of pyenv.
"""

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

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
