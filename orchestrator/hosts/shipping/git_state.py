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
from orchestrator.hosts.shipping.git_files import Repository, Tracked
from orchestrator.vm.files.sensitive import secret_by_name

WITHIN_S = 10.0  # for each question
MOST_PATCH_BYTES = 1 << 20
MARGIN_BYTES = 64 << 10  # read beyond that, so that a secret is whole when it is looked for
MOST_BYTES = 4 << 20  # of the other answers
MOST_NAMES = 1000
# Whatever the repository says.
SAFE = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "protocol.allow=never",
    "color.ui=false",
    "core.quotePath=false",
)
_FILTER = re.compile(r"filter\.(?P<name>.+)\.[a-z]+", re.S)


@dataclass(frozen=True, slots=True)
class GitState:
    """`branch` is empty for a detached head, `commit` before the first one. Paths are relative to the top of the repository.

    `dirty` files differ from the commit, and the patch says how; `untracked` files are shipped and not tracked. `cut`: the
    patch is not whole. `withheld`: files that look like secrets, of which the patch says nothing.
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
    ask = _Git(os.path.abspath(program), repository.top, directory)  # noqa: PTH100 - a name, not what a link leads to
    if not ask.disarm():
        return None
    status = ask(["status", "--porcelain=v2", "--branch", "-z", "--untracked-files=no", "--no-renames", *_BELOW])
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
    withheld = tuple(path for path in dirty if secret_by_name(path) is not None)
    patch, is_cut = b"", False
    if dirty and commit != "(initial)":
        left_out = [f":(top,exclude,literal){path}" for path in withheld]
        plain = ("--no-ext-diff", "--no-textconv", "--no-renames", "--src-prefix=a/", "--dst-prefix=b/")
        found = ask(["diff", *plain, "HEAD", *_BELOW, *left_out], most=MOST_PATCH_BYTES + MARGIN_BYTES)
        patch = hide(found or b"")
        is_cut = found is None or len(patch) > MOST_PATCH_BYTES or len(found) >= MOST_PATCH_BYTES + MARGIN_BYTES
        if len(patch) > MOST_PATCH_BYTES:
            patch = patch[: patch.rfind(b"\n", 0, MOST_PATCH_BYTES) + 1]
    return GitState(
        commit if commit != "(initial)" else "",
        branch if branch != "(detached)" else "",
        tuple(map(_shown, dirty[:MOST_NAMES])),
        tuple(map(_shown, _untracked(repository, directory, shipped)[:MOST_NAMES])),
        patch.decode(errors="replace"),
        is_cut,
        tuple(map(_shown, withheld[:MOST_NAMES])),
    )


_BELOW = ("--ignore-submodules=all", "--", ".")


def _untracked(repository: Repository, directory: Path, shipped: Collection[str]) -> list[str]:
    below = directory.relative_to(repository.top.resolve()).as_posix()
    try:
        tracked = Tracked.of(repository.tracked(), below, "")
    except UserError:  # of an index that cannot be read; git may be able to
        return []
    prefix = "" if below == "." else f"{below}/"
    return [f"{prefix}{name}" for name in sorted(shipped) if name not in tracked.files]


def _shown(path: str) -> str:
    return path.encode(errors="replace").decode()


class _Git:
    """Asks about one work tree, with nothing of its configuration that would run a program."""

    def __init__(self, program: str, top: Path, directory: Path) -> None:
        self.program, self.top, self.directory = program, top, directory
        self.settings = list(SAFE)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "SSH_ASKPASS"))}
        self.environ = {
            **kept,
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_PAGER": "cat",
            "LC_ALL": "C",
        }

    def disarm(self) -> bool:
        """Turn off the filters of files that are configured; return whether that can be done."""
        found = self(["config", "--name-only", "-z", "--get-regexp", r"^filter\."], codes=(0, 1))
        if found is None:
            return False
        for name in {match["name"] for match in map(_FILTER.fullmatch, os.fsdecode(found).split("\0")) if match}:
            if "=" in name or "\n" in name:  # which `-c` cannot say
                return False
            keys = (("clean", ""), ("smudge", ""), ("process", ""), ("required", "false"))
            self.settings += [f"filter.{name}.{key}={value}" for key, value in keys]
        return True

    def __call__(self, words: Sequence[str], *, most: int = MOST_BYTES, codes: tuple[int, ...] = (0,)) -> bytes | None:
        """Return the answer, of more than `most` bytes the first ones; None for none in time."""
        settings = [word for each in self.settings for word in ("-c", each)]
        try:
            process = subprocess.Popen(
                [self.program, "--no-pager", f"--work-tree={self.top}", *settings, *words],
                cwd=self.directory,
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
                found = process.stdout.read(most)
                if len(found) == most:
                    end()
                    return found
        finally:
            timer.cancel()
        return found if process.returncode in codes else None
