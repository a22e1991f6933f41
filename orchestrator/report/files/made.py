"""What a run was made with: `made.json` and `made.patch` of its directory, and `packages.json` of its first worker.

The first is written when the run begins (`api/jobs/repeating.py`), the last beside the job (`vm/agent/host.py`). Files may be
damaged, or a job's: no shape of theirs is relied on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.report.files.artifact_files import count, open_regular, read_object, section
from orchestrator.text.terminal import printable

NAME, PATCH, ARCHIVE = "made.json", "made.patch", "again.tar.gz"
PACKAGES = "packages.json"
SCHEMA = 1
MOST_BYTES = 4 << 20
MOST_NAMES, MOST_PACKAGES = 1000, 5000
MAIN = ("torch", "torch-xla", "torch-tpu", "jax", "jaxlib", "libtpu", "numpy")


@dataclass(frozen=True, slots=True)
class GitState:
    """The repository of the code when the run began; `commit` and `branch` are empty where there was none.

    Paths are relative to its top. `dirty` files differed from the commit, `untracked` ones were shipped and not tracked,
    the patch says nothing of `withheld` ones: they look like secrets, or are not shipped. `cut`: the patch is not whole.
    """

    commit: str
    branch: str
    dirty: tuple[str, ...]
    untracked: tuple[str, ...]
    withheld: tuple[str, ...]
    cut: bool

    @property
    def changes(self) -> str:
        """How the code differed from the commit, in words; empty: it did not."""
        parts = [f"{_files(self.dirty)} changed"] if self.dirty else []
        return ", ".join([*parts, *([f"{_files(self.untracked)} not in git"] if self.untracked else [])])


@dataclass(frozen=True, slots=True)
class Code:
    """What the job shipped of its own. `sha256`: of names and contents. `not_kept`: why the archive of the run has none."""

    sha256: str
    files: int
    size_bytes: int
    not_kept: str  #: empty: it has it
    directory: str
    data_directory: str


@dataclass(frozen=True, slots=True)
class Made:
    """What a run was made with. Texts are empty, and None is said, where nothing is known.

    `python` and `packages` are those of the job's `python3` on worker 0. `missing`: why `run --again` cannot repeat the run.
    """

    git: GitState | None = None
    code: Code | None = None
    command: str = ""
    tpujob: str = ""
    client_python: str = ""
    client_platform: str = ""
    lock_sha256: str = ""
    again_of: str = ""  #: the run that this one repeats
    missing: str = ""
    python: str = ""
    packages: dict[str, str] = field(default_factory=dict)  #: name to version


def read(directory: Path) -> Made | None:
    """Return what is recorded in the directory of a run; None for nothing, as of a run of an older tpujob."""
    found = read_object(directory / NAME, MOST_BYTES)
    told = read_object(directory / "worker0" / "artifacts" / PACKAGES)
    found, told = (each if each.get("schema") == SCHEMA else {} for each in (found, told))
    if not found and not told:
        return None
    client, lock = section(found, "client"), section(found, "lock")
    missing = _text(found.get("missing")) if found else f"its {NAME} is not there, or this tpujob cannot read it"
    if not missing and open_regular(directory / ARCHIVE) is None:
        missing = f"{ARCHIVE}, which has its job and its code, is not in its directory"
    packages = list(section(told, "packages").items())[:MOST_PACKAGES]
    return Made(
        git=_git(found), code=_code(section(found, "code")), command=_text(found.get("command"), MOST_BYTES),
        tpujob=_text(found.get("tpujob")), client_python=_text(client.get("python")),
        client_platform=_text(client.get("platform")), lock_sha256=_text(lock.get("sha256")),
        again_of=_text(found.get("again_of")), missing=missing, python=_text(told.get("python")),
        packages={_text(name): _text(version) for name, version in packages if isinstance(version, str)},
    )  # fmt: skip


def _git(found: dict[str, Any]) -> GitState | None:
    told = section(found, "git")
    if not told:
        return None
    dirty, untracked, withheld = (_names(told.get(key)) for key in ("dirty", "untracked", "withheld"))
    return GitState(
        _text(told.get("commit")), _text(told.get("branch")), dirty, untracked, withheld, told.get("cut") is True
    )


def _code(told: dict[str, Any]) -> Code | None:
    if not told:
        return None
    return Code(
        sha256=_text(told.get("sha256")),
        files=count(told.get("files")) or 0,
        size_bytes=count(told.get("size_bytes")) or 0,
        not_kept=_text(told.get("not_kept")),
        directory=_text(told.get("directory"), 4096),
        data_directory=_text(told.get("data_directory"), 4096),
    )


def patch(directory: Path) -> str:
    """Return the patch of the uncommitted changes; empty without one."""
    file = open_regular(directory / PATCH)
    if file is None:
        return ""
    with file:
        return file.read(MOST_BYTES).decode(errors="replace")


def lines(made: Made | None) -> list[tuple[str, str]]:
    """Return a key and a sentence for each thing that is known, for `tpujob show`."""
    if made is None:
        return []
    found = []
    if made.tpujob:
        lock = f" · lock {made.lock_sha256[:12]}" if made.lock_sha256 else ""
        found.append(("made", f"by tpujob {made.tpujob} on {made.client_platform or 'an unknown machine'}{lock}"))
    if made.packages:
        main = [f"{name} {version}" for name, version in made.packages.items() if name in MAIN]
        python = f"Python {made.python}" if made.python else ""
        found.append(("packages", " · ".join(filter(None, (f"{len(made.packages):,}", python, ", ".join(main))))))
    if made.git is not None:
        branch = made.git.branch or "no branch"
        found.append(("git", " · ".join(filter(None, (made.git.commit[:12] or "no commit", branch, made.git.changes)))))
    if made.again_of:
        found.append(("again", f"of {made.again_of}"))
    if made.missing and made.command:
        found.append(("again", f"`run --again` cannot repeat it: {made.missing}"))
    return found


def _files(names: tuple[str, ...]) -> str:
    return f"{len(names):,}{'+' * (len(names) >= MOST_NAMES)} file{'s'[: len(names) != 1]}"


def _names(value: Any) -> tuple[str, ...]:
    return tuple(_text(each, 1000) for each in value[:MOST_NAMES]) if isinstance(value, list) else ()


def _text(value: Any, most: int = 300) -> str:
    return printable(value)[:most] if isinstance(value, str) else ""
