"""Chooses what workers install before anything is created: each package of an environment, with its version and hashes.

uv chooses for the Python and the system of the workers, whatever this machine has. What the index says cannot be had is
refused. What only cannot be asked for or built here is left to the workers, with a warning.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import JobSpecError
from orchestrator.job.source.lock_file import (
    NO_LOCK,
    Lock,
    far_behind,
    foreign_hashes,
    foreign_wheels,
    name_of,
    options_of,
    plain,
    with_hashes_of,
    without_hashes,
)
from orchestrator.job.source.requirement_lines import Requirements
from orchestrator.places.place import Workers
from orchestrator.places.preparation import requirements
from orchestrator.places.preparation.phases import environment_of
from orchestrator.places.preparation.versions import Answer, Resolver
from orchestrator.text.scripts import VM_PYTHON

if TYPE_CHECKING:
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.places.desk import Desk, Teller
    from orchestrator.places.preparation.phases import Emulation
    from orchestrator.text.scripts import Environment

LOCK = "requirements.lock"  # in the directory of a run
NEWER, OLDER = "3.12", ("3.8", "3.9", "3.10", "3.11")
NAMED = 6  # packages in a line of the plan
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


TPU_VM = Workers("a TPU VM", VM_PYTHON, "x86_64-manylinux_2_35")  # Ubuntu 22.04
EMULATED = Workers("an emulated worker", OWN, None, lend_torch=True)


def pods_of(image: str) -> Workers:
    """Return the pods with this image; its name may tell the Python. libtpu needs glibc 2.31; Debian 12 has 2.36."""
    named = re.fullmatch(r"(?:.*/)?python:(3\.\d+)(?:[.-].*)?", image)
    return Workers(f"the image {image}", named[1] if named else "", "x86_64-manylinux_2_36")


@dataclass(frozen=True, slots=True)
class Resolved:
    """The environment of a job, with what was chosen for it; None: the job has none of its own."""

    environment: Environment | None
    workers: Workers
    python: str = ""
    lock: Lock = NO_LOCK
    lines: tuple[str, ...] = ()  # for the plan
    warnings: tuple[str, ...] = ()

    @property
    def files(self) -> dict[str, str]:
        """Return what is kept in the directory of the run, by its name."""
        head = f"# Chosen for Python {self.python} of {self.workers.what}, and installed on every worker.\n"
        return {LOCK: head + self.lock.text} if self.lock.lines else {}

    def tell(self, reporter: Teller) -> None:
        """Say what was chosen."""
        for line in self.lines:
            reporter.notice("plan", line)
        for line in self.warnings:
            reporter.notice("warning", line)

    @property
    def shape(self) -> dict[str, Any] | None:
        """Return the choice as JSON values; None: nothing is installed, or the workers choose."""
        return (
            {"python": self.python, "for": self.workers.what, "packages": self.lock.versions}
            if self.lock.lines
            else None
        )


def resolve(
    desk: Desk, spec: JobSpec, path: Path, env: Mapping[str, str], workers: Workers, emulation: Emulation | None = None
) -> Resolved:
    """Return the environment of a job on these workers, with a lock where its versions can be chosen here.

    `env`: the variables of the job, resolved. Raises JobSpecError for what the index does not have, with the lines that ask
    for it.
    """
    asked = environment_of(spec, requirements.read(spec, path), emulation)
    python = spec.python or workers.python
    if asked is None or not asked.requirements:
        empty = (f"{asked.what}: no package is named there",) if asked is not None and asked.what else ()
        return Resolved(asked, workers, lines=empty)
    if not python:
        why = f"requirements: which Python {workers.what} has is not known here, so the pods choose the versions"
        return Resolved(asked, workers, warnings=(f'{why}; `python: "{NEWER}"` lets tpujob choose them first',))
    desk.reporter.progress("plan", f"choosing the versions of {asked.what} for Python {python}")
    code = path.parent if spec.code is None else (path.parent / spec.code).resolve()
    resolver = Resolver(asked, workers.platform, env, code, desk.directory / "resolved")
    with ThreadPoolExecutor() as pool:
        may_be_newer = spec.python is None and python in OLDER and spec.requirements is not None
        later = pool.submit(resolver.choose, NEWER) if may_be_newer else None
        chosen = resolver.paired(python)
        newer = later.result() if later is not None else None
    if chosen.refused:
        raise _refusal(spec, path, asked, chosen.why, f"Python {python} of {workers.what}", newer, chosen.line)
    if not chosen.lock.lines and not chosen.why:
        none = f"{asked.what}: by its markers, nothing is for Python {python} of {workers.what}"
        return Resolved(asked, workers, warnings=(none,))
    if not chosen.lock.lines:
        why = f"{asked.what}: the versions cannot be chosen here, so the workers choose them: {chosen.why}"
        return Resolved(asked, workers, warnings=(why,))
    if workers.lend_torch and "torch" in chosen.lock.versions:
        return Resolved(asked, workers)  # the worker knows what it lends, and what fits that
    lines = asked.requirements.splitlines()
    if workers.platform is not None and (unfit := foreign_wheels(lines, chosen.lock, python)):
        why = f"a wheel for {unfit[0][1]} cannot be installed; name the package, or a wheel that fits"
        raise _refusal(
            spec, path, replace(asked, requirements=f"{unfit[0][0]}\n"), why, f"Python {python} of {workers.what}", None
        )
    if foreign := foreign_hashes(lines, chosen.lock):
        why = "no file of this version that the index has is one of these hashes"
        raise _refusal(spec, path, replace(asked, requirements=f"{foreign[0]}\n"), why, "", None)
    lock = with_hashes_of(lines, chosen.lock)
    text = "".join(f"{line}\n" for line in (*options_of(lines), *lock.lines))
    unjudged = ("what `setup:` installs beside them is not judged",) if spec.setup else ()
    behind = far_behind(lines, lock.versions, newer.lock.versions if newer else {})
    return Resolved(
        replace(asked, lock=text, lock_python=python),
        workers,
        python,
        lock,
        (_line(lines, lock, f"Python {python} of {workers.what}"), *unjudged, *chosen.notes),
        tuple(
            f'requirements: Python {python} gets {name} {old}, and Python {NEWER} {new}; `python: "{NEWER}"` takes it'
            for name, old, new in behind
        ),
    )


def _line(asked: Sequence[str], lock: Lock, for_what: str) -> str:
    """Return what was chosen as a sentence, what the job names itself first."""
    versions = lock.versions
    first = [name for name in dict.fromkeys(map(name_of, asked)) if name in versions]
    named = [f"{name} {versions[name]}" for name in first[:NAMED] if name is not None]
    rest = len(lock.lines) - len(named)
    return f"chosen for {for_what}: {', '.join(named) or 'packages of the code'}{f', and {rest} more' if rest else ''}"


def _refusal(
    spec: JobSpec,
    path: Path,
    asked: Environment,
    why: str,
    for_what: str,
    newer: Answer | None,
    number: int | None = None,
) -> JobSpecError:
    """Return the error for packages that cannot be had. `newer`: what a newer Python would get. `number`: of the line, if it
    is known.
    """
    found = Requirements() if spec.requirements is None else requirements.found_in(spec, path)[0]
    lines = asked.requirements.splitlines()
    words = set(map(plain, re.findall(r"[A-Za-z0-9][\w.-]*\w", re.sub(r"==|[<>~!]=?", " ", why))))
    blamed = [line for line in lines if name_of(line) in words] or lines
    if number is not None:
        blamed = [lines[number]]
    key: tuple[str | int, ...] = requirements.KEY
    if isinstance(spec.requirements, tuple) and blamed[0] in found.lines:
        key = (*key, found.lines.index(blamed[0]))
    named = ", ".join(f"{found.origins.get(line, '')}`{without_hashes(line)}`" for line in blamed[:3])
    text = f"{named}: {f'for {for_what}: ' if for_what else ''}{why.rstrip('.')}"
    advice = None
    if newer is not None and newer.lock.lines:
        advice = f'Python {NEWER} has it: write `python: "{NEWER}"`, and uv brings that Python along'
    return JobSpecError([spec.mistake(key if spec.requirements is not None else ("train",), text)], hint=advice)
