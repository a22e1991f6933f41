"""The page of `top --open`: who is answered, with what, and what is never shown."""

from __future__ import annotations

import http.client
import os
import socket
import struct
import threading
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from orchestrator.api.live import serving
from orchestrator.api.live.serving import Served, open_below
from tests.unit.api.live.served import served
from tests.unit.report.page.test_page import HOSTILE, hostile_run
from tests.unit.report.page.world import World, plain_run
from tests.waiting import HANG_S


def asked(
    server: Served, path: str = "", *, method: str = "GET", headers: dict[str, str] | None = None, token: bool = True
) -> tuple[http.client.HTTPResponse, str]:
    address = urllib.parse.urlsplit(server.address)
    connection = http.client.HTTPConnection(address.netloc, timeout=20)
    try:
        connection.request(method, (address.path if token else "/") + path, headers=headers or {})
        answer = connection.getresponse()
        return answer, answer.read().decode(errors="replace")
    finally:
        connection.close()


def going_on(directory: Path) -> World:
    world = World(directory)
    world.work(world.begin(), 30.0)
    world.metrics({"step": step, "loss": 1 / step} for step in range(1, 50))
    return world


def test_the_table_and_the_page_of_a_run_are_served(tmp_path: Path) -> None:
    world = going_on(tmp_path / "a")
    with served(world, step=49) as server:
        answer, table = asked(server)
        assert answer.status == 200 and f'href="run/{world.run}/"' in table and "mnist" in table
        answer, page = asked(server, f"run/{world.run}/")
        assert answer.status == 200 and 'data-renews="3000"' in page and "This page does not change" not in page
        assert answer.headers["Cache-Control"] == "no-store"


def test_the_page_of_a_run_that_has_ended_asks_no_more(tmp_path: Path) -> None:
    world = plain_run(tmp_path / "a")
    with served(world) as server:
        _, page = asked(server, f"run/{world.run}/")
        assert "data-renews" not in page.partition(">")[0] + page[:400] and "connect-src &#39;self&#39;" in page


def test_the_page_of_a_run_of_a_queue_goes_on_after_an_attempt(tmp_path: Path) -> None:
    world = plain_run(tmp_path / "a")
    with served(world, awaited=(world.run,)) as server:
        assert 'data-renews="3000"' in asked(server, f"run/{world.run}/")[1]


def test_who_leaves_in_the_middle_of_a_request_leaves_no_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = threading.Semaphore(0)
    finish = serving._Server.shutdown_request
    monkeypatch.setattr(
        serving._Server, "shutdown_request", lambda self, request: (finish(self, request), gone.release())
    )
    with served(plain_run(tmp_path / "a")) as server:
        address = urllib.parse.urlsplit(server.address)
        for word in (b"", b"GET /x/ HTTP/1.0\r\n"):
            raw = socket.create_connection((address.hostname or "", address.port or 0), timeout=20)
            raw.sendall(word)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            raw.close()
            assert gone.acquire(timeout=HANG_S)
    assert capfd.readouterr().err == ""


def test_an_address_that_is_none_and_a_page_that_cannot_be_made_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Else each such request would write a traceback over the terminal in which `top` runs."""

    def broken(*_: Any, **__: Any) -> str:
        raise OSError("the disk is gone")

    with served(world := going_on(tmp_path / "a")) as server:
        address = urllib.parse.urlsplit(server.address)
        with socket.create_connection((address.hostname or "", address.port or 0), timeout=20) as raw:
            raw.sendall(f"GET http://[ HTTP/1.0\r\nHost: {address.netloc}\r\n\r\n".encode())
            assert b" 404 " in raw.makefile("rb").readline()
        monkeypatch.setattr(serving.pages, "live_page", broken)
        answer, text = asked(server, f"run/{world.run}/")
        assert answer.status == 500 and text == "OSError: the disk is gone\n"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1.evil.example:1", ""])
def test_another_name_of_the_host_is_refused(tmp_path: Path, host: str) -> None:
    with served(plain_run(tmp_path / "a")) as server:
        answer, said = asked(server, headers={"Host": host})
        assert answer.status == 421 and "mnist" not in said


def test_localhost_is_the_same_host(tmp_path: Path) -> None:
    with served(plain_run(tmp_path / "a")) as server:
        port = urllib.parse.urlsplit(server.address).port
        assert asked(server, headers={"Host": f"localhost:{port}"})[0].status == 200


@pytest.mark.parametrize("path", ["", "x/", "run/7q2mabcdef/", "../", "%2e%2e/", "a" * 43 + "/"])
def test_without_the_token_nothing_is_there(tmp_path: Path, path: str) -> None:
    with served(plain_run(tmp_path / "a")) as server:
        answer, said = asked(server, path, token=False)
        assert answer.status == 404 and "mnist" not in said


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(tmp_path: Path, method: str) -> None:
    with served(plain_run(tmp_path / "a")) as server:
        assert asked(server, method=method)[0].status == 501


def test_another_page_of_the_browser_cannot_ask_but_may_lead_here(tmp_path: Path) -> None:
    with served(plain_run(tmp_path / "a")) as server:
        assert asked(server, headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"})[0].status == 403
        assert asked(server, headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})[0].status == 200


def test_it_listens_on_loopback_only(tmp_path: Path) -> None:
    with served(plain_run(tmp_path / "a")) as server:
        assert server._server.socket.getsockname()[0] == "127.0.0.1"
        assert server._server.socket.family is socket.AF_INET


def test_a_file_of_a_job_is_downloaded_and_never_shown(tmp_path: Path) -> None:
    world = plain_run(tmp_path / "a")
    world.write("worker0/artifacts/page.html", "<script>alert(1)</script>")
    with served(world) as server:
        answer, said = asked(server, f"run/{world.run}/worker0/artifacts/page.html")
    assert (answer.status, said) == (200, "<script>alert(1)</script>")
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"].startswith("attachment;")
    assert "sandbox" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    "path", ["../a.sqlite3", "%2e%2e/a.sqlite3", "link", "worker0/out/secret", "worker0", "", "a//b", "fifo"]
)
def test_only_files_of_the_run_are_given(tmp_path: Path, path: str) -> None:
    world = plain_run(tmp_path / "a")
    (tmp_path / "secret").write_text("secret")
    (world.directory / "link").symlink_to(tmp_path / "secret")
    (world.directory / "worker0" / "out").symlink_to(tmp_path)
    os.mkfifo(world.directory / "fifo")
    assert open_below(world.directory, urllib.parse.unquote(path)) is None
    with served(world) as server:
        answer, said = asked(server, f"run/{world.run}/{path}")
        assert "secret" not in said and (answer.status == 404 or path == "")


def test_an_unknown_run_is_a_page_that_is_not_there(tmp_path: Path) -> None:
    with served(plain_run(tmp_path / "a")) as server:
        assert asked(server, "run/nothing/")[0].status == 404


def test_nothing_that_a_job_says_becomes_markup(tmp_path: Path) -> None:
    world = hostile_run(tmp_path / "a")
    fields: dict[str, Any] = {
        "metric": HOSTILE,
        "remark": HOSTILE,
        "zone": HOSTILE,
        "rate": 1.0,
        "rate_of": HOSTILE,
        "value": 2.0,
    }
    with served(world, **fields) as server:
        for page in (asked(server)[1], asked(server, f"run/{world.run}/")[1]):
            assert "<img" not in page and page.count("<script") == page.count("</script>") <= 2
            assert "owned" in page, "it is shown, as text"


def test_no_page_has_a_secret(tmp_path: Path) -> None:
    world = plain_run(tmp_path / "a")
    world.write("logs/worker0.log", "token hunter2-of-the-job\n")
    with served(world, secrets=("hunter2-of-the-job",), remark="says hunter2-of-the-job") as server:
        for page in (asked(server)[1], asked(server, f"run/{world.run}/")[1]):
            assert "hunter2" not in page


def test_it_ends_when_nothing_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(serving.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(serving.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    with served(plain_run(tmp_path / "a")) as server:
        server.wait(3600)
        assert now[0] == 3700.0, "an hour after its start"
        server.knows(server.address.split("/")[3])
        server.wait(3600)
        assert now[0] == 7300.0, "an hour after the last look"
        server.knows("guessed")
        server.wait(3600)
        assert now[0] == 7300.0, "a guess is no look"


def test_a_browser_is_led_there_by_a_file_of_this_user(tmp_path: Path) -> None:
    with serving.opener(tmp_path, "http://127.0.0.1:1/token/") as path:
        assert path.stat().st_mode & 0o077 == 0 and "url=http://127.0.0.1:1/token/" in path.read_text()
    assert not path.exists()
