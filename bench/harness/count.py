"""`make count`: lines of code and of tests, without docstrings, comments and blank lines. Budgets are measured by it."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

FOLDERS = ("orchestrator", "cloud_tpu_emulator", "payload", "tpujob", "tests")
SILENT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENDMARKER, tokenize.ENCODING),
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """Return the number of lines that hold code; each line of a string of several lines counts, unless it documents."""
    coded: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT:
            coded |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            coded -= {*range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    return len(coded)


def main(root: Path, folders: list[str]) -> None:
    for folder in folders:
        files = sorted((root / folder).rglob("*.py"))
        lines = sum(code_lines(file.read_text(encoding="utf-8")) for file in files)
        print(f"{folder:14}{lines:>8,} lines in {len(files)} files")


if __name__ == "__main__":
    main(Path(__file__).parents[2], sys.argv[1:] or [*FOLDERS])
