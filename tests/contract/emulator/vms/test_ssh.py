"""OpenSSH, scp, sftp, rsync and fabric work on a worker as on a TPU VM."""

from __future__ import annotations

import hashlib
import os
import pty
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from google.cloud import tpu_v2

from tests.contract.emulator.conftest import Machine, finish, machines
from tests.emulator_fixture import Emulator
from tests.waiting import HANG_S, has_ended, until

MEGABYTES = os.urandom(3 << 20)


def test_a_command_has_its_own_output_error_and_exit_code(machine: Machine) -> None:
    done = machine.run("echo to stdout; echo to stderr >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"to stdout\n", b"to stderr\n")


def test_a_command_starts_at_home_with_the_workers_environment_and_nothing_else(machine: Machine) -> None:
    seen = dict(line.split("=", 1) for line in machine.output("env").splitlines())
    assert machine.output("pwd") == machine.output("echo $HOME") == seen["HOME"]
    assert (seen["USER"], seen["LANG"]) == ("trainer", "C.UTF-8")
    assert seen["PATH"].split(":")[0] == str(Path(seen["HOME"]).with_name("python") / "bin")
    assert seen["TPUJOB_EMULATED_NODE"].startswith("emulated/us-central1-a/shared/")
    assert not {"VIRTUAL_ENV", "PYTEST_CURRENT_TEST", "TPUJOB_STATE_DIR"} & set(seen)


def test_large_input_and_output_are_complete(machine: Machine) -> None:
    assert machine.run("sha256sum", input=MEGABYTES).stdout.split()[0].decode() == hashlib.sha256(MEGABYTES).hexdigest()
    assert machine.run("cat", input=MEGABYTES).stdout == MEGABYTES


def test_a_command_that_does_not_read_its_input_still_ends(machine: Machine) -> None:
    assert machine.run("exec 0<&-; echo done", input=MEGABYTES).stdout == b"done\n"


def test_a_command_ended_by_a_signal_is_no_success(machine: Machine) -> None:
    assert machine.run("kill -9 $$").returncode == 255


def test_only_keys_of_the_metadata_are_accepted_and_no_password(machine: Machine, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(stranger)], check=True)
    refused = Machine(machine.node, 0, machine.port, machine.host_key, stranger).run("true")
    assert refused.returncode == 255
    assert b"Permission denied (publickey)" in refused.stderr
    other_user = Machine(machine.node, 0, machine.port, machine.host_key, machine.key, user="root").run("true")
    assert other_user.returncode == 255


def test_a_key_patched_into_the_metadata_is_accepted_at_once(
    api: tpu_v2.TpuClient, create: Callable[..., tpu_v2.Node], login_key: Path, ssh_keys: str
) -> None:
    node = create()
    worker = machines(api, node.name, login_key)[0]
    assert worker.run("true").returncode == 255
    finish(
        api.update_node(
            request={"node": {"name": node.name, "metadata": {"ssh-keys": f"\n{ssh_keys}"}}, "update_mask": "metadata"}
        )
    )
    assert worker.run("true").returncode == 0


def test_a_command_that_cannot_be_started_ends_the_session(
    api: tpu_v2.TpuClient, create: Callable[..., tpu_v2.Node], login_key: Path, ssh_keys: str
) -> None:
    worker = machines(api, create(metadata={"ssh-keys": ssh_keys}).name, login_key)[0]
    worker.output("cd / && rm -r ~")
    assert worker.run("true").returncode == 126


def test_an_unknown_subsystem_starts_no_shell(machine: Machine) -> None:
    assert machine.run("netconf", "-s", input=b"echo a shell\n").stdout == b""


def cut(machine: Machine, command: str) -> int:
    """Cut the connection of a command, which says its pid first."""
    client = subprocess.Popen(machine.argv(command), stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert client.stdout and client.stdin
    pid = int(client.stdout.readline())
    client.kill()
    client.wait()
    client.stdout.close()
    client.stdin.close()
    return pid


def test_a_cut_connection_does_not_end_the_command(machine: Machine) -> None:
    after = "until test -e cut; do sleep 0.02; done; echo survived > after-the-cut; exec sleep 600"
    pid = cut(machine, f"echo $$; trap '' HUP PIPE; {after}")
    machine.output("touch cut")
    until(lambda: machine.run("cat after-the-cut").stdout == b"survived\n")
    os.kill(pid, 9)


def test_a_cut_connection_closes_the_commands_pipes(machine: Machine) -> None:
    pid = cut(machine, "echo $$; while echo; do sleep 0.01; done")
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_detached_job_does_not_keep_the_session_open(machine: Machine) -> None:
    pid = int(machine.output("setsid sleep 3600 >/dev/null 2>&1 </dev/null & echo $!"))
    os.kill(pid, 9)  # it still runs


@pytest.mark.parametrize("terminal_type", ["xterm", ""])
def test_a_terminal_is_a_terminal(machine: Machine, terminal_type: str) -> None:
    ours, theirs = pty.openpty()
    command = "test -t 0 && test -t 1 && tty && stty size && exit 5"
    client = subprocess.Popen(
        machine.argv(command, "-tt"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": terminal_type},
    )
    assert client.wait(timeout=HANG_S) == 5
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], 1)[0]:
        try:
            shown += os.read(ours, 4096)
        except OSError:
            break
    os.close(ours)
    assert b"/dev/pts/" in shown


def test_a_login_shell_reads_commands_and_has_the_python_of_the_worker(machine: Machine) -> None:
    done = subprocess.run(
        machine.argv("")[:-1], input=b"command -v python\nexit 4\n", capture_output=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 4
    assert done.stdout.decode().strip() == machine.output("command -v python")


@pytest.mark.parametrize("protocol", [[], pytest.param(["-O"], marks=pytest.mark.exhaustive)], ids=["sftp", "legacy"])
def test_scp_copies_both_ways(machine: Machine, tmp_path: Path, protocol: list[str]) -> None:
    local, back = tmp_path / "sent", tmp_path / "back"
    local.write_bytes(MEGABYTES)
    options = ["scp", "-q", *protocol, *machine.options, "-P", str(machine.port)]
    remote = f"{machine.user}@127.0.0.1:scp{len(protocol)}"
    assert subprocess.run([*options, str(local), remote], timeout=HANG_S, check=False).returncode == 0
    assert subprocess.run([*options, remote, str(back)], timeout=HANG_S, check=False).returncode == 0
    assert back.read_bytes() == MEGABYTES
    missing = subprocess.run([*options, f"{remote}-none", str(back)], timeout=HANG_S, check=False, capture_output=True)
    assert missing.returncode == 1


def test_sftp_starts_at_home(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(MEGABYTES)
    batch = (
        f"pwd\nmkdir in\nput {tmp_path / 'file'} in/file\nrename in/file in/there\nget in/there {tmp_path / 'back'}\n"
    )
    argv = ["sftp", "-q", *machine.options, "-b", "-", "-P", str(machine.port), f"{machine.user}@127.0.0.1"]
    done = subprocess.run(argv, input=batch.encode(), capture_output=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert machine.output("pwd") in done.stdout.decode()
    assert (tmp_path / "back").read_bytes() == MEGABYTES


@pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed")
def test_rsync_copies_a_tree_both_ways(machine: Machine, tmp_path: Path) -> None:
    tree, back = tmp_path / "tree", tmp_path / "back"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "file").write_bytes(MEGABYTES)
    shell = " ".join(["ssh", *machine.options, "-p", str(machine.port)])
    remote = f"{machine.user}@127.0.0.1:rsynced/"
    rsync = ["rsync", "-a", "-e", shell, f"--rsync-path={shutil.which('rsync')}"]
    subprocess.run([*rsync, f"{tree}/", remote], check=True, timeout=HANG_S)
    subprocess.run([*rsync, remote, f"{back}/"], check=True, timeout=HANG_S)
    assert (back / "deep" / "file").read_bytes() == MEGABYTES


def test_fabric_runs_puts_and_gets(machine: Machine, tmp_path: Path) -> None:
    from fabric import Config, Connection

    (tmp_path / "file").write_bytes(MEGABYTES)
    keys = {"key_filename": str(machine.key), "allow_agent": False, "look_for_keys": False}
    connection = Connection(
        "127.0.0.1", machine.user, machine.port, config=Config(lazy=True), connect_kwargs=keys, connect_timeout=10
    )
    with connection:
        connection.put(str(tmp_path / "file"), "by-fabric")
        assert connection.run("stat -c %s by-fabric", hide=True, in_stream=False).stdout.strip() == str(len(MEGABYTES))
        assert connection.run("exit 3", warn=True, hide=True, in_stream=False).exited == 3
        connection.get("by-fabric", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == MEGABYTES


def test_small_writes_are_not_delayed(machine: Machine) -> None:
    """Without TCP_NODELAY each round trip would take 40 ms and more."""
    client = subprocess.Popen(machine.argv("cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert client.stdin and client.stdout

    def trip_s() -> float:
        started = time.perf_counter()
        client.stdin.write(b"x")
        client.stdout.read(1)
        return time.perf_counter() - started

    until(trip_s, "a quick round trip", wanted=lambda seconds: seconds < 0.035)
    client.stdin.close()
    assert client.wait(timeout=HANG_S) == 0
    client.stdout.close()


def test_many_commands_share_one_connection_and_many_connections_one_worker(machine: Machine) -> None:
    socket_path = f"/tmp/{os.getpid()}-%C"  # pytest's own directories are too long for a socket
    shared = ["-o", "ControlMaster=auto", "-o", f"ControlPath={socket_path}", "-o", "ControlPersist=20"]
    assert machine.run("true", *shared).returncode == 0
    running = [
        subprocess.Popen(machine.argv(f"sleep 0.1; echo {i}", *(shared if i % 2 else [])), stdout=subprocess.PIPE)
        for i in range(12)
    ]
    output = [process.communicate(timeout=HANG_S)[0] for process in running]
    machine.run("", *shared, "-O", "exit")
    assert output == [f"{i}\n".encode() for i in range(12)]


def test_deleting_a_node_ends_its_processes_and_closes_its_ports(
    api: tpu_v2.TpuClient, create: Callable[..., tpu_v2.Node], login_key: Path, ssh_keys: str
) -> None:
    node = create(metadata={"ssh-keys": ssh_keys})
    worker = machines(api, node.name, login_key)[0]
    home = Path(worker.output("pwd"))
    quiet = ">/dev/null 2>&1 </dev/null & echo $!"
    pids = [
        int(worker.output(f"setsid sleep 600 {quiet}")),
        int(worker.output(f"cd /; setsid bash -c 'trap \"\" TERM HUP; while :; do sleep 1; done' {quiet}")),
        int(worker.output(f"env -i setsid sleep 600 {quiet}")),  # without the marker, but in the home directory
    ]
    metadata_port = int(worker.output("echo ${GCE_METADATA_HOST##*:}"))
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    finish(api.delete_node(name=node.name))
    until(lambda: all(has_ended(pid) for pid in pids))
    assert not home.exists()
    for port in (worker.port, metadata_port):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=1)


def test_a_stopped_node_has_no_processes_and_keeps_its_files(
    api: tpu_v2.TpuClient, create: Callable[..., tpu_v2.Node], shared_emulator: Emulator, login_key: Path, ssh_keys: str
) -> None:
    with shared_emulator.settings(client_startup_scripts=True):
        node = create(metadata={"ssh-keys": ssh_keys, "startup-script": "echo boot >> $HOME/boots"})
        worker = machines(api, node.name, login_key)[0]
        until(lambda: worker.run("cat boots").stdout == b"boot\n")
        pid = int(worker.output("setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $!"))
        finish(api.stop_node(request={"name": node.name}))
        assert has_ended(pid)
        finish(api.start_node(request={"name": node.name}))
        again = machines(api, node.name, login_key)[0]
        assert again.host_key == worker.host_key
        until(lambda: again.run("cat boots").stdout == b"boot\nboot\n")
