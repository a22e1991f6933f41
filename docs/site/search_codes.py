"""Lets the search find an exit code by its number: "75" leads to the heading that explains it, and to the table of all.

The search of Sphinx skips numbers, but for entries of the index.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx import addnodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

HEADING = re.compile(r"Exit code (\d+)")
TABLES = ("Exit codes", "By exit code")


def _codes(section: nodes.section) -> Iterator[str]:
    """Yield the exit codes that a section is about."""
    title = section[0].astext()
    if found := HEADING.match(title):
        yield found[1]
    if title in TABLES:
        for row in section.findall(nodes.row):
            yield from re.findall(r"\d+", row[0].astext())


def _index(app: Sphinx, doctree: nodes.document) -> None:
    for section in list(doctree.findall(nodes.section)):
        entries = [("single", code, section["ids"][0], "main", None) for code in _codes(section)]
        section.insert(1, addnodes.index(entries=entries))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", _index)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
