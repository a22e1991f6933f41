"""Render a page: one HTML file with its style, its script and its data inside, which asks nothing of any network.

Jinja2 escapes every value. The policy of the page allows this one style and this one script, by their hashes, and nothing else:
no request, no form, no address to resolve links against.
"""

import base64
import functools
import hashlib
import json
import os
import urllib.parse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from orchestrator import __version__
from orchestrator.report.files.metrics import last_text, short
from orchestrator.report.rows.layout import format_cost
from orchestrator.text.units import clock, day_clock, format_duration

ASSETS = Path(__file__).parent / "assets"
Hide = Callable[[str], str]


def render(page: Mapping[str, Any], data: Mapping[str, Any], hide: Hide, *, live: bool = False) -> str:
    """Return the HTML of a page. `page`: what the template shows; `data`: what its script draws, finite numbers and text.

    `hide` takes the secrets out of a text; it is called with every text of `page`, before that is escaped. `live`: it is
    served, and asks for itself again; no other page makes a request.
    """
    return _render("page.html.j2", page, hide, "uPlot.min.css", _script(), live=live, data=_json(data))


def render_table(page: Mapping[str, Any], hide: Hide) -> str:
    """Return the HTML of the live table of all runs."""
    return _render("top.html.j2", page, hide, "", _inline("renew.js", "table.js"), live=True)


def _render(
    template: str, page: Mapping[str, Any], hide: Hide, style: str, script: Markup, *, live: bool, **more: Any
) -> str:
    css = _inline(*filter(None, (style,)), "page.css")
    shown = {"style": css, "script": script, "policy": _policy(script, css, live=live), "live": live, **more}
    return _templates().get_template(template).render(page=page, hide=hide, version=__version__, **shown)


def _json(data: Mapping[str, Any]) -> Markup:
    return htmlsafe_json_dumps(data, dumps=functools.partial(json.dumps, separators=(",", ":"), allow_nan=False))


def render_plain(template: str, page: Mapping[str, Any], hide: Hide) -> str:
    """Return a page without a script, from a template of its own."""
    return _render(template, page, hide, "", Markup(""), live=False)


def render_card(page: Mapping[str, Any], hide: Hide) -> str:
    """Return a part of a page of another program, with neither a script nor a style sheet."""
    return _templates().get_template("card.html.j2").render(page=page, hide=hide)


def took(value: float | None) -> str:
    """Return the seconds of a step."""
    if value is None:
        return "unknown"
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def _size(size_bytes: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:,.1f} {unit}"
    return f"{size_bytes} bytes"


@pass_context
def _hidden(context: Context, value: Any) -> Any:
    """Return a value of the template as it is shown: a text without secrets."""
    return context["hide"](value) if type(value) is str else value


@functools.cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_hidden,
    )
    environment.filters |= {"took": took, "size": _size, "quoted": lambda path: urllib.parse.quote(os.fsencode(path))}
    environment.filters |= {"clock": clock, "day_clock": day_clock, "duration": format_duration, "cost": format_cost}
    environment.filters |= {"short": short, "last": last_text}
    return environment


@functools.cache
def _inline(*names: str) -> Markup:
    return Markup("\n".join((ASSETS / name).read_text(encoding="utf-8").strip() for name in names))  # noqa: S704 - our own


@functools.cache
def _script() -> Markup:
    licence = (ASSETS / "uPlot.LICENSE.txt").read_text(encoding="utf-8").strip()
    return Markup("/* uPlot:\n{}\n*/\n").format(Markup(licence)) + _inline("uPlot.iife.min.js", "renew.js", "page.js")  # noqa: S704


@functools.cache
def _policy(script: Markup, style: Markup, *, live: bool) -> str:
    parts = {
        "default-src": "'none'",
        "script-src": _hash(script) if script else "'none'",
        "style-src": _hash(style),
        "connect-src": "'self'" if live else "'none'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
