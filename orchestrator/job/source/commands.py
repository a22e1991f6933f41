"""Which files a shell command surely needs in its working directory: its program, the script that it starts, the requirements
that it installs.

Only what is certain counts. Nothing is said about text that bash would expand, options that are not known here, absolute paths,
and what comes after a command that may make files. Pure.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

GOES_ON = frozenset(("|", "|&", "&&", ">", ">>", ">&", "&>"))  # after these, the end of the first command decides
_OPERATOR = re.compile(r"[();<>|&]+")
_EXPANDED = re.compile(r"[$`*?\[{]|^~")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*\+?=")
_SET = re.compile(r"set\s+[-+\w\s]+")
_SET_E = re.compile(r"([-+])(?:\w*e|\w*o\s+errexit\b)")
_PYTHON, _SHELL = re.compile(r"python(3(\.\d+)?)?"), re.compile(r"(ba|da|z)?sh")
_PIP = re.compile(r"pip(3(\.\d+)?)?")
_FILES_OF_PIP = ("-r", "-c", "--requirement", "--requirements", "--constraint", "--constraints")
_FILE_OF_PIP = re.compile(r"(?:-[rc]|--(?:requirement|constraint)s?=)(.+)")
_HARMLESS = re.compile(r"-[qU]+|--(quiet|upgrade|no-cache-dir)|[^-./~][^/]*")  # options, and what is no path: packages
_PROGRAMS = (".py", ".sh")


@dataclass(frozen=True, slots=True)
class Needed:
    """A file that a command needs. `is_program`: bash itself runs it. `in_path`: it may as well be somewhere in the PATH."""

    path: str
    is_program: bool = False
    in_path: bool = False


def needed_by(commands: Iterable[str]) -> Iterator[tuple[int, Needed]]:
    """Yield the files that must be there before the first of these commands, each with the number of its command from 0 on.

    The commands run one after the other, until one fails. A plain `pip install` makes no file there, but programs in the PATH.
    """
    for number, text in enumerate(commands):
        words, is_all = _first_command(text)
        for needed in _of_words(words):
            if not (number and needed.in_path):
                yield number, needed
        if not (is_all and _makes_no_file(_installed(words))):
            return


def _first_command(text: str) -> tuple[list[str], bool]:
    """Return the words of the first command, and whether there is no other; no words where its failure may not be the end."""
    lines = [line for line in map(str.strip, text.replace("\\\n", " ").split("\n")) if line and line[0] != "#"]
    stops = False  # at the first command that fails
    while lines and _SET.fullmatch(lines[0]):
        for sign in _SET_E.findall(lines.pop(0)):
            stops = sign == "-"
    if not lines or (len(lines) > 1 and not stops):
        return [], False
    lexer = shlex.shlex(lines[0], posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:  # a text in quotes goes on in the next line
        return [], False
    operators = [number for number, word in enumerate(words) if _OPERATOR.fullmatch(word)]
    if any(words[number] not in GOES_ON for number in operators):
        return [], False
    first = words[: operators[0]] if operators else words
    lenient = ("&&",) if "pipefail" in text else ("&&", "|", "|&")
    if len(lines) > 1 and any(words[number] in lenient for number in operators):
        return [], False  # of these, `set -e` looks at the last one alone
    is_all = not operators and len(lines) == 1
    while first and (_ASSIGNED.match(first[0]) or first[0] in ("exec", "nohup")):
        if "`" in first[0] or first[0].startswith("PATH"):
            return [], False
        is_all = False
        del first[0]
    comment = next((number for number, word in enumerate(first) if word.startswith("#")), len(first))
    return first[:comment], is_all


def _of_words(words: Sequence[str]) -> Iterator[Needed]:
    if not words or _EXPANDED.search(words[0]):
        return
    name = PurePosixPath(words[0]).name
    if not words[0].startswith("/") and ("/" in words[0] or name.endswith(_PROGRAMS)):
        yield Needed(words[0], is_program=True, in_path="/" not in words[0])
    elif _PYTHON.fullmatch(name):
        yield from _plain(_script(words[1:], "bBdEiIOPqsSuvx", "XW"))
    elif _SHELL.fullmatch(name):
        scripts = _plain(_script(words[1:], "abefhlmnruvxBCEH", "oO"))
        yield from (replace(each, in_path="/" not in each.path) for each in scripts if re.search(r"/|\.sh$", each.path))
    yield from _plain(_requirements(_installed(words)))


def _script(words: Sequence[str], alone: str, with_value: str) -> Iterator[str]:
    """Yield the first word that is no option; nothing where there is none, or an option is not known here."""
    rest = iter(words)
    for word in rest:
        if not word.startswith(("-", "+")):
            yield word
            return
        if len(word) == 2 and word[1] in with_value:
            next(rest, None)
        elif word == "-" or (set(word[1:]) - set(alone) and word[1] not in with_value):
            return


def _plain(paths: Iterable[str]) -> Iterator[Needed]:
    """Yield those that are paths in the working directory, as they are written."""
    for path in paths:
        if path and not path.startswith("/") and not _EXPANDED.search(path) and "://" not in path:
            yield Needed(path)


def _installed(words: Sequence[str]) -> Sequence[str]:
    """Return the arguments of `pip install`, however pip is called; nothing for another command."""
    if len(words) > 3 and _PYTHON.fullmatch(PurePosixPath(words[0]).name) and words[1] == "-m":
        words = words[2:]
    if words and words[0] == "uv":
        words = words[1:]
    is_install = len(words) > 1 and _PIP.fullmatch(PurePosixPath(words[0]).name) and words[1] == "install"
    return words[2:] if is_install else ()


def _makes_no_file(installed: Sequence[str]) -> bool:
    """Return whether it surely installs packages into an environment, and builds nothing in the working directory."""
    rest = iter(installed)
    for word in rest:
        if word in _FILES_OF_PIP:
            next(rest, None)
        elif not (_HARMLESS.fullmatch(word) or _FILE_OF_PIP.fullmatch(word)):
            return False
    return bool(installed) and not re.search(r"[$`]", "".join(installed))


def _requirements(installed: Sequence[str]) -> Iterator[str]:
    """Yield the files of requirements and constraints, where they are relative to the working directory."""
    if any(word.startswith(("--directory", "--project")) for word in installed):
        return
    for number, word in enumerate(installed):
        if word in _FILES_OF_PIP:
            yield from installed[number + 1 : number + 2]
        elif found := _FILE_OF_PIP.fullmatch(word):
            yield found[1]
