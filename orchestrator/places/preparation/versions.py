"""Asks uv which versions an environment gets, for a Python and a system that this machine need not have.

What uv has chosen is kept for some minutes, so that a run takes what `tpujob plan` has just shown.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.job.source.lock_file import NO_LOCK, Lock, lock_of, without_hashes
from orchestrator.system import whole_file
from orchestrator.vm.environment import tools

if TYPE_CHECKING:
    from orchestrator.text.scripts import Environment

LIMIT_S = 60.0
KEPT_S = 600.0
MOST_CHARS = 300
LIMITS = {"UV_HTTP_RETRIES": "1", "UV_HTTP_TIMEOUT": "15"}  # without an index, no command waits for minutes
_NONE_FITS = "No solution found"
_REFUSED = re.compile(r"(?:error:|\s*×) (No solution found|Couldn't parse|Unsupported|Expected|Unexpected)")
_ERROR = re.compile(r"^(error:|\s*×).*", re.M | re.S)  # after warnings
_NO_PROJECT = "does not appear to be a Python project"  # of a directory that travels as it is
_NO_EXTRA = re.compile(r"^warning: (The package .* does not have an extra named .*)$", re.M)
_CLOSED = re.compile(r"An index URL .* could not be queried .*")  # of which uv says that a package is not there
_UNREAD = re.compile(r"Couldn't parse requirement in .*\n\s*(?:Caused by: |cause: )?(.*)")
_AT_LINE, _AT_BYTE = re.compile(r":\s+-:(\d+):\d+\b"), re.compile(r"in `-` at position (\d+)")
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")  # as uv and pip read requirements


@dataclass(frozen=True, slots=True)
class Answer:
    """What uv answers. Without lines, `why` there is no lock, or "" where nothing is asked for; `refused`: none can be."""

    lock: Lock = NO_LOCK
    why: str = ""
    refused: bool = False
    notes: tuple[str, ...] = ()
    line: int | None = None  # the number of the one that uv cannot read, from 0


class Resolver:
    """Asks uv about one environment."""

    def __init__(
        self, asked: Environment, platform: str | None, env: Mapping[str, str], code: Path, kept_in: Path
    ) -> None:
        self.asked, self.platform, self.code, self.kept_in = asked, platform, code, kept_in
        self.lines = [without_hashes(line) for line in asked.requirements.splitlines()]
        self.values = {name: env.get(name, os.environ.get(name, "")) for name in _VARIABLE.findall(asked.requirements)}
        self.settings = {
            name: value
            for name, value in {**os.environ, **env}.items()
            if re.match(r"PIP_|UV_", name) or name in tools.CERTIFICATES
        }
        self._once = threading.Lock()

    @cached_property
    def uv(self) -> str | None:
        """The program that comes with the package uv, else one in PATH."""
        own = Path(sysconfig.get_path("scripts"), "uv")
        return str(own) if own.exists() else shutil.which("uv")

    @cached_property
    def environ(self) -> Mapping[str, str]:
        """What uv asks with: the indexes that are set up for pip on this machine, and those of the job."""
        found = {**LIMITS, **os.environ, **self.settings, **self.values, "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
        tools.adopt_settings_of_pip(sys.prefix, self.asked.requirements, found)
        return found

    def paired(self, python: str) -> Answer:
        """Return what `choose` does; torch and torch_xla of one version, which no resolver knows to be needed."""
        first = self.choose(python)
        torch, xla = (".".join(first.lock.versions.get(name, "").split(".")[:2]) for name in ("torch", "torch-xla"))
        if torch == xla or not torch or not xla:
            return first
        what = f"torch_xla works with the torch of its own version only, not {xla} with {torch}"
        for pin in (f"torch=={xla}.*", f"torch-xla=={torch}.*"):
            again = self.choose(python, pin)
            if again.lock.lines:
                return replace(again, notes=(*again.notes, f"{what}: {pin} is asked for, too"))
        return replace(first, notes=(*first.notes, what))

    def choose(self, python: str, pin: str = "") -> Answer:
        """Return what uv chooses for a Python, or has chosen some minutes ago. `pin`: a constraint beside the job's."""
        inputs = [
            self.lines,
            self.asked.constraints,
            pin,
            python,
            self.platform,
            str(self.code),
            sorted(self.settings.items()),
            sorted(self.values.items()),
        ]
        kept = self.kept_in / f"{hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:24]}.json"
        with suppress(OSError, ValueError, KeyError):
            if 0 <= time.time() - kept.stat().st_mtime < KEPT_S:
                found = json.loads(kept.read_text())
                return Answer(Lock(tuple(found["lines"])), notes=tuple(found["notes"]))
        answer = self._ask(python, pin)
        if answer.lock.lines and not self.asked.uses_code:
            with suppress(OSError):
                self._keep(kept, answer)
        return answer

    def _keep(self, kept: Path, answer: Answer) -> None:
        self.kept_in.mkdir(parents=True, exist_ok=True)
        whole_file.replace(kept, json.dumps({"lines": answer.lock.lines, "notes": answer.notes}))
        for old in self.kept_in.iterdir():
            if time.time() - old.stat().st_mtime > KEPT_S:
                old.unlink(missing_ok=True)

    def _ask(self, python: str, pin: str) -> Answer:
        if self.uv is None:
            return Answer(why="there is no uv here; `pip install uv`")
        text = "".join(f"{line}\n" for line in self.lines)
        with self._once:
            environ = self.environ
        with tempfile.TemporaryDirectory(prefix="tpujob-resolve-") as scratch:
            constraints = Path(scratch, "constraints.txt")
            constraints.write_text(f"{self.asked.constraints}{pin}\n")
            argv = [self.uv, "pip", "compile", "--no-header", "--no-annotate", "--generate-hashes"]
            argv += ["--python", sys.executable, "--python-version", python, "--constraint", str(constraints)]
            argv += [*self._options(), *tools.no_index(environ), "-"]
            try:
                done = subprocess.run(
                    argv,
                    input=text,
                    capture_output=True,
                    text=True,
                    cwd=self.code,
                    env=environ,
                    timeout=LIMIT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return Answer(why=f"it takes more than {LIMIT_S:.0f} s")
            except OSError as error:
                return Answer(why=f"{self.uv} cannot be run: {error.strerror}")
        if done.returncode == 0:
            notes = tuple(f"requirements: {each}" for each in _NO_EXTRA.findall(self._without_values(done.stderr)))
            return Answer(lock_of(self._without_values(done.stdout)), notes=notes)
        found = _ERROR.search(done.stderr)
        said = found[0] if found else done.stderr
        why, closed = self._without_values(_reason(said)), _CLOSED.search(said)
        refused = bool(_REFUSED.match(said)) or _NO_PROJECT in why
        return Answer(why=closed[0] if closed else why, refused=refused and not closed, line=_line_of(said, text))

    def _options(self) -> Iterator[str]:
        """Yield the options for uv that requirements files have for pip."""
        if self.platform is not None:
            yield from ("--python-platform", self.platform)
        for line in self.lines:
            word, _, value = line.replace("=", " ").partition(" ")
            if word == "--pre":
                yield from ("--prerelease", "allow")
            elif word == "--trusted-host":
                yield from ("--allow-insecure-host", value.strip())

    def _without_values(self, text: str) -> str:
        """Return what uv prints with the names of variables in place of their values, which may be secrets."""
        for name, value in self.values.items():
            text = text.replace(value, f"${{{name}}}") if len(value) > 3 else text
        return text


def _line_of(said: str, text: str) -> int | None:
    """Return the number of the line of a text, from 0, that uv cannot read; None if it says nothing of the kind."""
    if found := _AT_LINE.search(said):
        return int(found[1]) - 1
    found = _AT_BYTE.search(said)
    return text.encode()[: int(found[1])].count(b"\n") if found else None


def _reason(stderr: str) -> str:
    """Return what uv says on one line: of versions that exclude each other only why."""
    text = stderr.partition("\nhint:")[0].removeprefix("error:")
    if unread := _UNREAD.search(text):
        return f"not a requirement: {unread[1]}"
    text = _AT_LINE.sub("", text)
    parts = [" ".join(part.split()).rstrip(":") for part in re.split(r"cause:|╰─▶|├─▶|Caused by:", text)]
    if _NONE_FITS in parts[0]:
        return parts[-1]
    text = ": ".join(filter(None, parts)) or "uv does not say why"
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]}…"
