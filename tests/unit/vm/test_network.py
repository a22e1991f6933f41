"""What a worker reaches: Cloud Storage over a connection that breaks, and the servers of a failed setup."""

import contextlib
import http.client
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pytest

from orchestrator.vm.buckets import cloud_storage, upload
from orchestrator.vm.buckets.cloud_storage import ACCOUNT_PATH, TOO_LONG, Storage, Transient
from orchestrator.vm.environment import egress
from tests.fakes.api import Request, StubApi, StubReply
from tests.fakes.clock import Clock
from tests.waiting import HANG_S, held_port, serving, until

RETRYING = "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(': /simple/alpha/'\n"


@pytest.fixture
def closed() -> Iterator[int]:
    """A port that refuses connections, and that no other program gets."""
    with held_port() as number:
        yield number


@pytest.fixture
def serve() -> Iterator[Callable[[bytes], int]]:
    """Start a server that reads a request and sends this; return its port."""
    with contextlib.ExitStack() as servers:
        yield lambda answer: servers.enter_context(
            serving(lambda peer: (peer.recv(1000), peer.sendall(answer)) if answer else None)
        )


Look = Callable[..., list[str]]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Return what `unreachable` says of a log, with these variables and no others of pip, uv and proxies."""
    monkeypatch.setattr(egress, "PIP_S", HANG_S)  # pip takes its time on a slow machine

    def found(text: str, **variables: str) -> list[str]:
        (tmp_path / "log").write_text(text)
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull, **variables}
        return egress.unreachable(tmp_path / "log", environment, tmp_path)

    return found


def test_an_index_that_refuses_is_named_and_one_that_answers_is_not(
    look: Look, serve: Callable[[bytes], int], closed: int
) -> None:
    there = serve(b"")
    indexes = {
        "PIP_INDEX_URL": f"http://user:se@cret@127.0.0.1:{there}/simple",
        "PIP_EXTRA_INDEX_URL": f"http://127.0.0.1:{closed}/simple",
    }
    assert look(RETRYING, **indexes) == [f"127.0.0.1:{closed} (connection refused)"]
    assert look("ERROR: Could not find a version that satisfies alpha (from versions: none)\n", **indexes)
    assert look(RETRYING, PIP_INDEX_URL=indexes["PIP_INDEX_URL"]) == []


@pytest.mark.parametrize("text", [
    "ERROR: Could not find a version for alpha (from versions: 1, 2)\nmake: *** [all] Error 2\n",
    "curl: (7) Failed to connect to localhost port {closed} after 0 ms: Connection refused\n",  # a server of the job itself
])  # fmt: skip
def test_a_failure_that_says_nothing_of_a_connection_out_is_the_setups_own(look: Look, closed: int, text: str) -> None:
    assert look(text.replace("{closed}", str(closed)), PIP_INDEX_URL=f"http://127.0.0.1:{closed}/simple") == []


@pytest.mark.parametrize("line", [
    "fatal: unable to access 'https://git.invalid/repo/': Could not resolve host: git.invalid",
    "curl: (7) Failed to connect to git.invalid port 443 after 3 ms: Connection refused",
    "E: Could not resolve 'git.invalid'", "wget: unable to resolve host address 'git.invalid'",
    "ssh: Could not resolve hostname git.invalid: Name or service not known",
    "Retrying after connection broken by 'NameResolutionError(\"HTTPSConnection(host='git.invalid', port=443): ...",
    "  Caused by: error sending request for url (https://git.invalid/simple/alpha/)",
])  # fmt: skip
def test_a_server_that_the_output_names_is_tried_in_place_of_the_indexes(look: Look, closed: int, line: str) -> None:
    proxy = f"http://127.0.0.1:{closed}"
    found = look(f"building\n{line}\n", HTTPS_PROXY=proxy, PIP_INDEX_URL=f"http://127.0.0.1:{closed}/simple")
    assert found == [f"git.invalid:443 (the proxy 127.0.0.1:{closed}: connection refused)"]


@pytest.mark.ci
@pytest.mark.parametrize("line", ["Could not resolve com.example:lib:1.0.", "failed to resolve settings.yaml"])
def test_what_is_resolved_and_is_no_host_is_no_server(look: Look, closed: int, line: str) -> None:
    assert look(f"{line}\n", HTTPS_PROXY=f"http://127.0.0.1:{closed}", PIP_NO_INDEX="1") == []


@pytest.mark.ci
@pytest.mark.parametrize(("answer", "expected"), [
    (b"HTTP/1.1 200 Connection established\r\n\r\n", []),
    (b"HTTP/1.1 403 Forbidden\r\n\r\n", ["index.invalid:443 (the proxy 127.0.0.1:{} answers 403)"]),
    (b"nonsense", ["index.invalid:443 (the proxy 127.0.0.1:{} answers nothing)"]),
])  # fmt: skip
def test_a_proxy_is_asked_for_the_connection(
    look: Look, serve: Callable[[bytes], int], answer: bytes, expected: list[str]
) -> None:
    port = serve(answer)
    found = look(RETRYING, PIP_INDEX_URL="https://index.invalid/simple", https_proxy=f"http://127.0.0.1:{port}")
    assert found == [text.format(port) for text in expected]


@pytest.mark.ci
def test_the_default_of_pip_is_tried_where_nothing_is_configured(look: Look, closed: int) -> None:
    (found,) = look(RETRYING, HTTPS_PROXY=f"http://127.0.0.1:{closed}")
    assert found.endswith(f":443 (the proxy 127.0.0.1:{closed}: connection refused)")
    assert look(RETRYING, HTTPS_PROXY=f"http://127.0.0.1:{closed}", PIP_NO_INDEX="1") == []


@pytest.mark.ci
def test_indexes_of_uv_count_by_variable_and_by_file(look: Look, tmp_path: Path, closed: int) -> None:
    refused = [f"127.0.0.1:{closed} (connection refused)"]
    index = f"http://127.0.0.1:{closed}/simple"
    assert look(RETRYING, PIP_NO_INDEX="1", UV_INDEX=f"mine={index}") == refused
    (tmp_path / ".config" / "uv").mkdir(parents=True)
    (tmp_path / ".config" / "uv" / "uv.toml").write_text(f'[[index]]\nname = "mine"\nurl = "{index}"\n')
    assert look(RETRYING, PIP_NO_INDEX="1") == refused


def test_a_server_that_never_answers_costs_no_more_than_its_time(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "TRY_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        proxy = f"http://127.0.0.1:{silent.getsockname()[1]}"
        (found,) = look("dns error\n  https://slow.invalid/ timed out\n", https_proxy=proxy)
    assert found.startswith("slow.invalid:443 (") and "no answer" in found


CONTENT = bytes(range(256)) * 1000


class Bucket:
    """It holds one object, cuts so many of the first downloads in the middle, and has no token and takes nothing at first."""

    cuts, unready = 0, 0

    def __init__(self, stub: StubApi) -> None:
        self.stub, self.address = stub, stub.url.partition("://")[2]
        stub.answer_with = self.answer

    @property
    def asked(self) -> int:
        return len(self.stub.asked)

    def answer(self, request: Request) -> StubReply:
        if request.method == "POST" or request.path == f"{ACCOUNT_PATH}/token":
            found = {} if request.method == "POST" else {"access_token": "secret"}
            return StubReply(503 if self.asked <= self.unready else 200, found)
        return StubReply(
            200, CONTENT[: len(CONTENT) // 2 if self.asked <= self.cuts else None], claimed_bytes=len(CONTENT)
        )


@pytest.fixture
def bucket(stub: StubApi) -> Bucket:
    return Bucket(stub)


@pytest.fixture
def storage(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setattr("orchestrator.vm.buckets.cloud_storage.FIRST_PAUSE_S", 0.0)
    return Storage({"STORAGE_EMULATOR_HOST": bucket.address})


def test_a_download_that_is_cut_is_tried_again(bucket: Bucket, storage: Storage, tmp_path: Path) -> None:
    bucket.cuts = 2
    assert storage.fetch("b", "code.tar.gz", tmp_path / "code") is None
    assert (tmp_path / "code").read_bytes() == CONTENT and bucket.asked == 3


def test_one_that_is_always_cut_says_so(bucket: Bucket, storage: Storage, tmp_path: Path) -> None:
    bucket.cuts = 100
    assert storage.fetch("b", "code.tar.gz", tmp_path / "code") == "the connection broke off"


def test_a_network_that_swallows_everything_is_left_when_the_time_is_over(tmp_path: Path) -> None:
    """The time is over early after SIGTERM, which a pod has 60 s for."""
    (tmp_path / "file").write_bytes(b"x")
    left_s, found = [1000.0], []
    with socket.create_server(("127.0.0.1", 0)) as swallowing:
        storage = Storage({"STORAGE_EMULATOR_HOST": f"127.0.0.1:{swallowing.getsockname()[1]}"}, lambda: left_s[0])
        sending = threading.Thread(target=lambda: found.append(storage.send("b", "n", tmp_path / "file")), daemon=True)
        sending.start()
        with swallowing.accept()[0]:
            left_s[0] = 0.0
            sending.join(HANG_S)
            assert found == [TOO_LONG]


def test_a_connection_that_hangs_is_left_and_the_next_one_is_alone_with_the_file(
    bucket: Bucket, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name has many addresses, and each may hang."""
    monkeypatch.setattr(cloud_storage, "CONNECT_S", 0.2)
    connect, hangs = http.client.HTTPConnection.connect, iter([threading.Event()])
    released: list[threading.Event] = []
    late = []

    def connect_late(connection: http.client.HTTPConnection) -> None:
        for event in hangs:
            released.append(event)
            late.append(connection)
            event.wait()
        connect(connection)

    monkeypatch.setattr(http.client.HTTPConnection, "connect", connect_late)
    assert storage.fetch("b", "code.tar.gz", tmp_path / "code") is None
    assert bucket.asked == 1
    released[0].set()
    until(lambda: [each for each in threading.enumerate() if each.name == "storage"] == [], "the end of the first try")
    assert bucket.asked == 1 and late[0].sock is None


def test_one_that_never_connects_says_so(storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_storage, "CONNECT_S", 0.0)
    monkeypatch.setattr(cloud_storage, "LOOK_S", 0.001)
    over = threading.Event()
    monkeypatch.setattr(http.client.HTTPConnection, "connect", lambda self: over.wait())
    assert storage.fetch("b", "n", tmp_path / "x") == "no connection in 0 s"
    assert storage.failures == 1
    over.set()


@pytest.mark.parametrize(("name", "path", "why"), [
    ("n", "missing", "No such file or directory"),
    ("\udcff", "file", "its name is not in UTF-8, as Cloud Storage wants it"),
])  # fmt: skip
def test_what_is_wrong_here_is_not_tried_again(
    bucket: Bucket, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, path: str, why: str
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    pauses: list[float] = []
    monkeypatch.setattr(cloud_storage, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pauses.append))
    assert storage.send("b", name, tmp_path / path) == why
    assert not pauses and not bucket.asked


def test_a_bucket_that_takes_nothing_is_not_asked_for_each_file(
    bucket: Bucket, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud_storage, "TRIES", 2)
    bucket.unready = 1000
    files = [{"path": name} for name in "abcdefgh"]
    for each in files:
        (tmp_path / each["path"]).write_bytes(b"x")
    said: list[str] = []
    failed = upload.copy(tmp_path, files, "gs://b/p", "0", storage, said.append)
    assert failed == [(name, "HTTP 503 {}") for name in "abcdefgh"] and len(said) == 8
    assert bucket.asked == 2 + 1 + 1


def test_one_that_works_again_gets_the_rest(bucket: Bucket, storage: Storage, tmp_path: Path) -> None:
    bucket.unready = cloud_storage.TRIES + 1
    files = [{"path": name} for name in "abcd"]
    for each in files:
        (tmp_path / each["path"]).write_bytes(b"x")
    failed = upload.copy(tmp_path, files, "gs://b/p", "0", storage, lambda text: None)
    assert [path for path, _ in failed] == ["a", "b"] and storage.failures == 0


@pytest.mark.parametrize(("patterns", "code"), [("[]", 0), ('["../x"]', 1)])
def test_names_that_no_bucket_takes_are_escaped_and_only_a_file_that_stays_is_a_failure(
    bucket: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    patterns: str,
    code: int,
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.stub.url)
    monkeypatch.setattr(upload, "PhaseFiles", lambda *_: SimpleNamespace(run=str(tmp_path)))
    (tmp_path / "artifacts").mkdir()
    for name in (b"a\nb", b"c\xff", "é \\".encode()):
        (tmp_path / "artifacts" / os.fsdecode(name)).write_bytes(b"x")
    (tmp_path / "artifacts" / "link\udcff").symlink_to(".")
    with pytest.raises(SystemExit) as end:
        upload.upload("a1", "gs://b/p", patterns, "0")
    assert end.value.code == code and "3 of 3 files copied" in capfd.readouterr().out
    names = {unquote(path.partition("name=")[2]) for path in (each.path for each in bucket.stub.asked)}
    assert names == {"p/worker0/artifacts/" + name for name in ("a%0Ab", "c%FF", "é \\")}


def test_a_token_that_a_new_node_has_not_yet_is_waited_for(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_storage, "TOKEN_PAUSE_S", 0.0)
    bucket.unready = 8
    storage = Storage({"GCE_METADATA_HOST": bucket.address})
    assert storage._token() == "secret" and bucket.asked == 9


def test_one_that_does_not_come_is_said_and_then_asked_for_once(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud_storage, "time", Clock())
    bucket.unready = 1000
    storage = Storage({"GCE_METADATA_HOST": bucket.address})
    for asked in (61, 62):
        with pytest.raises(Transient, match="the metadata server gave no token: HTTP 503"):
            storage._token()
        assert bucket.asked == asked
