"""Which entries of a directory are left out: `.gitignore` and `.tpujobignore`, in every directory, and built-in rules.

Patterns mean what they mean to git; pathspec translates each line. What git tracks is shipped, whatever its patterns and the
built-in rules say: a clone has it. A `.tpujobignore` has the last word over all of them. One thing it can that git cannot:
`!data/labels.csv` ships a file of a directory that is left out. The `.gitignore` files above the directory count up to the top
of its git repository, and below them `.git/info/exclude` and `core.excludesFile`, as for git itself.
"""

from __future__ import annotations

import os
import re
import stat
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import UserError
from orchestrator.hosts.shipping.git_files import Repository, Tracked
from orchestrator.system import private_files
from orchestrator.system.lazy import Later
from orchestrator.vm.files.sensitive import secret_by_name

if TYPE_CHECKING:
    from pathspec.patterns.gitignore import spec as gitignore
else:
    gitignore = Later("pathspec.patterns.gitignore.spec")

GIT, OWN = ".gitignore", ".tpujobignore"
BUILT_IN = "built in"
OWN_DIRECTORY = "of tpujob"
RUN_MARK = "# of tpujob"  # so begins the .gitignore in the directory of a run
ALWAYS: tuple[str, ...] = (".git", ".hg", ".svn", "__pycache__", ".venv", "node_modules", "*.pyc", ".DS_Store")
ALWAYS += (".ruff_cache", ".mypy_cache", ".pytest_cache")
# A directory with one of these in it is an environment, whatever its name.
ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta/history")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided about one entry, and the rule that decided, such as `.gitignore:3`; "": none did."""

    left_out: bool = False
    rule: str = ""

    @property
    def names_it(self) -> bool:
        """Whether it is by a line of a .tpujobignore."""
        return self.rule.rpartition("/")[2].startswith(OWN)

    @property
    def is_final(self) -> bool:
        """Whether it stays left out although git tracks it."""
        return self.left_out and self.names_it


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
    tracked: tuple[Tracked, ...] = ()  # of each repository
    # What git tracks, as it was read once, by the top of its work tree.
    indexes: dict[Path, list[tuple[str, bool]]] = field(default_factory=dict)

    @classmethod
    def at(cls, root: Path, *, gitignore: bool, like: Rules | None = None) -> Rules:
        """Return the rules at the top of a tree. `gitignore`: the files of that name count. Raises UserError.

        `like`: rules whose indexes of git are not read again.
        """
        rules = cls(uses_git=gitignore, indexes=like.indexes if like else {}).behind_link(root, "", root)
        # Where the job names the very directory that git leaves out, it means it all the same.
        rules = replace(rules, git=tuple(each for each in rules.git if not each.leaves_out_root()))
        return rules.entered(root, "")

    def behind_link(self, directory: Path, below: str, root: Path) -> Rules:
        """Return the rules for what is shipped of another directory as if it were there; `root`: of the tree."""
        repository = Repository.holding(directory) if self.uses_git else None
        if repository is None:
            return self
        above = tuple(_git_above(repository, directory, below, root))
        return replace(self._tracking(repository, directory, below), git=above)

    def _tracking(self, repository: Repository, directory: Path, below: str) -> Rules:
        if repository.top not in self.indexes:
            self.indexes[repository.top] = list(repository.tracked())
        found = Tracked.of(self.indexes[repository.top], directory.relative_to(repository.top).as_posix(), below)
        return replace(self, tracked=(*self.tracked, found))

    def entered(self, directory: Path, below: str) -> Rules:
        """Return the rules of a directory of the tree; `below` is its path from the root, with a slash at the end."""
        rules = self
        if self.uses_git and below and (repository := Repository.at(directory)) is not None:
            rules = rules._tracking(repository, directory, below)
        if self.uses_git and (text := _read(directory / GIT)) is not None and not text.startswith(RUN_MARK):
            rules = replace(rules, git=(_patterns(text, f"{below}{GIT}", below=below), *rules.git))
        if (text := _read(directory / OWN)) is not None:
            found = _patterns(text, f"{below}{OWN}", below=below, strict=str(directory / OWN))
            rules = replace(rules, own=(found, *rules.own), wanted=(*rules.wanted, *_wanted(text, below)))
        return rules

    def having(self, line: str) -> Rules:
        """Return the rules with one more line in the .tpujobignore at the top."""
        return replace(self, own=(_patterns(line, OWN), *self.own), wanted=(*self.wanted, *_wanted(line, "")))

    def verdict(self, path: str, *, inherited: Verdict) -> Verdict:
        """Return what becomes of an entry. `inherited`: what became of the directory that it is in."""
        found = _nearest(self.own, path)
        is_tracked = found is None and not inherited.is_final and any(path in each.files for each in self.tracked)
        if is_tracked and secret_by_name(path) is None:  # a secret that a pattern matches was tracked by mistake
            return Verdict()
        if found is None and inherited.left_out:
            return inherited
        found = found or _built_in().decide(path) or _nearest(self.git, path)
        return Verdict(*found) if found is not None else Verdict()

    def judged(self, entry: Path, path: str, *, inherited: Verdict) -> Verdict:
        """Return the verdict, where a directory may also be left out for what is in it."""
        found = self.verdict(path, inherited=inherited)
        if found.left_out or found.names_it or not path.endswith("/"):
            return found
        if is_of_run(entry):
            return Verdict(True, OWN_DIRECTORY)
        return Verdict(True, BUILT_IN) if is_environment(entry) else found

    def may_ship_from(self, path: str, verdict: Verdict) -> bool:
        """Return whether something inside this directory is shipped, which is left out itself by this verdict.

        A line of a .tpujobignore may name it, or git track it.
        """
        name = path.rstrip("/")
        if not verdict.is_final and any(name in each.directories for each in self.tracked):
            return True
        parts = name.split("/")
        return any(_may_begin(wanted, parts) for wanted in self.wanted)

    def verdict_of(self, root: Path, path: str) -> tuple[Verdict, str]:
        """Return what becomes of an entry of the tree of these rules, and which entry on the way to it decided that."""
        rules, verdict, below, decided_at = self, Verdict(), "", ""
        for part in path.split("/"):
            entry = root / below / part
            name = f"{below}{part}"  # of what is gone, all but the last are directories
            name += "/" * (not entry.is_symlink() and (name != path or entry.is_dir()))
            before, verdict = verdict, rules.judged(entry, name, inherited=verdict)
            if verdict.left_out and not before.left_out:
                decided_at = name
            if not name.endswith("/") or (verdict.left_out and not rules.may_ship_from(name, verdict)):
                break
            rules, below = rules.entered(entry, name), name
        return verdict, decided_at


def mark_run(directory: Path) -> None:
    """Keep the directory of a run out of every shipment, and out of `git status`. Raises OSError."""
    with private_files.open_file(directory / GIT, "w") as file:
        file.write(f"{RUN_MARK}: the results of a run, which are not shipped with a job\n*\n")


def is_of_run(directory: Path) -> bool:
    """Return whether it is the directory of a run, of any tpujob."""
    with suppress(OSError), (directory / GIT).open("rb") as file:
        return file.read(len(RUN_MARK)) == RUN_MARK.encode()
    return False


def is_environment(directory: Path) -> bool:
    return any(os.path.isfile(directory / mark) for mark in ENVIRONMENT_MARKS)  # noqa: PTH113 - which raises for no path


def _git_above(repository: Repository, directory: Path, below: str, root: Path) -> Iterator[Patterns]:
    """Yield the patterns of git from outside of a directory of the repository, the nearest first."""

    def from_file(file: Path, label: str, *, follows: bool = False) -> Iterator[Patterns]:
        if (text := _read(file, follows=follows)) is not None:
            yield _patterns(text, label, above=above, below=below)

    for place in (directory, *directory.parents):
        above = directory.relative_to(place).as_posix().removeprefix(".")
        above += "/" * bool(above)
        if place != directory:
            yield from from_file(place / GIT, os.path.relpath(place / GIT, root))
        if place == repository.top:
            break
    for file, label in repository.rule_files():
        inside = os.path.relpath(repository.top / label, root)
        yield from from_file(file, label if label[0] in "~/" else inside, follows=True)


def _nearest(files: tuple[Patterns, ...], path: str) -> tuple[bool, str] | None:
    return next((found for patterns in files if (found := patterns.decide(path)) is not None), None)


def _read(path: Path, *, follows: bool = False) -> str | None:
    """Return the text of a rule file; None where there is none. As for git, a link is none, unless it `follows` them."""
    try:
        if not stat.S_ISREG(path.stat(follow_symlinks=follows).st_mode):
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
    if line.endswith("/**/"):  # to git, directories inside; to pathspec, the directory itself
        line += "*/"
    regex, leaves_out = gitignore.GitIgnoreSpecPattern.pattern_to_regex(line)
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
