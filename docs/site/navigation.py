"""The navigation is what docs/index.md lists: a section is a part of the sidebar, a bullet that begins with a link is a page.

So there is one list to keep, and on a code host it reads as a page. A page is added with one line there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
BULLET = re.compile(r"^- \[([^\]]+)\]\(([^)#\s]+\.md)\)", re.MULTILINE)


def with_toctrees(text: str) -> str:
    """Return the text with a hidden toctree at the end of every section that lists pages."""
    head, *parts = SECTION.split(text)
    sections = zip(parts[::2], parts[1::2], strict=True)
    return head + "".join(f"## {title}{body.rstrip()}\n\n{_toctree(title, body)}\n" for title, body in sections)


def _toctree(title: str, body: str) -> str:
    pages = [f"{name} <{path}>" for name, path in BULLET.findall(body)]
    if not pages:
        return ""
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```", ""])


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    if page == app.config.root_doc:
        source[0] = with_toctrees(source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
