"""torch, and what is built for one version of it, which no resolver knows: torch_xla does not name it in its metadata."""

from __future__ import annotations

import re
from pathlib import Path

from .environment_tools import Tool, ask, plain, say

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
    fixed = [re.fullmatch(r"\s*(torch(?:[-_.]xla)?)(?:\[.*\])?\s*==\s*(\d[\d.]*)\s*", line, re.I) for line in lines]
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
