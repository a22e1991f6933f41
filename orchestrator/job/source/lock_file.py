"""Locks: each package that a resolver chose, on a line of its own with the hashes of its files. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_NAME = re.compile(r"\s*([A-Za-z0-9][\w.-]*)")
_PINNED = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[.*?\])?\s*(?:==\s*([^\s;]+)|@\s*(\S+))")
_HASH = re.compile(r"--hash[=\s]+(\w+:[0-9a-fA-F]+)")
_WHEEL = re.compile(
    r"(?:.*[/\s])?(?P<file>[^/\s]+-(?P<python>\w[\w.]*)-(?P<abi>\w+)-(?P<platform>\w[\w.]*)\.whl)(?=$|[\s;#\[])"
)
FAR_BEHIND = 3  # minor versions


@dataclass(frozen=True, slots=True)
class Lock:
    """Lines of a requirements file: `NAME==VERSION --hash=…`; what is installed from a directory has neither."""

    lines: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the lines as the text of a file."""
        return "".join(f"{line}\n" for line in self.lines)

    @property
    def versions(self) -> dict[str, str]:
        """Return the version of each package, or the URL that it comes from."""
        found = (match for match in map(_PINNED.match, self.lines) if match)
        return {plain(match[1]): match[2] or match[3] for match in found}


NO_LOCK = Lock()


def lock_of(output: str) -> Lock:
    """Return the lock that `uv pip compile` prints, which continues lines with a backslash."""
    lines = (" ".join(line.split()) for line in output.replace("\\\n", " ").splitlines())
    return Lock(tuple(line for line in lines if line and not line.startswith("#")))


def plain(name: str) -> str:
    """Return the name of a package as tools compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(line: str) -> str | None:
    """Return the name of the package that a line of requirements asks for; None for an option, a path, a bare URL."""
    match = _NAME.match(line)
    return plain(match[1]) if match and not re.match(r"\s*([\w.-]*/|[\w+.-]+:)", line) else None


def options_of(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the lines that are options, such as `--index-url URL`."""
    return tuple(line for line in lines if line.startswith("-"))


def without_hashes(line: str) -> str:
    """Return a line of requirements without the hashes of its files."""
    return _HASH.sub("", line).strip()


def foreign_hashes(asked: Iterable[str], lock: Lock) -> list[str]:
    """Return the asked lines with hashes of which none is that of a file that the lock knows."""
    known = {name_of(line): set(_HASH.findall(line)) for line in lock.lines}
    return [line for line in asked if (own := set(_HASH.findall(line))) and not own & known.get(name_of(line), own)]


def foreign_wheels(asked: Iterable[str], lock: Lock, python: str) -> list[tuple[str, str]]:
    """Return the asked lines whose file is in the lock, but not for Linux on x86-64 with this Python; with what it is for."""
    found = []
    for match in filter(None, map(_WHEEL.match, asked)):
        pythons, platforms, minor = match["python"].split("."), match["platform"].split("."), int(python.split(".")[1])
        least = [int(each[3:]) for each in pythons if re.fullmatch(r"cp3\d+", each)]
        fits = any(each.startswith("py3") for each in pythons) or any(
            number == minor or (match["abi"] == "abi3" and number < minor) for number in least
        )
        fits = fits and any(re.fullmatch(r"any|(manylinux.*|linux)_x86_64", each) for each in platforms)
        if not fits and match["file"] in lock.text:  # its marker may leave it out
            found.append((match.string, f"{match['python']}-{match['abi']}-{match['platform']}"))
    return found


def with_hashes_of(asked: Iterable[str], lock: Lock) -> Lock:
    """Return the lock, in which only those files count whose hashes a line that asks for the package names, if it names any."""
    own = {name_of(line): found for line in asked if (found := _HASH.findall(line))}
    lines = (
        " ".join([without_hashes(line), *(f"--hash={each}" for each in own[name])])
        if (name := name_of(line)) in own
        else line
        for line in lock.lines
    )
    return Lock(tuple(lines))


def far_behind(
    asked: Iterable[str], versions: Mapping[str, str], newer: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Return (name, version, newer version) of asked packages with a newer major version, or one three minor versions on."""
    found = []
    for name in dict.fromkeys(map(name_of, asked)):
        if name is None or name not in versions or name not in newer:
            continue
        old, new = _numbers(versions[name]), _numbers(newer[name])
        if old and new and (new[0] > old[0] or (new[0] == old[0] and new[1] >= old[1] + FAR_BEHIND)):
            found.append((name, versions[name], newer[name]))
    return found


def _numbers(version: str) -> tuple[int, int] | None:
    match = re.match(r"(?:\d+!)?(\d+)(?:\.(\d+))?(?:\D|$)", version)
    return (int(match[1]), int(match[2] or 0)) if match else None
