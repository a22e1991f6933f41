"""A real browser, for pages that people look at: Debian's Chromium (`apt-get install chromium`), driven by playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Without a Chromium on this machine, the test is skipped."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    sandbox = [] if os.geteuid() else ["--no-sandbox"]  # Chromium refuses to run as root with it
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=sandbox)
        yield started
        started.close()
