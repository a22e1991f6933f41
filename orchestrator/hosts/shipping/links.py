"""Where a link of a tree leads: whether it travels as a link, as what it leads to, or not at all."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from orchestrator.hosts.shipping.git_files import Repository
from orchestrator.hosts.shipping.ignore import Verdict
from orchestrator.text.terminal import printable

LINK = "a link "  # so begins the rule that leaves a link out


def reach_of(root: Path) -> Path:
    """Return the directory in which links of this tree are followed: the repository that holds it, else the tree itself."""
    repository = Repository.holding(root)
    return root if repository is None or _holds_home(repository.top) else repository.top


def _holds_home(directory: Path) -> bool:
    """Return whether it is the home directory or above it: of that, only what is named is shipped."""
    return Path.home().resolve().is_relative_to(directory)


def travels_as(link: Path, root: Path, reach: Path, judge: Callable[[Path], Verdict]) -> str | Path | Verdict:
    """Return the relative target of a link that leads to the same place on a worker, the real path of what is shipped in
    its place, or why it is left out. `judge` returns the verdict about a path within `reach`.
    """
    try:
        target = link.resolve()
        with suppress(FileNotFoundError):  # what it names may be missing
            link.stat()  # from Python 3.13 on `resolve` takes a loop
    except (OSError, RuntimeError):
        return Verdict(True, f"{LINK}that leads to itself")
    if root in (target, *target.parents):
        return os.path.relpath(target, link.parent.resolve())
    named = f"{LINK}to {printable(os.path.relpath(target, root) if reach in target.parents else str(target))}"
    if not target.exists():
        return Verdict(True, f"{named}, which is not there")
    if not target.is_relative_to(reach) or _holds_home(target):
        return Verdict(True, f"{named}, out of the {'repository' if (reach / '.git').exists() else 'directory'}")
    verdict = judge(target)
    return Verdict(True, f"{named}, left out by {verdict.rule}") if verdict.left_out else target


def seen_from(root: Path, reach: Path, rule: str) -> str:
    """Return what a rule of `reach` is called in the tree."""
    is_of_file = ":" in rule and rule[0] not in "~/"
    return os.path.relpath(reach / rule, root) if is_of_file else rule
