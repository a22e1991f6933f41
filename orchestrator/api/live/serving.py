"""`top --open`: the table of all runs, and the page of each while it goes on, for a browser of this user on this machine.

Read-only, on loopback, for those who have the token in the address. Other pages that the browser shows cannot read it: the name
of the host is checked, so that no other name leads here, and no answer may be embedded or read from elsewhere. What a job wrote
is escaped in the pages, and its files are never shown, only downloaded.
"""

from __future__ import annotations

import contextlib
import hmac
import http.server
import os
import secrets
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from http import HTTPStatus
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from orchestrator.api.live import tables
from orchestrator.api.live.top import Top, TopRow, Watch
from orchestrator.api.results import pages
from orchestrator.errors import TpujobError
from orchestrator.report.files.artifact_files import open_regular
from orchestrator.report.page import html
from orchestrator.report.page.summary import EMULATED
from orchestrator.system import whole_file

if TYPE_CHECKING:
    from orchestrator.api.session.session import Session

IDLE_S = 3600.0  # without a request, it ends
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
AS_FILE = {"Content-Security-Policy": "default-src 'none'; sandbox", "Content-Type": "application/octet-stream"}
PIECE_BYTES = 1 << 18
OpenSession = Callable[[], AbstractContextManager["Session"]]


class Served:
    """The server: `address` of the table, and `wait` until it ends. It answers in threads of its own until it is closed."""

    def __init__(self, open_session: OpenSession, watch: Watch) -> None:
        self._token, self._asked_at = secrets.token_urlsafe(24), time.monotonic()
        self._open, self._watch, self._lock = open_session, watch, threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.served = self
        self.hosts = {f"{name}:{self._server.server_port}" for name in ("127.0.0.1", "localhost")}
        self.address = f"http://127.0.0.1:{self._server.server_port}/{self._token}/"
        threading.Thread(target=self._server.serve_forever, name="top serves", daemon=True).start()

    def wait(self, idle_s: float = IDLE_S) -> None:
        """Return once nothing has looked for so long."""
        while (left_s := self._asked_at + idle_s - time.monotonic()) > 0:
            time.sleep(min(left_s, 1.0))

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()

    def knows(self, token: str) -> bool:
        """Say whether this is the token. A request that has it is one that looks."""
        known = hmac.compare_digest(token.encode(), self._token.encode())
        if known:
            self._asked_at = time.monotonic()
        return known

    def table(self) -> str:
        """Return the page of the table."""
        with self._lock, self._open() as session:
            found: Top = self._watch.look(ended=True)
            for run, _ in session.ledger.runs():
                session.know_secrets(run)
            page = {
                "title": "What goes on",
                "place": tables.title(found, len(found.rows)),
                "head": tables.HEAD,
                "right": tables.RIGHT,
                "rows": list(map(_row, found.rows, repeat(found.at))),
                "remarks": tables.remarks(found.rows),
                "problems": found.problems,
                "emulated": EMULATED if any(row.emulated for row in found.rows) else "",
            }
            return html.render_table(page, session.reporter.secrets.hide)

    def run(self, name: str) -> str:
        """Return the page of a run. Raises UnknownRun."""
        with self._lock, self._open() as session:
            return pages.live_page(session, name, awaited=self._watch.awaits(name))

    def file(self, name: str, path: str) -> BinaryIO | None:
        """Return an open file of a run's directory; None: there is none. Raises UnknownRun."""
        with self._open() as session:
            directory = Path(session.ledger.run(name)[0].directory)
        return open_below(directory, path)


def _row(row: TopRow, now: float) -> dict[str, Any]:
    """Return a row as the page has it: its texts, each with the number by which it is sorted."""
    link = f"run/{urllib.parse.quote(row.id, safe='')}/" if row.has_page else ""
    cells = zip(tables.cells(row, now), tables.sorted_by(row), strict=True)
    return {"cells": list(cells), "link": link, "ended": row.ended_at is not None}


def open_below(directory: Path, path: str) -> BinaryIO | None:
    """Return the open regular file of this relative path; None for any other, for `..`, and where a link is on the way."""
    parts = path.split("/")
    if not parts or any(part in ("", ".", "..") or "\0" in part for part in parts):
        return None
    with contextlib.ExitStack() as stack:
        try:
            at = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, at)
            for part in parts[:-1]:
                at = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
                stack.callback(os.close, at)
        except OSError:
            return None
        return open_regular(parts[-1], at)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    served: Served

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a browser left, or another user of this machine has tried its ports."""


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = 20.0
    server: _Server
    server_version, sys_version = "tpujob", ""

    def do_GET(self) -> None:
        """Answer with the table, the page of a run, or a file of it."""
        served = self.server.served
        if self.headers.get("Host", "") not in served.hosts:
            self._say(HTTPStatus.MISDIRECTED_REQUEST, "this page is only for its own address")
            return
        asked_by = self.headers.get("Sec-Fetch-Site", "none"), self.headers.get("Sec-Fetch-Mode", "navigate")
        if asked_by[0] not in ("none", "same-origin") and asked_by[1] != "navigate":  # `opener` leads here from a file
            self._say(HTTPStatus.FORBIDDEN, "other pages cannot ask here")
            return
        parts = urllib.parse.unquote(self.path.partition("?")[0]).lstrip("/").split("/", 3)
        if len(parts) < 2 or not served.knows(parts[0]):
            self._say(HTTPStatus.NOT_FOUND, "there is no such page; `tpujob top --open` prints the address")
            return
        try:
            if parts[1:] == [""]:
                self._send(served.table())
            elif parts[1] == "run" and len(parts) == 4 and not parts[3]:
                self._send(served.run(parts[2]))
            elif parts[1] == "run" and len(parts) == 4 and (file := served.file(parts[2], parts[3])) is not None:
                self._send_file(file, parts[3].rpartition("/")[2])
            else:
                self._say(HTTPStatus.NOT_FOUND, "there is no such page")
        except TpujobError as error:
            self._say(HTTPStatus.NOT_FOUND, error.message)
        except Exception as error:  # else the browser has no page, and the terminal a traceback
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")

    do_HEAD = do_GET

    def _send(self, page: str) -> None:
        data = page.encode("utf-8", "replace")
        self._begin(HTTPStatus.OK, {"Content-Type": "text/html; charset=utf-8"}, data)

    def _say(self, status: HTTPStatus, text: str) -> None:
        data = f"{text}\n".encode("utf-8", "replace")
        self._begin(status, {"Content-Type": "text/plain; charset=utf-8"}, data)

    def _send_file(self, file: BinaryIO, name: str) -> None:
        with file:
            size = os.fstat(file.fileno()).st_size
            shown = urllib.parse.quote(name, safe="", errors="surrogateescape")
            more = {"Content-Length": str(size), "Content-Disposition": f"attachment; filename*=UTF-8''{shown}"}
            self._begin(HTTPStatus.OK, AS_FILE | more)
            while size > 0 and (piece := file.read(min(PIECE_BYTES, size))):
                self._write(piece)
                size -= len(piece)
            self.close_connection = size > 0  # it got shorter meanwhile

    def _begin(self, status: HTTPStatus, headers: dict[str, str], data: bytes | None = None) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, **headers}.items():
            self.send_header(name, value)
        if data is not None:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self._write(data or b"")

    def _write(self, data: bytes) -> None:
        if self.command != "HEAD":
            with contextlib.suppress(OSError):  # the browser left
                self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a request for each renewal would hide everything else."""


@contextlib.contextmanager
def serving(open_session: OpenSession) -> Iterator[Served]:
    """Serve for a `with` block."""
    with contextlib.closing(Watch(open_session)) as watch, contextlib.closing(Served(open_session, watch)) as served:
        yield served


@contextlib.contextmanager
def opener(directory: Path, address: str) -> Iterator[Path]:
    """Give a `with` block a file of this user that leads a browser to the address, so that no other user learns its token."""
    # Every user of the machine sees the words of a command, such as an address.
    path = directory / f"top-{os.getpid()}.html"
    leads = f'<meta http-equiv="refresh" content="0; url={address}">'
    whole_file.replace(path, f'<!DOCTYPE html><meta charset="utf-8"><title>tpujob top</title>{leads}\n')
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
