"""Requirements files, read for a worker: files that they name are read into them, and local paths lead into the job's code.

On a worker there is neither the directory of the file nor anything beside it, only what `code:` ships. Therefore `-r` and `-c`
are replaced by what they name, and a local path must lie in `code:`. Pure: the caller reads files and knows where the code is.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from orchestrator.job.source.lock_file import plain
from orchestrator.text import redaction
from orchestrator.text.names import for_display

MAX_FILES, MAX_CHARS = 50, 1 << 20
SECRET = "holds a secret; write ${NAME} in its place, and set NAME in the job's `env:`"  # noqa: S105 - a sentence
OPTION = "is an option, and those belong in a requirements file; write a package, such as numpy>=1.26"

_OPTION = re.compile(r"(-[a-z]|--[a-z-]+)[\s=]*(.*)", re.S)
_COMMENT = re.compile(r"(^|\s+)#.*$")
_PASSWORD = re.compile(r"://[^/\s@]*:(?!\$\{)[^/\s@]+@")
_ABSOLUTE = re.compile(r"(?:^|[@\s=+])(?:file:(?://(?:localhost)?)?)?(/[^\s;#\[]+)")
_URL = re.compile(r"[a-z][a-z0-9+.-]*:", re.I)
_LOCAL = re.compile(r"(?P<path>[^\[;]+?)(?P<rest>(\[.*\])?\s*(;.*|\s--.*)?)", re.S)
_ARCHIVES = (".whl", ".zip", ".tar.gz", ".tar.bz2", ".tar.xz", ".tgz")
_OF_WINDOWS = re.compile(r"[a-z]:[\\/]|\.{1,2}\\", re.I)
# Files that people name by mistake, by how a line of them begins, and what to do instead.
_OTHER_FILES = (
    (r"(channels|dependencies):\s*$", "is a file of conda; name a requirements file with the packages that pip has"),
    (r"\[\[source\]\]|\[packages\]", "is a Pipfile; `pipenv requirements` prints a requirements file"),
    (r"\[\[package\]\]", "is a lock of Poetry, uv or PDM; its `export` command prints a requirements file"),
    (r"<(!doctype|html|\?xml)\b", "is a web page; download the file itself"),
    (r"version https://git-lfs\.", "is a pointer of Git LFS; `git lfs pull` fetches the file"),
    (r"<<<<<<< ", "has a conflict that Git left; decide between its sides"),
)
_IGNORED_BY_UV = ("--pre", "--prefer-binary", "--trusted-host", "--use-feature")


class Refused(Exception):
    """What no worker can install. The message says where it is written."""


@dataclass(slots=True)
class Requirements:
    """The lines of a requirements file and of a constraints file for a worker."""

    lines: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    needs_pip: bool = False  # for an option that uv does not know
    uses_code: bool = False  # something is installed from the job's code
    origins: dict[str, str] = field(default_factory=dict)  # by line: where it is written, such as requirements.txt:3


class Reader:
    """Reads one job's requirements.

    `read` returns the text of a file of this machine. `in_code` returns where a path of this machine is below the job's code.
    Both raise ValueError with the end of a sentence. `why_not` returns why no worker has an absolute path, or "".
    """

    def __init__(
        self,
        read: Callable[[PurePath], str],
        in_code: Callable[[PurePath], str],
        why_not: Callable[[str], str] = lambda path: "",
    ) -> None:
        self._read, self._in_code, self._why_not = read, in_code, why_not
        self._files = 0
        self._open: list[PurePath] = []  # that name the next one
        self.found = Requirements()

    def packages(self, items: Sequence[str], directory: PurePath) -> Requirements:
        """Return the packages of a list in a job file; its paths are relative to `directory`. Raises Refused."""
        self._list(items, directory, "")
        return self.found

    def pyproject(self, path: PurePath, name: str) -> Requirements:
        """Return the `dependencies` of `[project]`; the project itself is not one of them. Raises Refused."""
        try:
            dependencies = _dependencies(tomllib.loads(self._text(path)))
        except ValueError as error:
            raise Refused(f"{name}: {error}") from None
        self._list(dependencies, path.parent, f"{name}: project.dependencies: ")
        return self.found

    def file(self, path: PurePath, name: str) -> Requirements:
        """Return the requirements of a file and of those that it names. `name`: its name in messages. Raises Refused."""
        try:
            self._file(path, PurePath(name), self.found.lines)
        except ValueError as error:
            raise Refused(str(error)) from None
        return self.found

    def _list(self, items: Sequence[str], directory: PurePath, where: str) -> None:
        for item in items:
            try:
                if item.startswith("-"):
                    raise ValueError(OPTION)
                self.found.lines.append(self._requirement(_without_secret(item), directory))
                self.found.origins.setdefault(self.found.lines[-1], where)
            except ValueError as error:
                raise Refused(f"{where}`{for_display(item)}` {error}") from None

    def _file(self, path: PurePath, name: PurePath, into: list[str]) -> None:
        """Raises Refused for a line, and ValueError for the file itself, which the line that names it is told with."""
        where = _without_detours(path)
        if where in self._open:
            raise ValueError(f"{name} leads back to this file; remove one of the two lines")
        try:
            text = self._text(path)
            if other := _other_file(text):
                raise ValueError(other)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        self._open.append(where)
        for number, line in _logical_lines(text):
            before = len(into)
            try:
                self._line(line, path.parent, name.parent, into)
                for made in into[before:]:
                    self.found.origins.setdefault(made, f"{name}:{number}: ")
            except ValueError as error:
                raise Refused(f"{name}:{number}: {error}") from None
        self._open.pop()

    def _text(self, path: PurePath) -> str:
        self._files += 1
        if self._files > MAX_FILES:
            raise ValueError(f"is one of more than {MAX_FILES} files; do two of them name each other?")
        text = self._read(path)
        if len(text) > MAX_CHARS:
            raise ValueError("has more than 1 MiB; is this the right file?")
        return text

    def _line(self, line: str, directory: PurePath, name: PurePath, into: list[str]) -> None:
        option = _OPTION.fullmatch(_without_secret(line))
        if option is None:
            into.append(self._requirement(line, directory))
            return
        word, value = option[1], option[2].strip("\"' ")
        is_path = not _URL.match(value)
        if word in ("-r", "--requirement") and is_path:
            self._file(directory / value, name / value, into)
        elif word in ("-c", "--constraint") and is_path:
            self._file(directory / value, name / value, self.found.constraints)
        elif word in ("-e", "--editable"):  # as a copy: this run's directory is not there for the next
            into.append(self._requirement(value, directory))
        elif word in ("-f", "--find-links") and is_path and not value.startswith("/"):
            into.append(f"--find-links {self._local(value, directory)}")
        else:
            if word in ("-f", "--find-links"):
                self._check_paths(value)
            self.found.needs_pip |= word in _IGNORED_BY_UV
            into.append(line)

    def _requirement(self, text: str, directory: PurePath) -> str:
        """Return the requirement; a relative path as one from the job's working directory. An absolute one is the worker's."""
        if _OF_WINDOWS.match(text):
            raise ValueError(f"names {for_display(text)}, a path of Windows; write one relative to this file, with `/`")
        self._check_paths(re.split(r"\s-", text, maxsplit=1)[0])
        match = _LOCAL.fullmatch(text)
        path = match["path"].strip() if match else ""
        is_local = path.startswith(".") or path.endswith(_ARCHIVES) or "/" in path
        if match is None or not is_local or path.startswith("/") or "@" in path or _URL.match(path):
            return text
        return f"{self._local(path, directory)}{match['rest']}"

    def _check_paths(self, text: str) -> None:
        for path in _ABSOLUTE.findall(text):
            if why := self._why_not(path):
                advice = "write a path relative to this file that lies in `code:`, or the package and its version"
                raise ValueError(f"names {for_display(path)}, {why}; workers do not get it; {advice}")

    def _local(self, path: str, directory: PurePath) -> str:
        inside = self._in_code(directory / path)
        self.found.uses_code = True
        return f"./{inside}"


def _without_detours(path: PurePath) -> PurePath:
    """Return the path without `DIRECTORY/..` in it."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        else:
            parts.append(part)
    return PurePath(*parts)


def _other_file(text: str) -> str:
    """Return what a file is that has no requirements, as the end of a sentence; "" for one that may have some."""
    return next((what for begins, what in _OTHER_FILES if re.search(rf"^{begins}", text, re.I | re.M)), "")


def _without_secret(line: str) -> str:
    if _PASSWORD.search(line) or redaction.has_secret_shape(line):
        raise ValueError(SECRET)
    return line


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers, without comments, those that a backslash continues as one."""
    begun, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first if begun else number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            begun += line[:-1].strip() + " "
            continue
        whole, begun = _COMMENT.sub("", begun + line.strip()).strip(), ""
        if whole:
            yield first, whole
    if begun.strip():
        yield first, begun.strip()


def _dependencies(data: dict[str, Any]) -> list[str]:
    """Return `[project] dependencies`. Raises ValueError for a file that keeps them elsewhere, or takes them from elsewhere."""
    project = data.get("project")
    if not isinstance(project, dict):
        raise ValueError(
            "has no [project] section, and no dependencies that the standard knows; name a requirements file"
        )
    if "dependencies" in (project.get("dynamic") or ()):
        raise ValueError("its dependencies are dynamic, which only its build knows; name a requirements file")
    found = project.get("dependencies", [])
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ValueError("project.dependencies is not a list of texts")
    uv = data.get("tool", {}).get("uv", {})
    sources = {plain(name) for name in uv.get("sources", {})} if isinstance(uv, dict) else set()
    for item in found:
        name = re.match(r"[\w.-]+", item)
        if name and plain(name[0]) in sources:
            text = f"{name[0]} comes from [tool.uv.sources], which is not read; name the file of `uv export`"
            raise ValueError(text)
    return [" ".join(item.split()) for item in found]
