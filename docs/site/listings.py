"""A link to a file or folder of the checkout that is no page (a job file, a module, a license) leads to a page that shows it.

MyST makes a download of such a file and refuses a folder. A reader wants to look first, also without a network, so each file
gets a page with its highlighted text and a link to the download, and each folder one that lists what is shown of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from html import escape
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from docutils import nodes
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.osutil import relative_uri

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SHOWN = "files/"  # the pages are there, in the folders of the checkout
LEFT_OUT = ("__pycache__", ".")


def _text(path: Path) -> str | None:
    """Return what the file says; None for a folder, and for what is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, IsADirectoryError):
        return None


def _folder(srcdir: Path, page: str, target: str) -> str | None:
    """Return the path of a folder to which a page links, relative to the checkout; None for another target."""
    path = (srcdir / page).parent / target
    return path.resolve().relative_to(srcdir).as_posix() if target.endswith("/") and path.is_dir() else None


def _note_folders(app: Sphinx, doctree: nodes.document) -> None:
    """Show the files of each folder to which the page links."""
    page, root = app.env.docname, Path(app.srcdir)
    for node in doctree.findall(addnodes.pending_xref):
        if folder := _folder(root, page, str(node.get("reftarget", ""))):
            for path in sorted((root / folder).rglob("*")):
                name = path.relative_to(root).as_posix()
                hidden = any(part.startswith(LEFT_OUT) for part in name.split("/"))
                if not hidden and name not in (f"{each}.md" for each in app.env.found_docs) and _text(path) is not None:
                    app.env.dlfiles.add_file(page, name)


class Listings(SphinxPostTransform):
    """Leads the links to the pages with listings."""

    default_priority = 5  # before MyST looks for the targets that are left
    formats = ("html",)

    def run(self, **_: Any) -> None:
        page = self.env.docname
        for node in list(self.document.findall(addnodes.download_reference)):
            path, _absolute = self.env.relfn2path(node["reftarget"], page)
            if _text(self.env.srcdir / path) is not None:
                self._lead(node, path)
        for node in list(self.document.findall(addnodes.pending_xref)):
            if folder := _folder(Path(self.env.srcdir), page, str(node.get("reftarget", ""))):
                self._lead(node, f"{folder}/index")

    def _lead(self, node: Any, path: str) -> None:
        uri = self.app.builder.get_relative_uri(self.env.docname, f"{SHOWN}{path}")
        node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))


def _pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each text that is shown, and one for each folder with such texts."""
    folders = defaultdict(list)
    for path, (_linked_from, saved_as) in sorted((str(path), found) for path, found in app.env.dlfiles.items()):
        text = _text(Path(app.srcdir, path))
        if text is None:
            continue
        for folder in _folders(path):
            folders[folder].append(path)
        saved = _link(f"{SHOWN}{path}", f"_downloads/{saved_as}", "download", "download")
        yield _page(path, f"{saved}{app.builder.highlighter.highlight_block(text, _language(path), location=path)}")
    for folder, paths in folders.items():
        rows = [f"<li>{_link(f'{SHOWN}{folder}index', f'{SHOWN}{each}.html', each)}</li>" for each in paths]
        yield _page(f"{folder}index", f"<ul>{''.join(rows)}</ul>")


def _folders(path: str) -> list[str]:
    """Return the folders that hold a path, the checkout (an empty text) first, the others with a slash at the end."""
    return ["", *(f"{folder}/" for folder in map(str, reversed(PurePosixPath(path).parents)) if folder != ".")]


def _page(path: str, body: str) -> tuple[str, dict[str, Any], str]:
    """Return a page with a title whose parts lead to the folders."""
    *above, folder = _folders(path)
    name = path.removeprefix(folder)
    if name == "index":
        name = ""
    else:
        above.append(folder)
    links = [_link(f"{SHOWN}{path}", f"{SHOWN}{one}index.html", PurePosixPath(one).name or "checkout") for one in above]
    last = name or PurePosixPath(folder).name or "checkout"
    heading = f"<h1 class='listing'><code>{'/'.join([*links, escape(last)])}</code></h1>"
    context = {"title": f"{folder}{name}" or "checkout", "body": f"<section>{heading}{body}</section>"}
    return f"{SHOWN}{path}", context, "page.html"


def _link(here: str, there: str, words: str, attributes: str = "") -> str:
    uri = escape(relative_uri(f"{here}.html", there))
    return f'<a class="reference internal" href="{uri}" {attributes}>{escape(words)}</a>'


def _language(path: str) -> str:
    try:
        return get_lexer_for_filename(path).aliases[0]
    except (ClassNotFound, IndexError):
        return "text"


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_post_transform(Listings)
    app.connect("doctree-read", _note_folders)
    app.connect("html-collect-pages", _pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
