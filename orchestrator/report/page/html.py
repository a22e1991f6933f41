"""Render a page: one HTML file with its style, its script and its data inside, which asks nothing of any network.

Jinja2 escapes every value. The policy of the page allows this one style and this one script, by their hashes, and nothing else:
no request, no form, no address to resolve links against.
"""

import base64
import contextvars
import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from orchestrator import __version__

ASSETS = Path(__file__).parent / "assets"
Hide = Callable[[str], str]
_HIDE: contextvars.ContextVar[Hide] = contextvars.ContextVar("hide", default=lambda text: text)


def render(page: Mapping[str, Any], data: Mapping[str, Any], hide: Hide) -> str:
    """Return the HTML of a page. `page`: what the template shows; `data`: what its script draws, finite numbers and text.

    `hide` takes the secrets out of a text; it is called with every text of `page`, before that is escaped.
    """
    return contextvars.copy_context().run(_render, page, data, hide)


def _render(page: Mapping[str, Any], data: Mapping[str, Any], hide: Hide) -> str:
    _HIDE.set(hide)
    return _template().render(
        page=page,
        data=htmlsafe_json_dumps(data, dumps=functools.partial(json.dumps, separators=(",", ":"), allow_nan=False)),
        style=_inline("uPlot.min.css", "page.css"),
        script=_script(),
        policy=_policy(),
        version=__version__,
    )


@functools.cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: _HIDE.get()(value) if type(value) is str else value,
    )
    return environment.get_template("page.html.j2")


@functools.cache
def _inline(*names: str) -> Markup:
    return Markup("\n".join((ASSETS / name).read_text(encoding="utf-8").strip() for name in names))  # noqa: S704 - our own


@functools.cache
def _script() -> Markup:
    licence = (ASSETS / "uPlot.LICENSE.txt").read_text(encoding="utf-8").strip()
    return Markup("/* uPlot:\n{}\n*/\n").format(Markup(licence)) + _inline("uPlot.iife.min.js", "page.js")  # noqa: S704


@functools.cache
def _policy() -> str:
    parts = {
        "default-src": "'none'",
        "script-src": _hash(_script()),
        "style-src": _hash(_inline("uPlot.min.css", "page.css")),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
