"""Ports of a worker on this machine: bytes, ends of one direction, many at once, slow readers, nothing there, cuts."""

import contextlib
import errno
import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from orchestrator.hosts.fleet.on_workers import RESET
from tests.contract.hosts.fixture import MakeRoad, Slice, one, road
from tests.waiting import HANG_S, held_port, read_all, serving, until

__all__ = ["one", "road"]
MEGABYTE = random.Random(6006).randbytes(1 << 20)


def answer_after_the_end(peer: socket.socket) -> None:
    """Only who has sent everything is answered: this needs the end of one direction alone."""
    peer.sendall(read_all(peer)[::-1])


def call(port: int, text: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as peer:
        sender = threading.Thread(target=lambda: (peer.sendall(text), peer.shutdown(socket.SHUT_WR)), daemon=True)
        sender.start()
        return read_all(peer)


def test_bytes_are_exact_and_the_end_of_one_direction_is_not_that_of_the_other(one: Slice) -> None:
    with serving(answer_after_the_end) as port:
        there = one.fleet().forward(port)
        assert (there.worker, there.port) == (0, port) and there.local != port, "the port is in use here: by the server"
        assert str(there) == f"http://127.0.0.1:{there.local} → worker0:{port} ({port} is in use here)"
        assert call(there.local, MEGABYTE) == MEGABYTE[::-1]


def test_a_line_says_why_the_port_is_another_one_and_nothing_of_one_that_was_asked_for(one: Slice) -> None:
    with serving(answer_after_the_end) as port, held_port() as free:
        asked = one.fleet().forward(port, local=0)
        assert str(asked) == f"http://127.0.0.1:{asked.local} → worker0:{port}"
        shared = one.fleet(shares_loopback=True).forward(free)
        assert str(shared).endswith(f" → worker0:{free} ({free} here is the worker's own)")


def test_many_connections_at_once_each_get_their_own_bytes(one: Slice) -> None:
    with serving(answer_after_the_end) as port, ThreadPoolExecutor(40) as pool:
        local = one.fleet().forward(port).local
        texts = [MEGABYTE[n : 20_000 + n] for n in range(40)]
        assert list(pool.map(lambda text: call(local, text), texts)) == [text[::-1] for text in texts]


def test_a_connection_that_cannot_be_accepted_ends_only_itself(one: Slice, monkeypatch: pytest.MonkeyPatch) -> None:
    accept, failures = socket.socket.accept, [OSError(errno.EMFILE, "too many open files"), ConnectionAbortedError()]

    def failing(listener: socket.socket) -> tuple[socket.socket, object]:
        if threading.current_thread().name == "forward" and failures:
            raise failures.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    with serving(answer_after_the_end) as port:
        local = one.fleet().forward(port).local
        assert call(local, b"hello") == b"olleh"
    assert not failures


def test_a_reader_that_takes_nothing_stops_its_sender_and_no_other_one(one: Slice) -> None:
    sent = [0]

    def send_endlessly(peer: socket.socket) -> None:
        while True:
            sent[0] += peer.send(MEGABYTE)

    fleet = one.fleet()
    with serving(send_endlessly) as endless, serving(answer_after_the_end) as other:
        local = fleet.forward(endless).local
        with socket.create_connection(("127.0.0.1", local)) as slow:
            assert slow.recv(1)
            before = -1
            while sent[0] != before:  # until its buffers are full
                before = sent[0]
                assert call(fleet.forward(other).local, b"meanwhile") == b"elihwnaem"
            assert sent[0] < 64 << 20, "the rest waits on the worker"


def test_a_port_where_nothing_listens_is_closed_at_once_and_said_once(one: Slice) -> None:
    fleet = one.fleet()
    with held_port() as port:
        local = fleet.forward(port, local=0).local
        for _ in range(3):
            with (
                contextlib.suppress(ConnectionError),  # also of `connect`: the reset may come as soon as that
                socket.create_connection(("127.0.0.1", local), timeout=HANG_S) as peer,
            ):
                assert peer.recv(1) == b""
        assert one.notices.count(f"worker0: nothing listens on port {port}") == 1
        with socket.create_server(("127.0.0.1", port)) as server:  # it comes up later
            threading.Thread(target=lambda: server.accept()[0].sendall(b"here"), daemon=True).start()
            with socket.create_connection(("127.0.0.1", local), timeout=HANG_S) as peer:
                assert peer.recv(4) == b"here"


def test_after_a_cut_open_connections_are_reset_and_new_ones_work(one: Slice, road: MakeRoad) -> None:
    way = road(one.workers[0])
    fleet = one.fleet([way.worker], "cut_forward_hosts")
    begun = threading.Event()

    def begin(peer: socket.socket) -> None:
        peer.sendall(b"begun")
        begun.set()
        read_all(peer)

    with serving(begin) as port:
        local = fleet.forward(port).local
        with socket.create_connection(("127.0.0.1", local), timeout=HANG_S) as peer:
            assert peer.recv(5) == b"begun"
            way.cut()
            with pytest.raises(ConnectionResetError):  # not an end, which would mean that this was all
                peer.recv(1)
        with socket.create_connection(("127.0.0.1", local), timeout=HANG_S) as peer:
            assert peer.recv(5) == b"begun"
    assert way.connections == 2


@pytest.mark.exhaustive
def test_a_cut_that_was_not_noticed_costs_the_next_connection_time_alone(
    one: Slice, road: MakeRoad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.hosts.ssh.connection.HANDSHAKE_S", 5.0)
    way = road(one.workers[0])
    with serving(answer_after_the_end) as port:
        local = one.fleet([way.worker], "silent_forward_hosts").forward(port).local
        assert call(local, b"abc") == b"cba"
        way.blocked.set()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(call, local, b"xyz")
            assert way.swallowed.wait(HANG_S)
            way.blocked.clear()
            assert answer.result(HANG_S) == b"zyx"
    assert way.connections == 2


def test_a_client_that_leaves_leaves_nothing_on_the_worker(one: Slice) -> None:
    left = threading.Event()

    def wait_for_end(peer: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer.sendall(MEGABYTE)
        left.set()

    with serving(wait_for_end) as port:
        with socket.create_connection(("127.0.0.1", one.fleet().forward(port).local), timeout=HANG_S) as peer:
            assert peer.recv(1)
        assert left.wait(HANG_S)


def test_a_client_that_is_killed_leaves_nothing_on_a_worker_that_waits_for_it(one: Slice) -> None:
    begun, left = threading.Event(), threading.Event()

    def wait_for_it(peer: socket.socket) -> None:
        begun.set()
        with contextlib.suppress(OSError):
            read_all(peer)
        left.set()

    with serving(wait_for_it) as port:
        peer = socket.create_connection(("127.0.0.1", one.fleet().forward(port).local), timeout=HANG_S)
        assert begun.wait(HANG_S)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        peer.close()
        assert left.wait(HANG_S)


def test_a_local_port_that_is_asked_for_is_that_one_or_an_error_and_another_one_is_found_otherwise(one: Slice) -> None:
    fleet = one.fleet()
    with held_port() as port:
        with socket.create_server(("127.0.0.1", port)):
            with pytest.raises(OSError, match="in use"):
                fleet.forward(6006, local=port)
            assert fleet.forward(port).local != port
        assert fleet.forward(port).local == port, "it is free again"
        assert fleet.forward(port).local != port


def test_the_end_of_the_fleet_closes_its_ports(one: Slice) -> None:
    fleet = one.fleet()
    with serving(answer_after_the_end) as port:
        local = fleet.forward(port).local
        assert call(local, b"x") == b"x"
        fleet.cancel()

        def refused() -> bool:
            try:
                with socket.create_connection(("127.0.0.1", local), timeout=HANG_S):
                    return False
            except ConnectionRefusedError:
                return True
            except ConnectionError:
                return False

        until(refused, "a closed port")
