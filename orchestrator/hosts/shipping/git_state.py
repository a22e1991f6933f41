"""The state of the git repository that a job ships its code from: the commit, and how the files differ from it.

`git` itself is asked, because only git knows what differs. It may be missing, and a repository is not trusted: what its
configuration names (hooks, filters, external diffs, file monitors, transports) is not run, and time and output are bounded.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.hosts.shipping.git_files import Repository
from orchestrator.hosts.shipping.ignore import Rules
from orchestrator.vm.files.sensitive import LOOK_BYTES, may_hold_secret, secret_by_content, secret_by_name

WITHIN_S = 10.0  # for each question
MOST_PATCH_BYTES = 1 << 20
MARGIN_BYTES = 64 << 10  # read beyond that, so that a secret is whole when it is looked for
MOST_BYTES = 4 << 20  # of the other answers
MOST_NAMES = 1000
# Whatever the repository says.
SAFE: tuple[str, ...] = ("safe.bareRepository=explicit", "core.fsmonitor=false", "core.hooksPath=/dev/null")
SAFE += ("core.quotePath=false", "diff.autoRefreshIndex=true", "diff.relative=false", "diff.suppressBlankEmpty=false")
ENVIRON = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_REPLACE_OBJECTS": "1", "LC_ALL": "C"}
# `protocol.ext.allow` of a repository is stronger than a `protocol.allow` from here, and not than the variable.
ENVIRON |= {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}
PATCH: tuple[str, ...] = ("--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "-U3", "-O/dev/null")
PATCH += ("--inter-hunk-context=0", "--src-prefix=a/", "--dst-prefix=b/")
_FILTER = re.compile(r"filter\.(?P<name>.*)\.[a-z]+", re.S)


@dataclass(frozen=True, slots=True)
class GitState:
    """`branch` is empty for a detached head, `commit` before the first one. Paths are relative to the top of the repository.

    `dirty` files differ from the commit, and the patch says how; `untracked` files are shipped and not tracked. `cut`: the
    patch is not whole. `withheld`: files of which it says nothing: they look like secrets, or a .tpujobignore leaves them out.
    """

    commit: str
    branch: str
    dirty: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    patch: str = ""
    cut: bool = False
    withheld: tuple[str, ...] = ()


def read(directory: Path, shipped: Collection[str], hide: Callable[[bytes], bytes]) -> GitState | None:
    """Return the state of the files below a directory; None without a repository or git, or if git does not answer in time.

    `shipped`: what a job ships of the directory, by paths from there. `hide` takes the secrets out of the patch.
    """
    directory = directory.resolve()
    repository, program = Repository.holding(directory), shutil.which("git")
    if repository is None or program is None:
        return None
    ask = _Git(os.path.abspath(program), repository)  # noqa: PTH100 - a name, not what a link leads to
    if not ask.disarm():
        return None
    below = directory.relative_to(repository.top).as_posix()
    within = ("--ignore-submodules=all", "--", f":(literal){below}" if below != "." else below)
    status = ask(["status", "--porcelain=v2", "--branch", "-z", "--untracked-files=no", "--no-renames", *within])
    if status is None:
        return None
    heads, dirty = dict[str, str](), list[str]()
    for line in os.fsdecode(status).split("\0"):
        if line.startswith("# branch."):
            key, _, value = line.removeprefix("# branch.").partition(" ")
            heads[key] = value
        elif line[:1] in ("1", "u"):
            dirty.append(line.split(" ", 8 if line[0] == "1" else 10)[-1])
    commit, branch = heads.get("oid", ""), heads.get("head", "")
    prefix = "" if below == "." else f"{below}/"
    try:
        rules = Rules.at(directory, gitignore=True)
        verdicts = {path: rules.verdict_of(directory, path.removeprefix(prefix))[0] for path in dirty[:MOST_NAMES]}
    except UserError:  # for which the code is not shipped either
        return None
    withheld = [path for path, verdict in verdicts.items() if verdict.is_final or _looks_secret(ask, path)]
    patch, is_cut = b"", len(dirty) > MOST_NAMES
    if dirty and commit != "(initial)":
        left_out = [f":(exclude,literal){path}" for path in (*withheld, *dirty[MOST_NAMES:])]
        found = ask(["diff", *PATCH, "HEAD", *within, *left_out], cut_at=MOST_PATCH_BYTES + MARGIN_BYTES)
        patch = hide(found or b"")
        is_cut |= found is None or len(patch) > MOST_PATCH_BYTES or len(found) >= MOST_PATCH_BYTES + MARGIN_BYTES
        if len(patch) > MOST_PATCH_BYTES:
            patch = patch[: patch.rfind(b"\n", 0, MOST_PATCH_BYTES) + 1]
    submodules = tuple(f"{name}/" for name, is_submodule in rules.indexes[repository.top] if is_submodule)
    paths = (f"{prefix}{name}" for name in sorted(shipped) if name not in rules.tracked[0].files)
    untracked = [path for path in paths if not path.startswith(submodules)]
    return GitState(
        commit if commit != "(initial)" else "",
        branch if branch != "(detached)" else "",
        _shown(dirty),
        _shown(untracked),
        patch.decode(errors="replace"),
        is_cut,
        _shown(withheld),
    )


def _looks_secret(ask: _Git, path: str) -> bool:
    """Return whether a file looks like a secret: by its name, or by what is in it, now or in the commit."""
    if secret_by_name(path) is not None or not may_hold_secret(path, 1):
        return secret_by_name(path) is not None
    before, now = ask(["cat-file", "blob", f"HEAD:{path}"], cut_at=LOOK_BYTES, codes=(0, 128)), b""  # 128: it is new
    file = ask.repository.top / path
    with suppress(OSError):
        if not file.is_symlink() and file.is_file():
            with file.open("rb") as opened:
                now = opened.read(LOOK_BYTES)
    return before is None or any(map(secret_by_content, (before, now)))


def _shown(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(path.encode(errors="replace").decode() for path in paths[:MOST_NAMES])


class _Git:
    """Asks about one work tree, with nothing of its configuration that would run a program."""

    def __init__(self, program: str, repository: Repository) -> None:
        self.program, self.repository = program, repository
        self.settings = list(SAFE)
        own = ("GIT_", "SSH_ASKPASS")
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith(own)} | ENVIRON

    def disarm(self) -> bool:
        """Turn off the filters of files that are configured; return whether that can be done, for this very repository."""
        where = self(["rev-parse", "--absolute-git-dir"])
        if where is None or Path(os.fsdecode(where[:-1])).resolve() != self.repository.directory.resolve():
            return False  # such as a bare repository among the files: its configuration would count
        found = self(["config", "--name-only", "-z", "--get-regexp", r"^filter\."], codes=(0, 1))
        if found is None:
            return False
        for name in {match["name"] for match in map(_FILTER.fullmatch, os.fsdecode(found).split("\0")) if match}:
            if "=" in name or "\n" in name:  # which `-c` cannot say
                return False
            keys = (("clean", ""), ("smudge", ""), ("process", ""), ("required", "false"))
            self.settings += [f"filter.{name}.{key}={value}" for key, value in keys]
        return True

    def __call__(self, words: Sequence[str], *, cut_at: int = 0, codes: tuple[int, ...] = (0,)) -> bytes | None:
        """Return the answer, or its first `cut_at` bytes; None for none in time, and for a longer one that is not to be cut."""
        settings = [word for each in self.settings for word in ("-c", each)]
        try:
            process = subprocess.Popen(
                [self.program, "--no-pager", f"--work-tree={self.repository.top}", *settings, *words],
                cwd=self.repository.top,  # below, git would take a bare repository for its own
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # what it starts is ended with it
            )
        except OSError:
            return None

        def end() -> None:
            with suppress(ProcessLookupError):
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(WITHIN_S, end)
        timer.daemon = True
        timer.start()
        try:
            with process:
                assert process.stdout is not None
                found = process.stdout.read(most := cut_at or MOST_BYTES)
                if len(found) == most:
                    end()
                    return found if cut_at else None
        finally:
            timer.cancel()
        return found if process.returncode in codes else None
