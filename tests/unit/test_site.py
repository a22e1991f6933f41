"""The docs site: it builds without a warning about a page, every link and anchor leads somewhere, and it works offline."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlencode, urlsplit

import pytest

import tpujob
from tests import ROOT
from tests.unit.test_docs import PAGES
from tests.waiting import ran

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.ci  # the site is built once for all of these tests
LOCATED = re.compile(rf"^{re.escape(str(ROOT))}/\S+?:.*(?:WARNING|ERROR): ", re.MULTILINE)
LOADED = {
    "script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src",
    "object": "data",
}  # fmt: skip


@dataclass
class Html(HTMLParser):
    """What a page has: its anchors, its links, and the files that a browser loads to show it."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        have = {name: value for name, value in attrs if value is not None}
        self.anchors |= {have[name] for name in ("id", "name") if name in have}
        if tag == "a" and "href" in have:
            self.links.append(have["href"])
        if tag == "form" and "action" in have:
            self.links.append(have["action"])
        if tag == "meta" and have.get("http-equiv") == "refresh":
            self.links.append(have["content"].partition("url=")[2])
        if tag in LOADED and LOADED[tag] in have and have.get("rel") != "canonical":
            self.loads.append(have[LOADED[tag]])


@dataclass
class Site:
    """The built site, and what Sphinx warned of."""

    root: Path
    warnings: str
    pages: dict[Path, Html]

    def built_from(self, page: Path) -> Path:
        return self.root / page.relative_to(ROOT).with_suffix(".html")

    def target(self, page: Path, link: str) -> Path | None:
        """Return the file to which a link leads; None for another host."""
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            return None
        return (page.parent / unquote(parts.path)).resolve() if parts.path else page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    root = tmp_path_factory.mktemp("site")
    said = root.with_suffix(".warnings")
    options = ["-q", "-c", "docs/site", "-d", str(root.with_suffix(".doctrees")), "-w", str(said)]
    command = [sys.executable, "-m", "sphinx", *options, ".", str(root)]
    built = ran(command, cwd=ROOT, timeout=None)
    assert built.returncode == 0, built.stderr
    pages = {}
    for path in root.rglob("*.html"):
        pages[path] = Html()
        pages[path].feed(path.read_text(encoding="utf-8"))
    return Site(root.resolve(), said.read_text(encoding="utf-8"), pages)


def test_no_page_has_a_mistake(site: Site) -> None:
    """What Sphinx says of itself or of an extension names no file of ours; a later version may say more of it."""
    assert [line for line in site.warnings.splitlines() if LOCATED.match(line)] == []


def test_every_link_and_anchor_leads_somewhere(site: Site) -> None:
    wrong = []
    for page, html in site.pages.items():
        for link in html.links:
            target, anchor = site.target(page, link), unquote(urlsplit(link).fragment)
            if target is not None and (
                not target.is_file() or (anchor and target in site.pages and anchor not in site.pages[target].anchors)
            ):
                wrong.append(f"{page.relative_to(site.root)}: {link}")
    assert wrong == []


def test_every_page_of_the_checkout_is_reached_from_the_index(site: Site) -> None:
    found, ahead = set(), [site.root / "index.html"]
    while ahead:
        page = ahead.pop()
        if page in site.pages and page not in found:
            found.add(page)
            ahead += [target for link in site.pages[page].links if (target := site.target(page, link))]
    assert set(site.pages) - found == set()
    assert {site.built_from(page) for page in PAGES} <= found


def test_no_page_loads_anything_from_another_host(site: Site) -> None:
    for page, html in site.pages.items():
        assert [one for one in html.loads if (target := site.target(page, one)) is None or not target.is_file()] == []
    for style in site.root.rglob("*.css"):
        asked = re.findall(r"(?:url\(|@import)\s*['\"]?([^'\")\s]+)", style.read_text(encoding="utf-8"))
        assert [one for one in asked if re.match(r"(https?:)?//", one)] == [], style


def test_the_python_reference_has_every_public_name(site: Site) -> None:
    anchors = site.pages[site.root / "docs" / "python-reference.html"].anchors
    assert {f"tpujob.{name}" for name in tpujob.__all__} <= anchors


@pytest.mark.parametrize(("asked", "answer"), [
    ("exit code 75", "docs/cli.html#exit-codes"),
    ("75", "docs/troubleshooting.html#exit-code-75-not-proven-absent"),
    ("69", "docs/troubleshooting.html#by-exit-code"),
    ("stop billing", "docs/faq.html#how-do-i-check-from-a-phone-or-another-machine-and-stop-billing"),
    ("tpujob cancel", "docs/cli.html#tpujob-cancel"), ("sweeps", "#sweep"),
    ("Client.submit", "docs/python-reference.html#tpujob.Client.submit"), ("max_cost", "max_cost"),
])  # fmt: skip
def test_the_search_finds_it_in_a_page_that_is_opened_from_a_file(
    site: Site, browser: Browser, asked: str, answer: str
) -> None:
    page = browser.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"{(site.root / 'search.html').as_uri()}?{urlencode({'q': asked})}")
    page.get_by_text("Search finished").wait_for()  # results come one by one
    found = page.locator("ul.search li a")
    assert any(answer in str(link.get_attribute("href")) for link in found.all()[:3])
    assert [url for url in requests if not url.startswith("file:")] == []
    page.close()


def test_every_page_fits_a_telephone_and_has_no_error(site: Site, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 400, "height": 900})
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{page.url}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"{page.url}: {error}"))
    too_wide = []
    for path in sorted(set(site.pages) - {site.root / "index.html"}):  # that one leads to docs/index.html at once
        page.goto(path.as_uri())
        if page.evaluate("document.documentElement.scrollWidth") > 400:
            too_wide.append(str(path.relative_to(site.root)))
    assert (too_wide, said) == ([], [])
    page.close()


def test_a_wrong_link_a_wrong_anchor_and_a_page_outside_the_navigation_fail_the_build(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs" / "site", tmp_path / "docs" / "site")
    for page, text in {
        "index": "# Index\n\n## Part\n\n- [Page](page.md): one.\n",
        "page": "# Page\n\n[an anchor](index.md#nowhere)\n\n[a file](absent.py)\n",
        "stray": "# Stray\n",
    }.items():
        (tmp_path / "docs" / f"{page}.md").write_text(text)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs/site", ".", "built"]
    built = ran(command, cwd=tmp_path, timeout=None)
    assert built.returncode == 1
    mistakes = sorted(re.findall(r"docs/(\w+\.md(?::\d+)?): WARNING", built.stderr))
    assert mistakes == ["page.md:3", "page.md:5", "stray.md"], built.stderr
