"""Imports what a run needs once it has a slice while the cloud creates it: that wait has a fifth of a second to spare."""

from __future__ import annotations

import contextlib
import threading


def import_ahead() -> None:
    """Begin, and return at once. What cannot be imported is imported once more where it is needed, and fails there."""
    threading.Thread(target=_import_ahead, name="import-ahead", daemon=True).start()


def _import_ahead() -> None:
    with contextlib.suppress(Exception):
        import fabric  # noqa: F401

        from orchestrator.report.page import html

        html.prepare()
