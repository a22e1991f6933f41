"""Which files a shell command surely needs in its working directory: its program, the script that it starts, the requirements
that it installs.

Only what is certain counts. Nothing is said about text that bash would expand, options that are not known here, absolute paths,
and what comes after a command that may make files. Pure.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

GOES_ON = frozenset(("|", "|&", "&&", ">", ">>", ">&", "&>"))  # after these, the end of the first command decides
_OPERATOR = re.compile(r"[();<>|&]+")
_EXPANDED = re.compile(r"[$`*?\[{]|^~")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*\+?=")
_SET = re.compile(r"set\s+[-+\w\s]+")
_PYTHON, _SHELL = re.compile(r"python(3(\.\d+)?)?"), re.compile(r"(ba|da|z)?sh")
_PIP = re.compile(r"pip(3(\.\d+)?)?")
_ELSEWHERE = ("-e", "--editable", "-t", "--target", "--prefix", "--src")  # of pip: these write beside the command
_PROGRAMS = (".py", ".sh")


@dataclass(frozen=True, slots=True)
class Needed:
    """A file that a command needs. `is_program`: bash itself runs it."""

    path: str
    is_program: bool = False


def needed_by(commands: Iterable[str]) -> Iterator[tuple[int, Needed]]:
    """Yield the files that must be there before the first of these commands, each with the number of its command from 0 on.

    The commands run one after the other, until one fails. A `pip install` makes no file that a later one may need.
    """
    for number, text in enumerate(commands):
        words, is_all = _first_command(text)
        for needed in _of_words(words):
            yield number, needed
        if not (is_all and _is_install(words)) or any(word.startswith(_ELSEWHERE) for word in words):
            return


def _first_command(text: str) -> tuple[list[str], bool]:
    """Return the words of the first command, and whether there is no other; no words where its failure may not be the end."""
    lines = [line for line in map(str.strip, text.replace("\\\n", " ").split("\n")) if line and line[0] != "#"]
    stops = False  # at the first command that fails
    while lines and _SET.fullmatch(lines[0]):
        stops |= bool(re.search(r"-\w*e", lines.pop(0)))
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
    while first and (_ASSIGNED.match(first[0]) or first[0] in ("exec", "nohup")):
        if "`" in first.pop(0):
            return [], False
    comment = next((number for number, word in enumerate(first) if word.startswith("#")), len(first))
    return first[:comment], not operators and len(lines) == 1


def _of_words(words: Sequence[str]) -> Iterator[Needed]:
    if not words or _EXPANDED.search(words[0]):
        return
    name = PurePosixPath(words[0]).name
    if not words[0].startswith("/") and (
        "/" in words[0] or any(map(str.isspace, words[0])) or name.endswith(_PROGRAMS)
    ):
        yield Needed(words[0], is_program=True)
    elif _PYTHON.fullmatch(name):
        yield from _plain(_script(words[1:], "bBdEiIOPqsSuvx", "XW"))
    elif _SHELL.fullmatch(name):
        yield from _plain(_script(words[1:], "abefhlmnruvxBCEH", "oO"))
    if _is_install(words):
        yield from _plain(_requirements(words))


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


def _is_install(words: Sequence[str]) -> bool:
    """Return whether it is `pip install`, however pip is called."""
    if len(words) > 3 and _PYTHON.fullmatch(PurePosixPath(words[0]).name) and words[1] == "-m":
        words = words[2:]
    if words and words[0] == "uv":
        words = words[1:]
    return len(words) > 1 and _PIP.fullmatch(PurePosixPath(words[0]).name) is not None and words[1] == "install"


def _requirements(words: Sequence[str]) -> Iterator[str]:
    """Yield the files of requirements and constraints, where they are relative to the working directory."""
    if any(word.startswith(("--directory", "--project")) for word in words):
        return
    for number, word in enumerate(words):
        if word in ("-r", "-c", "--requirement", "--requirements", "--constraint", "--constraints"):
            yield from words[number + 1 : number + 2]
        elif found := re.fullmatch(r"(?:-[rc]|--(?:requirement|constraint)s?=)(.+)", word):
            yield found[1]
