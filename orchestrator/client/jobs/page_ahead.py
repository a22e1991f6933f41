"""Prepares the page of a run while the cloud creates its slice: that wait has a tenth of a second of the processor to spare.

Only Jinja2 is imported here, which shares no module with what others import meanwhile: the modules of paramiko and cryptography
import each other in circles, and two threads that import such a package at once break it.
"""

import contextlib
import threading


def prepare_page() -> None:
    """Begin, and return at once. What fails is done once more where the page is written, and fails there."""
    threading.Thread(target=_prepare_page, name="prepare-page", daemon=True).start()


def _prepare_page() -> None:
    with contextlib.suppress(Exception):
        from orchestrator.report.page import html  # Jinja2

        html.prepare()
