"""Which servers a failed setup cannot reach: real sockets on loopback, real pip for its configuration."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.vm import egress
from tests.ports import held_port, serving
from tests.waiting import HANG_S

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


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return what `unreachable` says of a log, with these variables and no others of pip, uv and proxies."""
    monkeypatch.setattr(egress, "PIP_S", HANG_S)  # pip takes its time on a slow machine

    def found(text: str, **variables: str) -> list[str]:
        (tmp_path / "log").write_text(text)
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull, **variables}
        return egress.unreachable(tmp_path / "log", environment, tmp_path)

    return found


def test_an_index_that_refuses_is_named_and_one_that_answers_is_not(
    look: Callable[..., list[str]], serve: Callable[[bytes], int], closed: int
) -> None:
    there = serve(b"")
    indexes = {
        "PIP_INDEX_URL": f"http://user:se@cret@127.0.0.1:{there}/simple",
        "PIP_EXTRA_INDEX_URL": f"http://127.0.0.1:{closed}/simple",
    }
    assert look(RETRYING, **indexes) == [f"127.0.0.1:{closed} (connection refused)"]
    assert look("ERROR: Could not find a version that satisfies alpha (from versions: none)\n", **indexes)
    assert look(RETRYING, PIP_INDEX_URL=indexes["PIP_INDEX_URL"]) == []


def test_a_failure_that_says_nothing_of_a_connection_is_the_setups_own(
    look: Callable[..., list[str]], closed: int
) -> None:
    text = "ERROR: Could not find a version for alpha (from versions: 1, 2)\nmake: *** [all] Error 2\n"
    assert look(text, PIP_INDEX_URL=f"http://127.0.0.1:{closed}/simple") == []


@pytest.mark.parametrize("line", [
    "fatal: unable to access 'https://git.invalid/repo/': Could not resolve host: git.invalid",
    "curl: (7) Failed to connect to git.invalid port 443 after 3 ms: Connection refused",
    "E: Could not resolve 'git.invalid'", "wget: unable to resolve host address 'git.invalid'",
    "ssh: Could not resolve hostname git.invalid: Name or service not known",
    "Retrying after connection broken by 'NameResolutionError(\"HTTPSConnection(host='git.invalid', port=443): ...",
    "  Caused by: error sending request for url (https://git.invalid/simple/alpha/)",
])  # fmt: skip
def test_a_server_that_the_output_names_is_tried_in_place_of_the_indexes(
    look: Callable[..., list[str]], closed: int, line: str
) -> None:
    proxy = f"http://127.0.0.1:{closed}"
    found = look(f"building\n{line}\n", HTTPS_PROXY=proxy, PIP_INDEX_URL=f"http://127.0.0.1:{closed}/simple")
    assert found == [f"git.invalid:443 (the proxy 127.0.0.1:{closed}: connection refused)"]


@pytest.mark.ci
@pytest.mark.parametrize("line", ["Could not resolve com.example:lib:1.0.", "failed to resolve settings.yaml"])
def test_what_is_resolved_and_is_no_host_is_no_server(look: Callable[..., list[str]], closed: int, line: str) -> None:
    assert look(f"{line}\n", HTTPS_PROXY=f"http://127.0.0.1:{closed}", PIP_NO_INDEX="1") == []


def test_a_server_of_the_job_itself_is_no_route_out(look: Callable[..., list[str]], closed: int) -> None:
    text = f"curl: (7) Failed to connect to localhost port {closed} after 0 ms: Connection refused\n"
    assert look(text, PIP_INDEX_URL=f"http://127.0.0.1:{closed}/simple") == []


@pytest.mark.ci
@pytest.mark.parametrize(("answer", "expected"), [
    (b"HTTP/1.1 200 Connection established\r\n\r\n", []),
    (b"HTTP/1.1 403 Forbidden\r\n\r\n", ["index.invalid:443 (the proxy 127.0.0.1:{} answers 403)"]),
    (b"nonsense", ["index.invalid:443 (the proxy 127.0.0.1:{} answers nothing)"]),
])  # fmt: skip
def test_a_proxy_is_asked_for_the_connection(
    look: Callable[..., list[str]], serve: Callable[[bytes], int], answer: bytes, expected: list[str]
) -> None:
    port = serve(answer)
    found = look(RETRYING, PIP_INDEX_URL="https://index.invalid/simple", https_proxy=f"http://127.0.0.1:{port}")
    assert found == [text.format(port) for text in expected]


@pytest.mark.ci
def test_the_default_of_pip_is_tried_where_nothing_is_configured(look: Callable[..., list[str]], closed: int) -> None:
    (found,) = look(RETRYING, HTTPS_PROXY=f"http://127.0.0.1:{closed}")
    assert found.endswith(f":443 (the proxy 127.0.0.1:{closed}: connection refused)")
    assert look(RETRYING, HTTPS_PROXY=f"http://127.0.0.1:{closed}", PIP_NO_INDEX="1") == []


@pytest.mark.ci
def test_indexes_of_uv_count_by_variable_and_by_file(
    look: Callable[..., list[str]], tmp_path: Path, closed: int
) -> None:
    refused = [f"127.0.0.1:{closed} (connection refused)"]
    index = f"http://127.0.0.1:{closed}/simple"
    assert look(RETRYING, PIP_NO_INDEX="1", UV_INDEX=f"mine={index}") == refused
    (tmp_path / ".config" / "uv").mkdir(parents=True)
    (tmp_path / ".config" / "uv" / "uv.toml").write_text(f'[[index]]\nname = "mine"\nurl = "{index}"\n')
    assert look(RETRYING, PIP_NO_INDEX="1") == refused


def test_a_server_that_never_answers_costs_no_more_than_its_time(
    look: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress, "TRY_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        proxy = f"http://127.0.0.1:{silent.getsockname()[1]}"
        (found,) = look("dns error\n  https://slow.invalid/ timed out\n", https_proxy=proxy)
    assert found.startswith("slow.invalid:443 (") and "no answer" in found
