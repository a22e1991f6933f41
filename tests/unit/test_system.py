"""What tpujob asks of the system: a clock that no user sets, open files, who holds a connection, and whole files."""

import ctypes
import errno
import os
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.promise.ledger.clocks import Anchor, anchored
from orchestrator.system import boot_clock, open_files, sockets, whole_file
from tests.waiting import HANG_S, ran

NAMELESS = "a boot without a name"
boot_id = boot_clock.boot_id.__wrapped__  # as the first question of a process


def on(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot_clock, "sys", SimpleNamespace(platform=system))


@pytest.fixture
def sysctl(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, bytes]:
    """What the kernel of a Mac says, by name; it knows no other one."""
    known: dict[bytes, bytes] = {}

    def sysctlbyname(name: bytes, value: Any, size: Any, new: None, new_bytes: int) -> int:
        if name not in known or (new, new_bytes) != (None, 0):
            return -1
        assert len(known[name]) < size._obj.value == len(value)
        value.value = known[name]
        return 0

    on("darwin", monkeypatch)
    monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno: SimpleNamespace(sysctlbyname=sysctlbyname))
    return known


@pytest.mark.parametrize(
    ("system", "clock"), [("linux", "CLOCK_BOOTTIME"), ("darwin", "CLOCK_MONOTONIC_RAW"), ("plan9", "monotonic")]
)
def test_the_clock_is_the_one_that_counts_sleep_where_the_system_has_one(
    monkeypatch: pytest.MonkeyPatch, system: str, clock: str
) -> None:
    clocks = {"CLOCK_BOOTTIME": 1.0, "CLOCK_MONOTONIC_RAW": 2.0, "monotonic": 3.0}
    on(system, monkeypatch)
    names = {name: name for name in clocks if name.startswith("CLOCK")}
    stand_in = SimpleNamespace(clock_gettime=clocks.__getitem__, monotonic=lambda: clocks["monotonic"], **names)
    monkeypatch.setattr(boot_clock, "time", stand_in)
    assert boot_clock.boot_s() == clocks[clock]


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux")
def test_on_linux_it_is_the_kernels_and_a_time_namespace_is_another_boot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= boot_clock.boot_s() <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert boot_id().startswith(boot_clock.BOOT_ID.read_text().strip())
    found = []
    for namespace in ("time:[1]", "time:[2]"):
        (tmp_path / namespace).touch()
        (tmp_path / f"link to {namespace}").symlink_to(namespace)
        monkeypatch.setattr(boot_clock, "TIME_NAMESPACE", tmp_path / f"link to {namespace}")
        found.append(boot_id())
    assert found[0] != found[1]


def test_on_macos_the_boot_is_named_by_its_session(sysctl: dict[bytes, bytes]) -> None:
    sysctl[b"kern.bootsessionuuid"] = b"0B5C0F0A-5C2B-4F3D-9C57-0A4C2E1D7B11"
    assert boot_id() == "0B5C0F0A-5C2B-4F3D-9C57-0A4C2E1D7B11"


def test_a_system_that_names_no_boot_counts_as_never_restarted_and_less_time_seems_to_have_passed(
    sysctl: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert sysctl == {} and boot_id() == NAMELESS
    on("plan9", monkeypatch)
    assert boot_id() == NAMELESS
    on("linux", monkeypatch)
    monkeypatch.setattr(boot_clock, "BOOT_ID", tmp_path / "none")
    assert boot_id() == NAMELESS
    up_for_a_day = Anchor(NAMELESS, zero=1_800_000_000.0)
    restarted = anchored(up_for_a_day, [], boot=boot_id(), boot_s=60.0, wall=1_800_100_000.0)
    assert restarted.now(60.0) == 1_800_000_060.0 < up_for_a_day.now(86_400.0)


ASK = """
import resource
from orchestrator.system import open_files
print(open_files.allow({wanted}), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "limit"),
    [(100, 500, 300, 300), (100, 500, 900, 500), (200, 500, 100, 200)],
    ids=["raised", "as far as it goes", "enough"],
)
def test_the_soft_limit_is_raised_to_what_is_wanted_up_to_the_hard_one(
    soft: int, hard: int, wanted: int, limit: int
) -> None:
    line = f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$0" -c "$1"'
    argv = ["bash", "-c", line, sys.executable, ASK.format(wanted=wanted)]
    done = ran(argv, check=True)
    assert done.stdout.split() == [str(limit), str(limit)]


def test_files_in_use_are_counted() -> None:
    before = open_files.in_use()
    with open(__file__):  # noqa: PTH123
        assert open_files.in_use() == before + 1


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
    assert sockets.is_ours(accepted(opened, server))


def test_our_own_process_is_ours_by_an_ipv6_socket_to_an_ipv4_address(opened: ExitStack) -> None:
    server = listener(opened)
    client = opened.enter_context(socket.socket(socket.AF_INET6))
    client.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
    assert sockets.is_ours(accepted(opened, server))


def test_to_another_user_we_are_not_theirs_even_as_root(opened: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    server = listener(opened)
    opened.enter_context(socket.create_connection(server.getsockname()))
    connection = accepted(opened, server)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY - 1)
    assert not sockets.is_ours(connection)


def test_a_connection_that_its_process_closed_is_nobodys(opened: ExitStack) -> None:
    server = listener(opened)
    with socket.create_connection(server.getsockname()) as client:
        connection = accepted(opened, server)
        client.sendall(b"PUT")
    assert not sockets.is_ours(connection)
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
    assert not sockets.is_ours(connection)
    assert connection.recv(3) == b"PUT"
    assert sockets.is_ours(accepted(opened, server))


def test_a_process_of_another_user_is_not_ours(opened: ExitStack) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    server = listener(opened)
    script = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}; read -r -u 3"
    argv = ["/bin/bash", "-c", script]
    with subprocess.Popen(argv, cwd="/", user=NOBODY, group=NOBODY, extra_groups=[]) as theirs:
        connection = accepted(opened, server)
        assert not sockets.is_ours(connection)
        connection.close()
    assert theirs.returncode == 1, "it waited for our answer"


def test_where_only_the_processes_can_be_asked_a_closed_connection_costs_no_look_at_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sockets, "_held_by_us", lambda *_: None)
    monkeypatch.setattr(sockets, "_held_by_a_process", lambda *_: pytest.fail("it looked"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        with server.accept()[0] as connection:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            assert not sockets.is_ours(connection)


# -- from the client's end -------------------------------------------------------------------------------------------


def test_a_server_of_ours_is_expected_until_it_accepts(opened: ExitStack) -> None:
    server = listener(opened)
    client = opened.enter_context(socket.create_connection(server.getsockname()))
    with pytest.raises(TimeoutError):
        sockets.expect_ours(client, timeout_s=0)
    accepted(opened, server)
    sockets.expect_ours(client, timeout_s=HANG_S)


def test_a_server_that_is_gone_is_not_waited_for(opened: ExitStack) -> None:
    server = listener(opened)
    client = opened.enter_context(socket.create_connection(server.getsockname()))
    server.close()
    with pytest.raises(OSError) as gone:
        sockets.expect_ours(client, timeout_s=HANG_S)
    assert not isinstance(gone.value, TimeoutError)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_device_and_a_fifo_are_written_into(tmp_path: Path) -> None:
    terminal, other_end = os.openpty()
    (tmp_path / "tty").symlink_to(os.ttyname(other_end))  # beside it nobody can make a file, whatever `write` does
    whole_file.write(tmp_path / "tty", "text\n")
    assert os.read(terminal, 100) == b"text\r\n" and (tmp_path / "tty").is_symlink()
    os.close(terminal), os.close(other_end)

    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(fifo.read_text)
        whole_file.write(fifo, "text")
    assert read.result() == "text" and stat.S_ISFIFO(fifo.stat().st_mode)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path, there: bool) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to("inner/file")
    if there:
        (tmp_path / "inner/file").write_text("before, and longer")
    whole_file.write(tmp_path / "first", "text")
    assert (tmp_path / "first").is_symlink() and (tmp_path / "second").is_symlink()
    assert (tmp_path / "inner/file").read_text() == "text" and names(tmp_path / "inner") == ["file"]


@pytest.mark.parametrize("through", ["own", "link", "of another process"])
@pytest.mark.parametrize("deleted", [False, True])
def test_an_open_file_is_written_on_through_its_descriptor(tmp_path: Path, through: str, deleted: bool) -> None:
    with (tmp_path / "log").open("a+b", buffering=0) as log, subprocess.Popen(["sleep", "600"], stdout=log) as other:
        log.write(b"before\n")
        if deleted:
            (tmp_path / "log").unlink()
        (tmp_path / "link").symlink_to(f"/dev/fd/{log.fileno()}")
        names = {"own": f"/dev/fd/{log.fileno()}", "of another process": f"/proc/{other.pid}/fd/1"}
        whole_file.write(Path(names.get(through, tmp_path / "link")), "text")
        other.kill()
        log.seek(0)
        assert log.read() == b"before\ntext" and (tmp_path / "log").exists() is not deleted


@pytest.mark.parametrize("why", ["EBUSY", "EACCES", "EROFS", "EPERM"])
def test_a_file_that_cannot_be_replaced_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    def refuse(draft: Path, target: Path) -> None:
        raise OSError(getattr(errno, why), why)  # EBUSY: it is mounted by itself

    monkeypatch.setattr(Path, "replace", refuse)
    (tmp_path / "file").write_text("before, and longer")
    whole_file.write(tmp_path / "file", "text", 0o640)
    assert (tmp_path / "file").read_text() == "text" and mode(tmp_path / "file") == 0o640
    with pytest.raises(OSError):
        whole_file.write(tmp_path / "new", "text")
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("char", ["n", "あ", "\udcff"])
def test_a_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path, char: str) -> None:
    file = tmp_path / ("nn" + char * (250 // len(os.fsencode(char))))
    file.write_text("before")
    file.chmod(0o640)
    with file.open() as reader:
        whole_file.write(file, "text\udcff")
        assert reader.read() == "before", "who reads it has the old one"
    assert file.read_bytes() == b"text?" and mode(file) == 0o640
    whole_file.write(file, b"private", 0o600)
    assert file.read_bytes() == b"private" and mode(file) == 0o600 and names(tmp_path) == [file.name]


def test_what_cannot_be_written_leaves_all_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name in (".", "loop", "missing/file"):
        with pytest.raises(OSError):
            whole_file.write(tmp_path / name, "text")
    (tmp_path / "file").write_text("before")
    monkeypatch.setattr(os, "fsync", lambda descriptor: os.write(-1, b""))  # as a disk that is full
    with pytest.raises(OSError):
        whole_file.write(tmp_path / "file", "text")
    assert (tmp_path / "file").read_text() == "before" and names(tmp_path) == ["file", "loop"]


def test_a_page_that_nobody_named_replaces_a_link(tmp_path: Path) -> None:
    (tmp_path / "else").write_text("of someone else")
    (tmp_path / "report.html").symlink_to("else")
    whole_file.replace(tmp_path / "report.html", "text")
    assert (tmp_path / "else").read_text() == "of someone else" and (tmp_path / "report.html").read_text() == "text"
