"""What programs meet on a worker as on a TPU VM: OpenSSH, scp, sftp, rsync, fabric, and the metadata server."""

import hashlib
import json
import os
import pty
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from google.cloud import tpu_v2

from tests.emulator.contract.conftest import ZONE, Create, Machine, client_for, fetch, finish, machines, node_body
from tests.emulator.fixture import Emulator
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
    api: tpu_v2.TpuClient, create: Create, login_key: Path, ssh_keys: str
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
    api: tpu_v2.TpuClient, create: Create, login_key: Path, ssh_keys: str
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


def test_small_writes_are_not_delayed(machine: Machine) -> None:
    """Without TCP_NODELAY each round trip would take 40 ms and more."""
    client = subprocess.Popen(machine.argv("cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

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
    api: tpu_v2.TpuClient, create: Create, login_key: Path, ssh_keys: str
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
    api: tpu_v2.TpuClient, create: Create, shared_emulator: Emulator, login_key: Path, ssh_keys: str
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


@dataclass(frozen=True)
class Metadata:
    root: str

    def get(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> tuple[int, str]:
        url = f"http://{self.root}/computeMetadata/v1/{path}"
        status, text, found = fetch(url, method, body if body is None else body.encode(), **headers)
        assert found["Metadata-Flavor"] == "Google"
        return status, text

    def text(self, path: str) -> str:
        status, text = self.get(path)
        assert status == 200, (path, status)
        return text


@pytest.fixture(scope="module")
def third(shared_emulator: Emulator, login_key: Path, ssh_keys: str) -> Iterator[Machine]:
    """The third worker of four."""
    api = client_for(shared_emulator)
    attributes, tier = {"ssh-keys": ssh_keys, "mine": "my own"}, {"preemptible": True}
    body = node_body(accelerator_type="v5litepod-16", metadata=attributes, scheduling_config=tier)
    node = finish(api.create_node(parent=ZONE, node_id="meta", node=body))
    yield machines(api, node.name, login_key)[2]
    finish(api.delete_node(name=node.name))


@pytest.fixture(scope="module")
def metadata(third: Machine) -> Metadata:
    return Metadata(third.output("echo $GCE_METADATA_HOST"))


def test_it_has_project_zone_and_worker_number(metadata: Metadata) -> None:
    number = metadata.text("project/numeric-project-id")
    assert metadata.text("project/project-id") == "emulated"
    assert metadata.text("instance/zone") == f"projects/{number}/zones/us-central1-a"
    assert metadata.text("instance/attributes/agent-worker-number") == "2"
    assert metadata.text("instance/attributes/instance-id") == "meta"
    assert metadata.text("instance/attributes/accelerator-type") == "v5litepod-16"
    assert metadata.text("instance/attributes/mine") == "my own"
    assert metadata.text("instance/preempted") == "FALSE"
    assert metadata.text("instance/maintenance-event") == "NONE"
    endpoints = metadata.text("instance/attributes/worker-network-endpoints").split(",")
    assert [endpoint.split(":")[2] for endpoint in endpoints] == ["127.0.0.1"] * 4


def test_tpu_env_is_lines_of_quoted_values(metadata: Metadata) -> None:
    lines = metadata.text("instance/attributes/tpu-env").splitlines()
    values = dict(line.split(": ", 1) for line in lines)
    assert (values["NODE_ID"], values["WORKER_ID"], values["PREEMPTIBLE"]) == ("'meta'", "'2'", "'true'")


def test_without_the_flavor_header_it_refuses(metadata: Metadata) -> None:
    assert metadata.get("project/project-id", Accept="*/*")[0] == 403
    forwarded = {"Metadata-Flavor": "Google", "X-Forwarded-For": "1.2.3.4"}
    assert metadata.get("project/project-id", **forwarded)[0] == 403


@pytest.mark.parametrize(
    "host", ["metadata.google.internal", "Metadata.google.internal:80", "metadata", "169.254.169.254"]
)
def test_the_names_by_which_programs_on_a_tpu_vm_call_it_are_admitted(metadata: Metadata, host: str) -> None:
    assert metadata.get("project/project-id", **{"Metadata-Flavor": "Google", "Host": host}) == (200, "emulated")


@pytest.mark.parametrize("path", ["", "instance/", "instance/service-accounts/", "instance/service-accounts/default/"])
@pytest.mark.parametrize(
    "query", ["recursive=true", "recursive=TRUE&alt=text", "alt=json&timeout_sec=0&wait_for_change=true"]
)
def test_a_recursive_read_has_neither_token_nor_identity(metadata: Metadata, path: str, query: str) -> None:
    status, text = metadata.get(f"{path}?{query}")
    assert status == 200 and "devstorage" not in text and "@developer.gserviceaccount.com" in text
    assert not [word for word in ("access_token", '"token"', "identity") if word in text]


def test_the_token_is_read_by_its_name_only(metadata: Metadata) -> None:
    account = "instance/service-accounts/default"
    assert "token" in metadata.text(f"{account}/").splitlines()
    for query in ("", "?alt=json", "?recursive=true"):
        assert json.loads(metadata.text(f"{account}/token{query}"))["access_token"].startswith("emulated-")


@pytest.mark.parametrize("extra", [
    {"Host": "rebound.example"}, {"Host": "metadata.example"},
    {"Host": "metadata.google.internal.example"},
    {"Host": "[::1].rebound.example"}, {"Origin": "http://127.0.0.1"},
])  # fmt: skip
def test_web_pages_are_refused(metadata: Metadata, extra: dict[str, str]) -> None:
    assert metadata.get("project/project-id", **{"Metadata-Flavor": "Google"} | extra)[0] == 403


def test_unknown_paths_are_absent_and_directories_are_listed(metadata: Metadata) -> None:
    assert metadata.get("instance/attributes/none")[0] == 404
    assert "agent-worker-number" in metadata.text("instance/attributes/").splitlines()
    assert "attributes/" in metadata.text("instance/").splitlines()
    assert json.loads(metadata.text("instance/attributes/?recursive=true"))["mine"] == "my own"


def test_google_auth_on_a_worker_finds_project_and_token(third: Machine) -> None:
    script = (
        "import google.auth, google.auth.transport.requests as transport;"
        "found, project = google.auth.default(); found.refresh(transport.Request());"
        "print(project, found.token, found.service_account_email)"
    )
    project, token, email = third.output(f"{sys.executable} -W ignore -c '{script}'").split()
    assert project == "emulated"
    assert token.startswith("emulated-")
    assert email.endswith("-compute@developer.gserviceaccount.com")


def test_a_worker_publishes_guest_attributes_that_the_api_shows(
    metadata: Metadata, third: Machine, api: tpu_v2.TpuClient
) -> None:
    assert metadata.get("instance/guest-attributes/job/state", "PUT", "running")[0] == 200
    assert metadata.text("instance/guest-attributes/job/state") == "running"
    reply = api.get_guest_attributes(request={"name": third.node, "query_path": "job/"})
    seen = [[(item.key, item.value) for item in worker.query_value.items] for worker in reply.guest_attributes]
    assert seen == [[], [], [("state", "running")], []]
    assert metadata.get("instance/guest-attributes/no-key", "PUT", "x")[0] == 404
    assert metadata.get("instance/zone", "PUT", "x")[0] == 404


ATTRIBUTES = "instance/guest-attributes"


def test_writes_beyond_googles_rate_are_accepted_and_dropped(metadata: Metadata, shared_emulator: Emulator) -> None:
    with shared_emulator.settings(attribute_limits=0.01):
        for number in range(4):
            assert metadata.get(f"{ATTRIBUTES}/often/key", "PUT", str(number))[0] == 200
        assert metadata.get(f"{ATTRIBUTES}/often/key")[0] == 404
    assert metadata.get(f"{ATTRIBUTES}/often/key", "PUT", "4")[0] == 200
    assert metadata.text(f"{ATTRIBUTES}/often/key") == "4"


def test_guest_attributes_have_googles_size_limits(metadata: Metadata) -> None:
    longest, largest = "k" * 127, "x" * (256 << 10)
    for path, value, status in (
        (f"caps/{longest}", "", 200),
        (f"caps/{longest}k", "", 400),
        ("caps/bytes", "\u00e4" * (128 << 10), 200),
        ("caps/bytes", "\u00e4" * (128 << 10) + "x", 400),
        ("caps/more", largest, 400),  # 512 KB in all
        ("caps/bytes", "x", 200),  # replaces the large one
        ("caps/more", largest, 200),
        ("caps/more", "", 200),
        ("caps/a%20b", "x", 400),
        ("caps%2Fa/b", "x", 404),
    ):
        assert metadata.get(f"{ATTRIBUTES}/{path}", "PUT", value)[0] == status, path
    for number in range(3):
        metadata.get(f"{ATTRIBUTES}/caps/fill{number}", "PUT", largest)
    published = json.loads(metadata.text(f"{ATTRIBUTES}/?recursive=true"))
    assert (
        sum(len(f"{name}/{key}{value}") for name, keys in published.items() for key, value in keys.items()) < 512 << 10
    )


@pytest.mark.parametrize(("body", "headers"), [
    (b"\xff", {}),
    (b"\xff", {"Content-Type": "text/plain; charset=nonsense"}),
    (b"garbage", {"Content-Encoding": "gzip"}),
])  # fmt: skip
def test_a_value_that_is_not_text_is_refused(metadata: Metadata, body: bytes, headers: dict[str, str]) -> None:
    sent = {"Metadata-Flavor": "Google", **headers}
    assert fetch(f"http://{metadata.root}/computeMetadata/v1/{ATTRIBUTES}/job/bytes", "PUT", body, **sent)[0] == 400


def test_an_invalid_timeout_is_ignored(metadata: Metadata) -> None:
    """The value differs from `last_etag` already."""
    for limit in ("9" * 18, "9" * 5000, "-1", "soon"):
        assert metadata.text(f"instance/zone?wait_for_change=true&last_etag=older&timeout_sec={limit}")
