"""Removes directory trees that a job may have made."""

import shutil
import subprocess
from pathlib import Path


def remove(directory: Path) -> None:
    """Remove a tree of any depth, as far as this user may."""
    try:
        shutil.rmtree(directory, ignore_errors=True)
    except RecursionError:  # before Python 3.13
        subprocess.run(["rm", "-rf", "--", directory], stderr=subprocess.DEVNULL, check=False)
