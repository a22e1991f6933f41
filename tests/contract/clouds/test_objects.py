"""Objects of the emulated Cloud Storage: what a client sends up comes down, once, whole and to nothing but this user."""

from __future__ import annotations

import hashlib
import http.client
import os
from pathlib import Path

import pytest

from orchestrator.errors import AlreadyExists, CloudUnavailable
from orchestrator.places.google.error_translation import NotFound
from orchestrator.places.google.objects import Objects, RunResults
from orchestrator.vm.cloud_storage import Storage
from tests.emulator_fixture import Emulator
from tests.ports import held_port
from tests.unit.places.stub_api import Request, StubApi, StubReply


@pytest.fixture
def objects(shared_emulator: Emulator) -> Objects:
    return Objects(emulator=shared_emulator.url)


def test_what_goes_up_comes_down_and_is_listed_until_it_is_deleted(objects: Objects, tmp_path: Path) -> None:
    url, content = "gs://my-bucket/runs/a b/r1/code+ö.tar.gz", os.urandom(5 << 20)
    (tmp_path / "code").write_bytes(content)
    objects.upload(url, tmp_path / "code")
    assert hashlib.sha256(b"".join(objects.download(url))).digest() == hashlib.sha256(content).digest()
    (found,) = objects.list("gs://my-bucket/runs/a b/")
    assert (found.name, found.size_bytes) == ("runs/a b/r1/code+ö.tar.gz", 5 << 20)
    assert objects.list("gs://my-bucket/other/") == []
    objects.delete(url)
    objects.delete(url)
    assert objects.list("gs://my-bucket/runs/a b/") == []
    with pytest.raises(NotFound, match=r"gs://my-bucket/runs/a b/r1/code\+ö.tar.gz does not exist"):
        b"".join(objects.download(url))


def test_an_upload_again_has_no_second_effect_and_another_content_is_refused(objects: Objects, tmp_path: Path) -> None:
    url = "gs://my-bucket/again/code"
    (tmp_path / "code").write_bytes(b"one")
    objects.upload(url, tmp_path / "code")
    objects.upload(url, tmp_path / "code")
    (tmp_path / "code").write_bytes(b"two")
    with pytest.raises(AlreadyExists, match="another content"):
        objects.upload(url, tmp_path / "code")
    assert b"".join(objects.download(url)) == b"one"


def test_a_list_has_every_page(objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.places.google.objects.PAGE", 2)
    (tmp_path / "x").write_bytes(b"")
    for name in "abcde":
        objects.upload(f"gs://pages/all/{name}", tmp_path / "x")
    assert [each.name for each in objects.list("gs://pages/all/")] == [f"all/{name}" for name in "abcde"]


def test_what_a_pod_sends_is_read_by_worker_and_path(
    objects: Objects, shared_emulator: Emulator, tmp_path: Path
) -> None:
    storage = Storage({"STORAGE_EMULATOR_HOST": shared_emulator.url})
    (tmp_path / "big").write_bytes(b"b" * 3_000_000)
    assert storage.send("results", "runs/r1/worker3/artifacts/big", tmp_path / "big") is None
    assert storage.fetch("results", "runs/r1/worker3/artifacts/big", tmp_path / "back") is None
    assert (tmp_path / "back").read_bytes() == b"b" * 3_000_000
    assert storage.fetch("results", "nothing", tmp_path / "none") == (
        'HTTP 404 {"error": {"code": 404, "message": "No such object: results/nothing", "errors": [{"message": '
        '"No such object: results/nothing", "domain": "global", "reason": "notFound"}]}}'
    )
    read = RunResults(objects, "gs://results/runs/r1").read
    assert b"".join(read(3, "artifacts/big")) == b"b" * 3_000_000


def test_a_storage_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.places.google.objects.FIRST_PAUSE_S", 0.0)
    with held_port() as port, pytest.raises(CloudUnavailable, match="cannot be reached"):
        Objects(emulator=f"127.0.0.1:{port}").delete("gs://b/x")


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Host": "evil.example"}, 403), ({"Origin": "http://evil.example"}, 403), ({"Authorization": "Bearer no"}, 401)],
)
def test_no_web_page_and_no_other_token_reaches_a_bucket(
    shared_emulator: Emulator, headers: dict[str, str], status: int
) -> None:
    connection = http.client.HTTPConnection(shared_emulator.url.partition("://")[2])
    connection.request("GET", "/storage/v1/b/my-bucket/o", headers=headers)
    assert connection.getresponse().status == status
    connection.close()


class Breaking:
    """A storage with one object, whose next replies break off or are none; then they are whole."""

    def __init__(self, stub: StubApi) -> None:
        self.content = os.urandom(3 << 20)
        self.breaks: list[int | None] = []  # after so many bytes; None: a 503
        self.knows_ranges = True
        self.asked: list[str | None] = []
        self.objects = Objects(emulator=stub.url.partition("://")[2])
        stub.answer_with = self.answer

    def answer(self, request: Request) -> StubReply:
        asked, size = request.headers.get("range"), len(self.content)
        self.asked.append(asked)
        most = self.breaks.pop(0) if self.breaks else size
        if most is None:
            return StubReply(503)
        begin = int(asked[len("bytes=") : -1]) if asked and self.knows_ranges else 0
        headers = (("Content-Range", f"bytes {begin}-{size - 1}/{size}"),) if begin else ()
        return StubReply(206 if begin else 200, self.content[begin : begin + most], headers, claimed_bytes=size - begin)


@pytest.fixture
def breaking(stub: StubApi, monkeypatch: pytest.MonkeyPatch) -> Breaking:
    monkeypatch.setattr("orchestrator.places.google.objects.FIRST_PAUSE_S", 0.0)
    return Breaking(stub)


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_a_download_that_breaks_off_is_continued_where_it_was(breaking: Breaking, knows_ranges: bool) -> None:
    breaking.breaks, breaking.knows_ranges = [None, None, 1 << 20, None, None, 1_500_000, None], knows_ranges
    assert b"".join(breaking.objects.download("gs://b/x")) == breaking.content
    assert breaking.asked[:4] == [None, None, None, f"bytes={1 << 20}-"] and not breaking.breaks


def test_one_that_brings_nothing_more_is_given_up(breaking: Breaking) -> None:
    breaking.breaks = [1 << 20, *[None] * 100]
    with pytest.raises(CloudUnavailable):
        b"".join(breaking.objects.download("gs://b/x"))
    assert len(breaking.asked) == 4


def test_the_emulated_storage_sends_the_rest_of_an_object(shared_emulator: Emulator, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"0123456789")
    Objects(emulator=shared_emulator.url).upload("gs://ranges/x", tmp_path / "x")
    connection = http.client.HTTPConnection(shared_emulator.url.partition("://")[2])
    connection.request("GET", "/storage/v1/b/ranges/o/x?alt=media", headers={"Range": "bytes=4-"})
    reply = connection.getresponse()
    assert (reply.status, reply.getheader("Content-Range"), reply.read()) == (206, "bytes 4-9/10", b"456789")
    connection.close()
