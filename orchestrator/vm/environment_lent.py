"""What an emulated worker lends to the virtual environments of jobs: packages of the machine that it runs on."""

from __future__ import annotations

import configparser
import shlex
import shutil
from pathlib import Path

from .environment_pythons import version_of
from .environment_tools import say, site_packages

SCRIPT = """#!/bin/sh
'''exec' {python} "$0" "$@"
' '''
import sys
from {module} import {name}
sys.exit({function}())
"""


def lent_to(base: Path, python: Path) -> Path | None:
    """Return the directory of what an emulated worker lends to environments of this Python; None where that is nothing."""
    lent = base.parent.parent / "tpujob-lent"  # emulator.vms.pythons writes it
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
