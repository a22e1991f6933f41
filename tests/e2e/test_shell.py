"""The shell that people expect, with the real OpenSSH, by every way to the workers of a slice."""

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.api.client import Client
from orchestrator.api.slices import relay
from tests.cli_fixture import Tpujob, press
from tests.e2e.test_access import bastion
from tests.waiting import HANG_S, echo, held_port, ran, read_all, serving, until

__all__ = ["bastion"]
pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH is not installed")

OFTEN = "iap"  # the other ways are in the second tier
WAYS = [
    pytest.param(way, marks=[] if way == OFTEN else pytest.mark.exhaustive) for way in ("iap", "external", "bastion")
]
ALSO = pytest.param("iap with OS Login", marks=pytest.mark.exhaustive)


@pytest.fixture(params=[*WAYS, ALSO])
def mine(request: pytest.FixtureRequest, tpujob: Tpujob) -> Iterator[Path]:
    """A slice `mine` of four workers that is reached by one way; the directory of its lease."""
    tpujob.settings(forbid_external_ips=request.param != "external", require_os_login="OS" in request.param)
    if request.param == "bastion":
        settings = tpujob.directory / "home" / ".config" / "tpujob" / "settings.yaml"
        settings.parent.mkdir(parents=True)
        settings.write_text(f"access: {{ssh_proxy_command: {json.dumps(request.getfixturevalue('bastion'))}}}\n")
    done = tpujob("up", "mine", "--accelerator", "v5litepod-16", "--zone", "us-central1-a")
    assert done.returncode == 0, done.text
    (lease,) = (each for each in tpujob.leases() if each.open)
    yield tpujob.own_state / "leases" / lease.id
    assert tpujob("down", "mine").returncode == 0
    assert not (tpujob.own_state / "leases" / lease.id).exists(), "the configuration goes with the slice"


SERVER = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"from " + os.environ["TPUJOB_WORKER"].encode() + self.path.encode())
        self.wfile.flush()
        if self.path == "/end":
            os._exit(0)
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""
SERVING = """
name: board
tpu: {{zone: us-central1-a}}
env: {{PORT: {port}}}
code: board
ports: [{port}]
command: exec python3 server.py
access: {access}
"""
LINE = re.compile(r"(http://127\.0\.0\.1:(\d+)) → worker0:(\d+) \(\d+ here is the worker's own\)$", re.MULTILINE)


@pytest.fixture
def board(tpujob: Tpujob) -> Iterator[str]:
    """A job that serves pages on a port that it names, until one of them is `/end`."""
    tpujob.settings(forbid_external_ips=True)
    (tpujob.directory / "board").mkdir()
    (tpujob.directory / "board" / "server.py").write_text(SERVER)
    with held_port() as port:
        yield tpujob.job(SERVING.format(port=port, access="{via: iap}"))


def address(process: subprocess.Popen[str]) -> str:
    """The address that a command prints, which goes on."""
    assert process.stdout is not None
    found = next((match for line in process.stdout if (match := LINE.search(line))), None)
    assert found is not None, "it ended without"
    return found[1]


def answers(url: str) -> bool:
    try:
        return bool(page(f"{url}/"))
    except OSError:
        return False


@contextlib.contextmanager
def tpujob_forward(tpujob: Tpujob, name: str) -> Iterator[str]:
    process = tpujob.start("forward", name)
    yield address(process)
    press(process)
    process.communicate()


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=HANG_S) as reply:
        return str(reply.read().decode())


def echoed(sock: socket.socket, text: bytes) -> bytes:
    with sock:
        sock.sendall(text)
        sock.shutdown(socket.SHUT_WR)
        return read_all(sock)


@pytest.mark.ci
def test_ssh_is_the_real_one_with_its_exit_code_and_its_forwards(tpujob: Tpujob, mine: Path, tmp_path: Path) -> None:
    done = tpujob("ssh", "mine", "--worker", "2", "--", "pwd; cat; exit 42")
    assert done.returncode == 42, done.text
    assert done.stdout.endswith("/worker2/home\n") and done.stdout.count("\n") == 1
    assert tpujob("ssh", "mine", "--worker", "4", "--", "true").returncode == 64
    with serving(echo) as port:
        here = Path("here")  # the whole path could be longer than a socket's may be
        process = tpujob.start("ssh", "mine", "-N", "-L", f"./{here}:127.0.0.1:{port}")
        until(here.exists, "the forward")
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(here))
            assert echoed(sock, b"ping" * 10_000) == b"ping" * 10_000
        press(process)
        process.communicate()
    until(lambda: not tpujob.local(), "the end of ssh and of what it began")


@pytest.mark.ci
def test_a_command_on_all_workers_is_shown_by_worker_and_ends_everywhere_with_ctrl_c(
    tpujob: Tpujob, mine: Path
) -> None:
    done = tpujob.as_process("ssh", "mine", "--worker", "all", "--", "echo out; echo err >&2; exit 3")
    assert done.returncode == 3, done.text
    assert sorted(done.stdout.splitlines()) == [f"worker{index} | out" for index in range(4)]
    assert {f"worker{index} | err" for index in range(4)} < set(done.stderr.splitlines())
    assert done.stderr.count("exit code 3") == done.stderr.count("worker0 to worker3: exit code 3") == 1
    process = tpujob.start(
        "ssh",
        "mine",
        "--worker",
        "all",
        "--",
        "trap 'rm began; exit 7' INT; touch began; echo up; read line; while :; do sleep 0.1; done",
    )
    homes = [*tpujob.disks()[1].glob("vms/*/worker*/home")]
    until(lambda: len(homes) == 4 and all((home / "began").exists() for home in homes), "the command on each worker")
    press(process)
    process.communicate()
    assert process.returncode == 130
    until(lambda: not any((home / "began").exists() for home in homes), "its end on each worker")


@pytest.mark.ci
def test_scp_copies_from_all_workers_and_says_once_what_fails_alike(tpujob: Tpujob, mine: Path, tmp_path: Path) -> None:
    homes = sorted(tpujob.disks()[1].glob("vms/*/worker*/home"))
    (homes[1] / "only").touch()
    some = tpujob("scp", "--worker", "all", "mine:only", "some")
    assert some.returncode == 1 and some.stderr.count("only: No such file") == 1, some.text
    assert some.stderr.count("worker0, worker2 and worker3: exit code 1") == 1
    assert [path.name for path in (tmp_path / "some").iterdir()] == ["worker1"]


@pytest.mark.exhaustive
def test_scp_copies_both_ways_with_the_names_and_the_errors_of_scp(tpujob: Tpujob, mine: Path, tmp_path: Path) -> None:
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "deep" / "a b.txt").write_text("blank")
    (tmp_path / "12:30.txt").write_text("colon")
    homes = sorted(tpujob.disks()[1].glob("vms/*/worker*/home"))
    for words in (
        ("-r", "tree", "./12:30.txt", "mine:1:"),
        ("--worker", "all", "./12:30.txt", "mine:all $x.txt"),
        ("mine:1:tree/deep/a b.txt", "mine:1:12*.txt", "."),
        ("--worker", "all", "mine:all*", "out"),
    ):
        done = tpujob("scp", *words)
        assert done.returncode == 0, done.text
    assert (homes[1] / "tree" / "deep" / "a b.txt").read_text() == "blank" and not (homes[0] / "tree").exists()
    assert (tmp_path / "a b.txt").read_text() == "blank"
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.glob("out/*/*")} == {
        f"out/worker{index}/all $x.txt" for index in range(4)
    }
    missing = tpujob("scp", "mine:nothing", ".")
    assert missing.returncode == 1 and "nothing: No such file or directory" in missing.stderr
    (tmp_path / "file").touch()
    assert tpujob("scp", "file", "mine:9:").returncode == 64
    assert tpujob("scp", "--worker", "all", "mine:12*", "file").returncode == 64


@pytest.mark.exhaustive
def test_the_users_own_ssh_and_rsync_know_the_workers(tpujob: Tpujob, mine: Path, tmp_path: Path) -> None:
    assert tpujob("ssh-config", "--install").returncode == 0
    config = tmp_path / "home" / ".ssh" / "config"
    assert (
        f'Include "{tpujob.own_state}/leases/*/ssh_config"'
        == config.read_text().strip()
        == tpujob("ssh-config").stdout.strip()
    )
    for host in ("tpu-mine-3", f"{tpujob.alive()[0].rpartition('/')[2]}-3"):
        done = ran(["ssh", "-F", config, host, "pwd"], check=True)
        assert done.stdout.endswith("worker3/home\n")
    assert "Host tpu-mine-3 " in tpujob("ssh-config", "mine").stdout
    if shutil.which("rsync") is not None:
        (tmp_path / "tree").mkdir()
        (tmp_path / "tree" / "a b").write_text("synced")
        words = ["rsync", "-a", "-e", f"ssh -F {config}", "tree", "tpu-mine-2:"]
        subprocess.run(words, cwd=tmp_path, timeout=HANG_S, check=True)
        (copied,) = tpujob.state_dir.glob("vms/*/worker2/home/tree/a b")
        assert copied.read_text() == "synced"
    assert tpujob("ssh-config", "--remove").returncode == 0
    assert config.read_text() == ""


@pytest.mark.exhaustive
def test_a_configuration_that_a_killed_command_left_goes_with_the_next_one(tpujob: Tpujob) -> None:
    done = tpujob("run", tpujob.job("name: short\ntpu: {zone: us-central1-a}\ncommand: 'true'\n"))
    assert done.returncode == 0, done.text
    (lease,) = tpujob.leases()
    left, drafted = (tpujob.own_state / "leases" / name for name in (lease.id, "drafted"))
    for directory in (left, drafted):
        assert not directory.exists()
        directory.mkdir()
        (directory / "ssh_config").touch()
    assert tpujob("gc", "--local").returncode == 0
    assert not left.exists() and drafted.exists()


@pytest.mark.exhaustive
def test_a_slice_that_was_deleted_elsewhere_is_no_host_once_that_is_known(tpujob: Tpujob) -> None:
    assert tpujob("up", "mine", "--zone", "us-central1-a").returncode == 0
    (lease,) = tpujob.leases()
    assert (tpujob.own_state / "leases" / lease.id / "ssh_config").exists()
    tpujob.admin("POST", f"nodes/{lease.name.node}:vanish", {})
    tpujob("status")
    assert not (tpujob.own_state / "leases" / lease.id).exists()


def test_the_ports_of_a_job_are_on_this_machine_while_it_runs(tpujob: Tpujob, board: str) -> None:
    process = tpujob.start("run", board, stderr=subprocess.STDOUT)
    url = address(process)
    until(lambda: answers(url), "the job's server")
    assert page(f"{url}/a") == "from 0/a"
    assert page(f"{url}/end") == "from 0/end"
    said, _ = process.communicate()
    assert process.returncode == 0, said
    assert not answers(url)


@pytest.mark.exhaustive
def test_the_ports_of_a_detached_run_are_here_by_forward_which_leaves_nothing_when_it_is_killed(
    tpujob: Tpujob, board: str
) -> None:
    done = tpujob("submit", board)
    run = done.stdout.strip()
    assert done.returncode == 0 and f"ports    `tpujob forward {run}` leads to port" in done.stderr, done.text
    forward = tpujob.start("forward", run)
    url = address(forward)
    until(lambda: answers(url), "the job's server")
    forward.send_signal(signal.SIGKILL)
    forward.communicate()
    until(lambda: not tpujob.local("forward"), "its end")
    assert not answers(url)
    attached = tpujob.start("attach", run)
    with tpujob_forward(tpujob, run) as other:
        assert page(f"{other}/b") == "from 0/b"
        assert page(f"{other}/end") == "from 0/end"
    _, err = attached.communicate()
    assert attached.returncode == 0 and f"ports    `tpujob forward {run}` leads to port" in err


@pytest.mark.exhaustive
def test_a_forward_ends_with_its_slice_and_says_what_it_cannot(tpujob: Tpujob, mine: Path) -> None:
    assert tpujob("forward", "mine").returncode == 64
    assert tpujob("forward", "mine", "6006", "--worker", "9").returncode == 64
    assert tpujob("forward", "mine", "http").returncode == 64
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = tpujob("forward", "mine", f"{taken.getsockname()[1]}:6006")
    assert refused.returncode == 64 and "Address already in use" in refused.stderr
    process = tpujob.start("forward", "mine", "6006")
    assert address(process)
    assert tpujob("down", "mine").returncode == 0
    _, err = process.communicate()
    assert process.returncode == 0 and "mine is being released" in err


@pytest.mark.exhaustive
def test_a_port_is_there_for_a_block_of_python(tpujob: Tpujob, mine: Path) -> None:
    with serving(echo) as port, Client().forward("mine", port, worker=1) as ports:
        assert echoed(socket.create_connection(("127.0.0.1", ports[port])), b"ping") == b"ping"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ports[port]))


@pytest.mark.exhaustive
def test_an_ssh_through_iap_outlives_cuts_of_its_tunnel_and_ends_with_its_relay(tpujob: Tpujob) -> None:
    tpujob.settings(forbid_external_ips=True)
    assert tpujob("up", "mine", "--zone", "us-central1-a").returncode == 0
    fault = tpujob.fault("relay_cut", after_bytes=20_000, when={"first": 3})
    done = tpujob("ssh", "mine", "--", "seq 1 30000")
    assert done.returncode == 0, done.text
    assert done.stdout == "".join(f"{number}\n" for number in range(1, 30_001))
    assert next(row["hits"] for row in tpujob.admin("GET", "faults")["faults"] if row["id"] == fault) >= 3
    process = tpujob.start("ssh", "mine", "--", "echo begun; sleep 1000")
    tpujob.until("begun", process)
    (carrier,) = tpujob.local(relay.__name__)
    carrier.kill()
    process.communicate()
    assert process.returncode == 255
    assert tpujob("down", "mine").returncode == 0


@pytest.mark.exhaustive
def test_a_killed_ssh_leaves_no_process(tpujob: Tpujob, mine: Path) -> None:
    process = tpujob.start("ssh", "mine", "--", "echo begun; sleep 1000")
    tpujob.until("begun", process)
    assert tpujob.local("ssh")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    until(lambda: not tpujob.local(), "the end of what ssh began")
