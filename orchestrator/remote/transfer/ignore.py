"""Which files a bundle leaves out: version control, caches, environments, and the patterns of a `.tpujobignore` file.

The file holds one shell pattern a line, as in the simple part of .gitignore: `*.ckpt` matches at any depth, `data/raw`
from the top, `runs/` directories only; `#` starts a comment. Negation is refused.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from pathlib import Path, PurePath

from orchestrator.errors import UserError

FILE = ".tpujobignore"
ALWAYS = (".git", ".hg", ".svn", "__pycache__", ".venv", "node_modules", "*.pyc", ".DS_Store")


@dataclass(frozen=True, slots=True)
class Ignore:
    patterns: tuple[str, ...] = ALWAYS

    @classmethod
    def read(cls, root: Path) -> Ignore:
        path = root / FILE
        if not path.is_file():
            return cls()
        patterns = []
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            pattern = line.strip()
            if pattern.startswith("!"):
                message = f"{path}:{number}: negation ({pattern}) is not supported"
                raise UserError(message, hint="name what to leave out")
            if pattern and not pattern.startswith("#"):
                patterns.append(pattern)
        return cls((*ALWAYS, *patterns))

    def matches(self, path: PurePath, *, is_directory: bool) -> bool:
        return any(_matches(pattern, path, is_directory) for pattern in self.patterns)


def _matches(pattern: str, path: PurePath, is_directory: bool) -> bool:
    if pattern.endswith("/") and not is_directory:
        return False
    pattern = pattern.rstrip("/")
    subject = path.as_posix() if "/" in pattern else path.name
    return fnmatch.fnmatchcase(subject, pattern.lstrip("/"))
