"""Which entries of a directory are left out: `.gitignore` and `.tpujobignore`, in every directory, and built-in rules.

Patterns mean what they mean to git; pathspec translates each line. A `.tpujobignore` has the last word over every
`.gitignore` and over the built-in rules. One thing it can that git cannot: `!data/labels.csv` ships a file of a directory that
is left out. The `.gitignore` files above the directory count up to the top of its git repository, as for git itself.
"""

from __future__ import annotations

import os
import re
import stat
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from orchestrator.errors import UserError

GIT, OWN = ".gitignore", ".tpujobignore"
BUILT_IN = "built in"
ALWAYS: tuple[str, ...] = (".git", ".hg", ".svn", "__pycache__", ".venv", "node_modules", "*.pyc", ".DS_Store")
ALWAYS += (".ruff_cache", ".mypy_cache", ".pytest_cache")
# A directory with one of these in it is an environment, whatever its name.
ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta/history")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided about one entry, and the rule that decided, such as `.gitignore:3`; "": none did."""

    left_out: bool = False
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Patterns:
    """The lines of one file. `above` leads from its directory down to the root, `below` from the root down to it."""

    label: str
    regex: re.Pattern[str]
    lines: tuple[tuple[int, bool], ...]  # (line, leaves out) of each group of the regex
    above: str = ""
    below: str = ""

    def decide(self, path: str) -> tuple[bool, str] | None:
        """Return whether the last matching line leaves out the entry, and that line. A directory's path ends with a slash."""
        found = self.regex.fullmatch(self.above + path.removeprefix(self.below))
        if found is None or found.lastindex is None:
            return None
        line, leaves_out = self.lines[found.lastindex - 1]
        return leaves_out, f"{self.label}:{line}" if line else self.label

    def leaves_out_root(self) -> bool:
        """Return whether a line leaves out the root of the tree, or a directory above it."""
        ends = (number for number, letter in enumerate(self.above, 1) if letter == "/")
        matches = (self.regex.fullmatch(self.above[:end]) for end in ends)
        return any(found is not None and found.lastindex and self.lines[found.lastindex - 1][1] for found in matches)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that hold in one directory, those of the directories above it included; the nearest file comes first."""

    own: tuple[Patterns, ...] = ()
    git: tuple[Patterns, ...] = ()
    wanted: tuple[tuple[str, ...], ...] = ()  # the parts of each `!a/b` of a .tpujobignore, from the root
    uses_git: bool = False

    @classmethod
    def at(cls, root: Path, *, gitignore: bool) -> Rules:
        """Return the rules at the top of a tree. `gitignore`: the files of that name count. Raises UserError."""
        above = tuple(_git_above(root)) if gitignore else ()
        if any(patterns.leaves_out_root() for patterns in above):
            above = ()  # git leaves out the very directory that the job names: the job means it all the same
        return cls(git=above, uses_git=gitignore).entered(root, "")

    def entered(self, directory: Path, below: str) -> Rules:
        """Return the rules of a directory of the tree; `below` is its path from the root, with a slash at the end."""
        rules = self
        if self.uses_git and (text := _read(directory / GIT)) is not None:
            found = _patterns(text, f"{below}{GIT}", below=below)
            rules = Rules(self.own, (found, *self.git), self.wanted, True)
        if (text := _read(directory / OWN)) is not None:
            found = _patterns(text, f"{below}{OWN}", below=below, strict=str(directory / OWN))
            wanted = tuple(_wanted(text, below))
            rules = Rules((found, *rules.own), rules.git, (*rules.wanted, *wanted), rules.uses_git)
        return rules

    def verdict(self, path: str, *, inherited: Verdict) -> Verdict:
        """Return what becomes of an entry. `inherited`: what became of the directory that it is in."""
        found = _nearest(self.own, path)
        if found is None and inherited.left_out:
            return inherited
        found = found or _built_in().decide(path) or _nearest(self.git, path)
        return Verdict(*found) if found is not None else Verdict()

    def may_ship_from(self, path: str) -> bool:
        """Return whether a line of a .tpujobignore names something inside this directory, which is left out itself."""
        parts = path.rstrip("/").split("/")
        return any(_may_begin(wanted, parts) for wanted in self.wanted)


def is_environment(directory: Path) -> bool:
    return any(os.path.isfile(directory / mark) for mark in ENVIRONMENT_MARKS)  # noqa: PTH113 - which raises for no path


def _git_above(root: Path) -> Iterator[Patterns]:
    """The files above the root, the nearest first, up to the top of the repository; none outside of one."""
    tops = [directory for directory in (root, *root.parents) if (directory / ".git").exists()]
    if not tops:
        return
    top = tops[0]
    for directory in (root, *root.parents):
        if directory != root and (text := _read(directory / GIT)) is not None:
            yield _above(text, directory, root, GIT)
        if directory == top:
            if (text := _read(top / ".git" / "info" / "exclude")) is not None:
                yield _above(text, top, root, ".git/info/exclude")
            return


def _above(text: str, directory: Path, root: Path, name: str) -> Patterns:
    relative = root.relative_to(directory).as_posix()
    label = "/".join([".."] * len(root.relative_to(directory).parts) + [name])
    return _patterns(text, label, above="" if relative == "." else f"{relative}/")


def _nearest(files: tuple[Patterns, ...], path: str) -> tuple[bool, str] | None:
    return next((found for patterns in files if (found := patterns.decide(path)) is not None), None)


def _read(path: Path) -> str | None:
    """Return the text of a rule file; None where there is none. As for git, a link is none."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        raw = path.read_bytes()
        if path.name == OWN and raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise UserError(f"{path} is UTF-16; save it as UTF-8", hint="no pattern in it counts as it is")
        return raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}",
            hint="it says what is not shipped: change its permissions, or remove it",
        ) from error


@cache
def _built_in() -> Patterns:
    patterns = _patterns("\n".join(ALWAYS), BUILT_IN)
    return Patterns(BUILT_IN, patterns.regex, tuple((0, leaves_out) for _, leaves_out in patterns.lines))


def _patterns(text: str, label: str, *, above: str = "", below: str = "", strict: str = "") -> Patterns:
    """Return the patterns of a file. `strict`: its path, to refuse a line that git would pass over. Raises UserError."""
    groups, lines = [], []
    for number, line in reversed(list(enumerate(text.split("\n"), 1))):
        try:
            found = _translated(_stripped(line))
        except ValueError as error:
            if strict:
                message = f"{strict}:{number}: {line.strip()!r} is not a pattern"
                raise UserError(message, hint="write patterns as in a .gitignore file") from error
            continue
        if found is not None:
            groups.append(f"({found[0]})")
            lines.append((number, found[1]))
    return Patterns(label, re.compile("|".join(groups) or "(?!)", re.DOTALL), tuple(lines), above, below)


def _stripped(line: str) -> str:
    """Return the line without its end and without blanks that no backslash protects."""
    line = line.removesuffix("\r")
    bare = line.rstrip(" ")
    escaped = (len(bare) - len(bare.rstrip("\\"))) % 2
    return line[: len(bare) + 1] if escaped and len(line) > len(bare) else bare


def _translated(line: str) -> tuple[str, bool] | None:
    """Return what matches the full path of an entry that this line names, and whether it leaves it out. Raises ValueError.

    pathspec's expressions also match what lies below an entry. Here the directory was judged before what is in it, so each
    has to match a path up to its end.
    """
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    if line.endswith("/**/"):  # to git, directories inside; to pathspec, the directory itself
        line += "*/"
    regex, leaves_out = GitIgnoreSpecPattern.pattern_to_regex(line)
    if regex is None or leaves_out is None:
        return None
    regex = regex.replace("(?P<ps_d>/)", "(?:/)")
    if regex.endswith("/"):  # of `a/**`: everything inside
        regex += ".+"
    regex = regex.removeprefix("^") if regex.startswith("^") else f".*{regex}"
    with warnings.catch_warnings():  # of `[[`, which Python may read differently one day
        warnings.simplefilter("ignore")
        try:
            re.compile(regex)
        except re.error as error:
            raise ValueError(str(error)) from error
    return regex, leaves_out


def _may_begin(wanted: tuple[str, ...], parts: list[str]) -> bool:
    for glob, part in zip(wanted, parts, strict=False):
        if glob == "**":
            return True
        if not fnmatchcase(part, glob):
            return False
    return len(wanted) > len(parts)


def _wanted(text: str, below: str) -> Iterator[tuple[str, ...]]:
    for line in text.splitlines():
        pattern = line.strip()
        if pattern.startswith("!") and "/" in pattern[1:].strip("/"):
            yield tuple((below + pattern[1:].strip("/")).split("/"))
