"""What a job would ship, before anything is read: the entries of its sources, what is left out, and what is refused.

`tpujob plan` shows it, and `shipment` reads and stores it. Surprising sources are refused here: a home directory, a FIFO, a
file that looks like a secret, more than a gigabyte. All refusals are reported at once. A link that leads out of the repository
is left out.
"""

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from orchestrator.errors import UserError
from orchestrator.hosts.shipping.ignore import BUILT_IN, OWN, OWN_DIRECTORY, Rules, Verdict, is_of_run
from orchestrator.hosts.shipping.links import LINK, reach_of, seen_from, travels_as
from orchestrator.text.terminal import printable
from orchestrator.text.units import format_size
from orchestrator.vm.files.sensitive import may_hold_secret, secret_by_content, secret_by_name

MAX_BYTES = 1 << 30
MEASURE_ENTRIES = 20_000  # of all that is left out, so many are looked at for their sizes
NAME_IT = f"name it in {OWN}"
MAKE_READABLE = f"change its permissions, or name it in {OWN}"
MAX_REPORTED = 20  # refusals
MOST_OF_IT = 0.8  # a directory of which one entry is so much is named by that entry


@dataclass(frozen=True, slots=True)
class Source:
    """A directory, a file or bytes. `gitignore`: its .gitignore files count; `everything`: no rule counts."""

    content: Path | bytes
    gitignore: bool = False
    everything: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """`content` is a file to read, the bytes themselves, the target of a link, or None for a directory with nothing in it."""

    path: str
    content: Path | bytes | str | None
    size_bytes: int = 0
    executable: bool = False
    suspect: str = ""  # how a rule names the file, if its content may be a secret: `check_content` looks at it
    allowed: bool = False  # a line of a .tpujobignore names the file


@dataclass(frozen=True, slots=True)
class LeftOut:
    path: str  # a directory's ends with a slash
    size_bytes: int
    rule: str  # such as `.gitignore:3`
    complete: bool = True  # False: there is more in it than was looked at

    @property
    def is_link(self) -> bool:
        """Whether it is a link that cannot be shipped."""
        return self.rule.startswith(LINK)


@dataclass(slots=True)
class Survey:
    """What would be shipped, by path, and what would not: links that cannot be, then the biggest first, runs last."""

    roots: tuple[str, ...] = ()  # of the directories
    entries: dict[str, Entry] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    refused: list[UserError] = field(default_factory=list)

    @property
    def files(self) -> int:
        return sum(isinstance(entry.content, Path | bytes) for entry in self.entries.values())

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries.values())


def survey(
    sources: Mapping[str, Source], *, own_directories: Collection[Path] = (), max_bytes: int = MAX_BYTES
) -> Survey:
    """Return what these sources hold. A name maps to its place in the shipment; "." puts a directory's content at the top.

    `own_directories` are tpujob's (runs, state) and left out. Raises UserError for what is refused, all of it.
    """
    found = Survey(tuple(str(each.content.resolve()) for each in sources.values() if isinstance(each.content, Path)))
    walk = _Walk(found, frozenset(path.resolve() for path in own_directories), MEASURE_ENTRIES)
    for top, source in sources.items():
        name = _name_inside(top)
        members = (
            [Entry(name, source.content, len(source.content))]
            if isinstance(source.content, bytes)
            else walk.source(name, source, source.content)
        )
        try:
            for entry in members:
                if found.entries.setdefault(entry.path, entry).content != entry.content:
                    raise UserError(f"two sources of the job both contain {printable(entry.path)}")
        except UserError as error:
            found.refused.append(error)
    found.left_out.sort(key=lambda one: (not one.is_link, one.rule == OWN_DIRECTORY, -one.size_bytes, one.path))
    _check_size(found, max_bytes)
    if found.refused:
        check_content(found)
    return found


def _name_inside(top: str) -> str:
    path = PurePosixPath(top)
    if path.is_absolute() or ".." in path.parts:
        raise UserError(f"{top!r} is not a name inside a shipment")
    return "" if top == "." else path.as_posix()


@dataclass(slots=True)
class _Walk:
    found: Survey
    own_directories: frozenset[Path]
    left_to_measure: int  # entries
    places: dict[Path, str] = field(default_factory=dict)  # in the shipment, of the directories that are shipped
    reaches: dict[Path, tuple[Path, Rules]] = field(default_factory=dict)  # where links of a tree are followed

    def source(self, name: str, source: Source, path: Path) -> Iterator[Entry]:
        if not path.exists():
            raise UserError(f"{path} does not exist", hint="paths in a job file are relative to that file")
        root = path.resolve()
        home = Path.home().resolve()
        if root in (home, *home.parents):
            what = "the home directory" if root == home else "a directory above the home directory"
            raise UserError(f"{path} is {what}; it is not shipped", hint="put the job's code in a directory of its own")
        if not root.is_dir():
            yield _entry(root, root.name, name)
            return
        rules = None if source.everything else Rules.at(root, gitignore=source.gitignore)
        self.places[root] = name
        empty, before = True, len(self.found.left_out)
        for entry in self._directory(root, root, f"{name}/" if name else "", "", rules, Verdict()):
            empty &= entry.content is None
            yield entry
        rules_met = [one.rule for one in self.found.left_out[before:] if one.rule != OWN_DIRECTORY]
        if empty and rules_met:
            raise UserError(f"nothing of {path} would be shipped: everything in it is left out by {rules_met[0]}")

    def _directory(
        self, directory: Path, root: Path, prefix: str, below: str, rules: Rules | None, state: Verdict
    ) -> Iterator[Entry]:
        """Yield what is shipped of a directory. `below` is its path from the root, `prefix` its place in the shipment."""
        try:
            with os.scandir(directory) as scan:
                children = sorted(scan, key=lambda child: child.name)
        except OSError as error:
            if directory == root or not isinstance(error, FileNotFoundError):  # else it has just vanished
                refusal = UserError(f"{directory} cannot be read: {error.strerror}", hint=MAKE_READABLE)
                self.found.refused.append(refusal)
            return
        if rules is not None and below:
            rules = rules.entered(directory, below)
        nothing = True
        for child in children:
            is_directory = child.is_dir(follow_symlinks=False)
            path, name = (f"{above}{child.name}{'/' * is_directory}" for above in (below, prefix))
            verdict = Verdict() if rules is None else self._verdict(rules, Path(child.path), path, state)
            if verdict.left_out and not (is_directory and rules is not None and rules.may_ship_from(path, verdict)):
                self._leave_out(Path(child.path), name, verdict)
                # Whether there were runs before must not change what is shipped.
                nothing &= verdict.rule != OWN_DIRECTORY
                continue
            known = self.places.get(Path(child.path)) if rules is not None and rules.uses_git else None
            if known is not None:  # a link leads to what holds the tree
                yield _link_to(known, prefix + child.name)
                nothing = False
            elif is_directory or child.is_symlink():
                walk = self._directory if is_directory else self._link
                for entry in walk(Path(child.path), root, name, path, rules, verdict):
                    nothing = False
                    yield entry
            else:
                nothing = False
                try:
                    yield _entry(Path(child.path), path, prefix + child.name, None if rules is None else verdict)
                except FileNotFoundError:  # such as an editor's draft: it has just vanished
                    continue
                except UserError as error:
                    self.found.refused.append(error)
        if nothing and prefix and not state.left_out:
            yield Entry(prefix.rstrip("/"), None)

    def _link(
        self, link: Path, root: Path, name: str, path: str, rules: Rules | None, verdict: Verdict
    ) -> Iterator[Entry]:
        """Yield what is shipped of a link of this tree. What is shipped already is not shipped twice: a link leads to it."""

        def judge(target: Path) -> Verdict:
            inside = target.relative_to(reach).as_posix()
            if verdict.names_it or inside == ".":
                return Verdict()
            found, _ = reach_rules.verdict_of(reach, inside)
            return Verdict(found.left_out, seen_from(root, reach, found.rule))

        reach, reach_rules = (root, Rules()) if rules is None else self._reach(root, rules)
        found = travels_as(link, root, reach, judge)
        if isinstance(found, Verdict):
            self._leave_out(link, name, found)
        elif isinstance(found, str):
            yield Entry(name, found)
        elif known := next((each for each in (found, *found.parents) if each in self.places), None):
            yield _link_to(os.path.join(self.places[known], found.relative_to(known)), name)  # noqa: PTH118
        elif found.is_dir():
            self.places[found] = name
            assert rules is not None
            behind = rules.behind_link(found, f"{path}/", root)
            yield from self._directory(found, found, f"{name}/", f"{path}/", behind, Verdict())
        else:
            try:
                yield _entry(found, path, name, verdict)
            except UserError as error:
                self.found.refused.append(error)

    def _reach(self, root: Path, rules: Rules) -> tuple[Path, Rules]:
        if root not in self.reaches:
            reach = reach_of(root)
            self.reaches[root] = reach, Rules.at(reach, gitignore=rules.uses_git, like=rules)
        return self.reaches[root]

    def _verdict(self, rules: Rules, child: Path, path: str, state: Verdict) -> Verdict:
        verdict = rules.judged(child, path, inherited=state)
        if verdict.left_out or verdict.names_it or not self._is_of_tpujob(child, path):
            return verdict
        return Verdict(True, OWN_DIRECTORY)

    def _is_of_tpujob(self, child: Path, path: str) -> bool:
        """Return whether it is a directory of tpujob, or a link to one or into one."""
        if path.endswith("/") or not child.is_symlink():
            return child in self.own_directories
        with contextlib.suppress(OSError, RuntimeError):  # a loop
            target = child.resolve()
            return any(each in self.own_directories or is_of_run(each) for each in (target, *target.parents))
        return False

    def _leave_out(self, path: Path, name: str, verdict: Verdict) -> None:
        """Note what is left out, with its size, or with that of a part of it where there is too much to look at."""
        size_bytes, waiting = 0, [path]
        while waiting and self.left_to_measure > 0:
            place = waiting.pop()
            try:
                status = place.lstat()
                if not stat.S_ISDIR(status.st_mode):
                    size_bytes += status.st_size
                    continue
                with os.scandir(place) as scan:
                    for child in scan:
                        self.left_to_measure -= 1
                        if child.is_dir(follow_symlinks=False):
                            waiting.append(Path(child.path))
                        else:
                            size_bytes += child.stat(follow_symlinks=False).st_size
            except OSError:  # it is not shipped: only its size is missing
                continue
        self.found.left_out.append(LeftOut(name, size_bytes, verdict.rule, complete=not waiting))


def _link_to(place: str, name: str) -> Entry:
    """Return a link to another place of the shipment."""
    return Entry(name, os.path.relpath(place or ".", PurePosixPath(name).parent))


def _entry(path: Path, within: str, name: str, verdict: Verdict | None = None) -> Entry:
    """Return the entry of a file that is called `within` in its tree. Raises UserError.

    `verdict` None: what looks like a secret is shipped, too.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path} is neither a file nor a directory", hint=f"remove it, or {NAME_IT}")
    if not os.access(path, os.R_OK):
        raise UserError(f"{path} cannot be read", hint=MAKE_READABLE)
    if verdict is None or not status.st_size:
        return Entry(name, path, status.st_size, bool(status.st_mode & 0o100))
    # What a link leads to has another name than the link.
    looked_at = (within,) if path.name == within.rpartition("/")[2] else (within, path.as_posix())
    if not verdict.names_it and (what := next(filter(None, map(secret_by_name, looked_at)), None)) is not None:
        raise _secret(path, within, what)
    suspect = within if any(may_hold_secret(each, status.st_size) for each in looked_at) else ""
    return Entry(name, path, status.st_size, bool(status.st_mode & 0o100), suspect, verdict.names_it)


def _secret(path: Path, within: str, what: str) -> UserError:
    name = printable(within)
    return UserError(
        f"{printable(str(path))} looks like a secret ({what}), so nothing is shipped",
        hint=f"leave it out with a line `{name}` in {OWN}, or allow it there with `!{name}`",
    )


def is_secret(path: Path) -> bool:
    """Return whether it looks like a secret, by its name or by what is in it. Raises OSError."""
    may_hold = path.is_file() and may_hold_secret(path.name, path.stat().st_size)
    return bool(secret_by_name(path.as_posix()) or (may_hold and secret_by_content(path.read_bytes())))


def secret_in(entry: Entry) -> UserError | None:
    """Return the refusal of a file whose content looks like a secret."""
    if entry.suspect and not entry.allowed and isinstance(entry.content, Path):
        what = secret_by_content(entry.content.read_bytes())
        if what is not None:
            return _secret(entry.content, entry.suspect, what)
    return None


def check_content(found: Survey) -> None:
    """Raise UserError with all that is refused: what the survey refused, and every file whose content looks like a secret."""
    refused = [*found.refused, *filter(None, map(secret_in, found.entries.values()))]
    if len(refused) == 1:
        raise refused[0]
    if refused:
        lines = [f"{each.message}; {each.hint}" if each.hint else each.message for each in refused[:MAX_REPORTED]]
        more = [f"and {len(refused) - MAX_REPORTED} more"] if len(refused) > MAX_REPORTED else []
        raise UserError("\n".join([*lines, *more]), hint=f"what the job does not need can be named in {OWN}")


def _check_size(found: Survey, max_bytes: int) -> None:
    if found.size_bytes <= max_bytes:
        return
    names = ", ".join(f"{printable(path)} ({format_size(size)})" for path, size in biggest(found))
    what = f"{format_size(found.size_bytes)}, more than {format_size(max_bytes)}; the biggest: {names}"
    hint = f"name what the job does not need in {OWN}, and keep data in a bucket"
    found.refused.append(UserError(f"the job's code and data are {what}", hint=hint))


def count(files: int) -> str:
    return f"{files:,} file{'s'[: files != 1]}"


def size_of(one: LeftOut) -> str:
    return f"{'' if one.complete else 'over '}{format_size(one.size_bytes)}"


def left_out_text(left_out: Sequence[LeftOut]) -> str:
    """Return what is left out, of many the biggest, and by which rule, such as `data/ 300 MB left out by .gitignore:6`.

    What every job leaves out is not named, nor a .tpujobignore; "" when that is all.
    """
    of_user = [one for one in left_out if one.rule not in (BUILT_IN, OWN_DIRECTORY) and not one.path.endswith(OWN)]
    links = [one for one in of_user if one.is_link]
    files = [one for one in of_user if one.size_bytes and not one.is_link]
    parts = [
        f"{printable(one.path)} {size_of(one)} left out by {one.rule}" for one in files[: 3 if len(files) < 4 else 1]
    ]
    parts += [f"{printable(one.path)} left out: {one.rule}" for one in links[:1]]
    more = len(files) + len(links) - len(parts)
    return ", ".join([*parts, *([f"{more:,} more"] if more else [])])


def biggest(found: Survey) -> list[tuple[str, int]]:
    """Return the three biggest entries: directories, or what they mainly consist of."""
    sizes: Counter[str] = Counter()
    children: dict[str, set[str]] = {}
    for entry in found.entries.values():
        path, is_directory = entry.path, False
        while path:
            sizes[path + "/" * is_directory] += entry.size_bytes
            parent = path.rpartition("/")[0]
            children.setdefault(f"{parent}/" if parent else "", set()).add(path + "/" * is_directory)
            path, is_directory = parent, True
    top = [(name, sizes[name]) for name in children.get("", ())]
    shown = []
    for name, size in sorted(top, key=lambda one: (-one[1], one[0]))[:3]:
        while inside := children.get(name):
            main = max(sorted(inside), key=lambda child: sizes[child])
            if sizes[main] < MOST_OF_IT * size:
                break
            name, size = main, sizes[main]  # noqa: PLW2901
        shown.append((name, size))
    return shown
