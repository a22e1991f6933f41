"""Objects in Cloud Storage over a connection that breaks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from orchestrator.vm.cloud_storage import Storage

CONTENT = bytes(range(256)) * 1000


class Bucket(ThreadingHTTPServer):
    """It holds one object, and cuts so many of the first downloads in the middle."""

    cuts, asked = 0, 0


class _Handler(BaseHTTPRequestHandler):
    server: Bucket

    def do_GET(self) -> None:
        self.server.asked += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[: len(CONTENT) // 2 if self.server.asked <= self.server.cuts else None])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with Bucket(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def storage(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setattr("orchestrator.vm.cloud_storage.FIRST_PAUSE_S", 0.0)
    return Storage({"STORAGE_EMULATOR_HOST": f"127.0.0.1:{bucket.server_port}"})


def test_a_download_that_is_cut_is_tried_again(bucket: Bucket, storage: Storage, tmp_path: Path) -> None:
    bucket.cuts = 2
    assert storage.fetch("b", "code.tar.gz", tmp_path / "code") is None
    assert (tmp_path / "code").read_bytes() == CONTENT and bucket.asked == 3


def test_one_that_is_always_cut_says_so(bucket: Bucket, storage: Storage, tmp_path: Path) -> None:
    bucket.cuts = 100
    assert storage.fetch("b", "code.tar.gz", tmp_path / "code") == "the connection broke off"
