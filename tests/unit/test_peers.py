"""Who holds the other end of a connection, by the kernel's word and, where it says nothing, by the list of processes."""

import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from orchestrator import peers
from tests.waiting import HANG_S

NOBODY = 65534


@pytest.fixture(params=["the kernel", "the processes"])
def opened(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    if request.param == "the processes":
        monkeypatch.delattr(socket, "AF_NETLINK", raising=False)
    with ExitStack() as stack:
        yield stack


def listener(opened: ExitStack, host: str = "127.0.0.1") -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return opened.enter_context(socket.create_server((host, 0), family=family))


def accepted(opened: ExitStack, server: socket.socket) -> socket.socket:
    return opened.enter_context(server.accept()[0])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1"])
def test_our_own_process_is_ours(opened: ExitStack, host: str) -> None:
    server = listener(opened, host)
    opened.enter_context(socket.create_connection(server.getsockname()[:2]))
    assert peers.is_ours(accepted(opened, server))


def test_our_own_process_is_ours_by_an_ipv6_socket_to_an_ipv4_address(opened: ExitStack) -> None:
    server = listener(opened)
    client = opened.enter_context(socket.socket(socket.AF_INET6))
    client.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
    assert peers.is_ours(accepted(opened, server))


def test_to_another_user_we_are_not_theirs_even_as_root(opened: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    server = listener(opened)
    opened.enter_context(socket.create_connection(server.getsockname()))
    connection = accepted(opened, server)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY - 1)
    assert not peers.is_ours(connection)


def test_a_connection_that_its_process_closed_is_nobodys(opened: ExitStack) -> None:
    server = listener(opened)
    with socket.create_connection(server.getsockname()) as client:
        connection = accepted(opened, server)
        client.sendall(b"PUT")
    assert not peers.is_ours(connection)
    assert connection.recv(3) == b"PUT", "and yet it can be read"


def test_a_connection_that_was_reset_is_nobodys_even_when_we_take_its_port(opened: ExitStack) -> None:
    server = listener(opened)
    client = socket.socket()
    client.bind((f"127.1.{os.getpid() >> 8 & 255}.{os.getpid() & 255}", 0))  # no other test may take its port
    client.connect(server.getsockname())
    name, connection = client.getsockname(), accepted(opened, server)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.sendall(b"PUT")
    client.close()
    ours = opened.enter_context(socket.socket())
    ours.bind(name)
    ours.connect(server.getsockname())
    assert not peers.is_ours(connection)
    assert connection.recv(3) == b"PUT"
    assert peers.is_ours(accepted(opened, server))


def test_a_process_of_another_user_is_not_ours(opened: ExitStack) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    server = listener(opened)
    script = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}; read -r -u 3"
    argv = ["/bin/bash", "-c", script]
    with subprocess.Popen(argv, cwd="/", user=NOBODY, group=NOBODY, extra_groups=[]) as theirs:
        connection = accepted(opened, server)
        assert not peers.is_ours(connection)
        connection.close()
    assert theirs.returncode == 1, "it waited for our answer"


def test_where_only_the_processes_can_be_asked_a_closed_connection_costs_no_look_at_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "_held_by_us", lambda *_: None)
    monkeypatch.setattr(peers, "_held_by_a_process", lambda *_: pytest.fail("it looked"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        with server.accept()[0] as connection:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            assert not peers.is_ours(connection)


# -- from the client's end -------------------------------------------------------------------------------------------


def test_a_server_of_ours_is_expected_until_it_accepts(opened: ExitStack) -> None:
    server = listener(opened)
    client = opened.enter_context(socket.create_connection(server.getsockname()))
    with pytest.raises(TimeoutError):
        peers.expect_ours(client, timeout_s=0)
    accepted(opened, server)
    peers.expect_ours(client, timeout_s=HANG_S)


def test_a_server_that_is_gone_is_not_waited_for(opened: ExitStack) -> None:
    server = listener(opened)
    client = opened.enter_context(socket.create_connection(server.getsockname()))
    server.close()
    with pytest.raises(OSError) as gone:
        peers.expect_ours(client, timeout_s=HANG_S)
    assert not isinstance(gone.value, TimeoutError)
