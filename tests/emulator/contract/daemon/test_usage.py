"""How people use the emulator: `tpujob emulator up`, `env` and `stop`, and the fixture of another project's tests."""

import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from google.cloud import tpu_v2

from cloud_tpu_emulator.daemon import control, ssh_wrapper
from tests import ROOT
from tests.cli_fixture import Cli, Tpujob
from tests.emulator.contract.conftest import Create, machines
from tests.emulator.fixture import Emulator
from tests.unit.places.stub_api import Request, StubReply, stub_api
from tests.waiting import HANG_S, until


def test_without_a_terminal_an_emulator_with_a_node_is_stopped_only_with_yes(cli: Cli) -> None:
    assert cli("emulator", "stop").stdout == "it was not running\n"
    assert cli("up", "alice", "--zone", "us-central1-a").returncode == 0
    refused = cli("emulator", "stop")
    assert refused.returncode == 64 and "has 1 node on which something may run: tpujob-" in refused.stderr
    assert "`tpujob emulator stop --yes`" in refused.stderr and len(cli.alive()) == 1
    assert cli("emulator", "stop", "--yes").stdout == "stopped\n"


@pytest.mark.parametrize(("typed", "said"), [("n\n", "left running"), ("y\n", "stopped")])
def test_on_a_terminal_it_asks(cli: Cli, typed: str, said: str) -> None:
    assert cli("up", "alice", "--zone", "us-central1-a").returncode == 0
    done = cli.answered(typed, "emulator", "stop")
    assert done.returncode == 0 and said in done.stdout and "Stop it and its processes" in done.stderr, done.stderr


def test_an_emulator_on_which_nothing_runs_is_stopped_without_a_question(cli: Cli) -> None:
    assert cli("emulator", "up").returncode == 0
    assert cli("emulator", "stop").stdout == "stopped\n"


CONFTEST = 'pytest_plugins = ["cloud_tpu_emulator.pytest_plugin"]\n'
TESTS = """
import json, os, subprocess, sys
import grpc
import pytest
from google.api_core.exceptions import ResourceExhausted
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

ZONE = "projects/emulated/locations/us-central1-a"
NODE = tpu_v2.Node(accelerator_type="v5litepod-4", runtime_version="v2-alpha-tpuv5-lite")

def test_a_node_comes_up_over_rest_and_is_seen_over_grpc(tpu_emulator):
    node = tpu_emulator.client().create_node(parent=ZONE, node_id="mine", node=NODE).result()
    with grpc.secure_channel(tpu_emulator.grpc_target, tpu_emulator.channel_credentials()) as channel:
        client = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))
        assert client.get_node(name=node.name).state == tpu_v2.Node.State.READY
    assert [row["until"] for row in tpu_emulator.billing()] == [None]  # and it is left behind

def test_another_test_has_another_cloud(tpu_emulator):
    assert tpu_emulator.billing() == []
    tpu_emulator.settings(no_capacity=["us-central1-a/*"])
    with pytest.raises(ResourceExhausted):
        tpu_emulator.client().create_node(parent=ZONE, node_id="mine", node=NODE).result()
    tpu_emulator.fault("status", status=503, operation="nodes.list")
    with pytest.raises(Exception, match="unavailable"):
        list(tpu_emulator.client().list_nodes(parent=ZONE))
    assert tpu_emulator.requests()[-1]["status"] == 503

def test_child_processes_get_an_environment(tpu_emulator):
    printed = subprocess.check_output(["sh", "-c", "cat $TPUJOB_EMULATOR_TOKEN_FILE"], env=tpu_emulator.environment())
    assert printed.decode() == tpu_emulator.token

def test_tpujob_in_a_child_process_runs_a_job_there_with_state_of_its_own(tpu_emulator, tmp_path):
    (tmp_path / "job.yaml").write_text("tpu: {accelerator: v5e-8, zone: us-central1-a}\\ncommand: echo trained\\n")
    argv = [sys.executable, "-m", "orchestrator.cli", "run", "job.yaml"]
    done = subprocess.run(argv, cwd=tmp_path, env=os.environ | tpu_emulator.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["until"] is None for row in tpu_emulator.billing()] == [False]
"""
SLEEPS = """
import json, os, time
from pathlib import Path

def test_that_is_killed(tpu_emulator):
    pids = {"daemon": tpu_emulator.endpoint.pid, "directory": str(tpu_emulator.state_dir)}
    Path("pids.new").write_text(json.dumps(pids))
    os.rename("pids.new", "pids.json")
    time.sleep(3600)
"""


def started(directory: Path, tests: str) -> subprocess.Popen[str]:
    """Start pytest in a project with these tests."""
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_mine.py").write_text(tests)
    argv = [
        sys.executable,
        *["-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider"],
        f"--basetemp={directory / 'tmp'}",
    ]
    env, pipe = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}, subprocess.PIPE
    return subprocess.Popen(argv, cwd=directory, env=env, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def printed(directory: Path, tests: str) -> str:
    """Return what pytest printed at its end."""
    with started(directory, tests) as process:
        return process.communicate(timeout=HANG_S)[0]


def processes_below(directory: Path) -> list[psutil.Process]:
    def is_there(process: psutil.Process) -> bool:
        try:
            return any(str(directory) in word for word in process.cmdline())
        except psutil.Error:
            return False

    return [process for process in psutil.process_iter() if is_there(process)]


@pytest.mark.ci
def test_another_test_suite_uses_it_and_nothing_is_left(tmp_path: Path) -> None:
    text = printed(tmp_path, TESTS)
    assert re.search(r"^4 passed in ", text, re.MULTILINE), text
    assert processes_below(tmp_path) == []


@pytest.mark.ci
@pytest.mark.parametrize(("without", "result"), [("", "2 passed"), (r", retry=Retry\(.*?\)", "1 failed, 1 passed")])
def test_the_tests_of_the_page_pass_and_find_a_delete_that_is_not_repeated(
    tmp_path: Path, without: str, result: str
) -> None:
    page = (ROOT / "docs" / "emulator.md").read_text(encoding="utf-8")
    section = page.split("\n### Test your own program (pytest)\n")[1].split("\n## ")[0]
    files = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))
    assert files["conftest.py"] == CONFTEST
    program = re.sub(without, "", files["trainer.py"]) if without else files["trainer.py"]
    assert (program != files["trainer.py"]) == bool(without)
    (tmp_path / "trainer.py").write_text(program)
    text = printed(tmp_path, files["test_trainer.py"])
    assert result in text, text


def test_the_emulator_ends_with_a_killed_pytest(tmp_path: Path) -> None:
    process = started(tmp_path, SLEEPS)
    try:
        until((tmp_path / "pids.json").exists)
        output = json.loads((tmp_path / "pids.json").read_text())
        assert psutil.pid_exists(output["daemon"])
    finally:
        process.kill()
        process.communicate()
    until(lambda: control.running(Path(output["directory"])) is None)
    until(lambda: processes_below(tmp_path) == [])


def test_it_is_not_loaded_automatically(request: pytest.FixtureRequest) -> None:
    assert not request.config.pluginmanager.hasplugin("cloud_tpu_emulator.pytest_plugin")


BASH = shutil.which("bash")


def shell(cli: Cli, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    assert BASH is not None
    words = [BASH, "-c", script]
    return subprocess.run(
        words, env=os.environ | cli.env | env, capture_output=True, text=True, timeout=HANG_S, check=False
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_up_prints_lines_for_a_shell(cli: Cli) -> None:
    port, grpc_port = free_port(), free_port()
    done = cli("emulator", "up", "--port", str(port), "--grpc-port", str(grpc_port))
    assert done.returncode == 0, done.stderr
    assert f"emulator at http://127.0.0.1:{port}, " in done.stderr
    output = shell(
        cli, 'eval "$LINES"; echo $TPUJOB_EMULATOR_URL $TPUJOB_EMULATOR_GRPC; command -v ssh', LINES=done.stdout
    )
    assert output.stdout.split() == [
        f"http://127.0.0.1:{port}",
        f"127.0.0.1:{grpc_port}",
        str(cli.emulator_directory / "bin" / "ssh"),
    ]
    assert cli("emulator", "env").stdout == done.stdout
    shown = json.loads(cli("emulator", "env", "--json").stdout)
    assert (shown["url"], shown["environment"]["TPUJOB_EMULATOR_URL"]) == (f"http://127.0.0.1:{port}",) * 2


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_line_that_is_printed_works(cli: Cli) -> None:
    printed = cli("emulator", "up").stdout
    lines = [
        line.removeprefix("# ") for line in printed.splitlines() if "curl " in line or "$TPUJOB_EMULATOR_URL/" in line
    ]
    command = "\n".join(lines).removeprefix("curl:").lstrip()
    output = shell(cli, f'eval "$LINES"; {command}', LINES=printed)
    assert json.loads(output.stdout) == {}, output.stderr


@pytest.mark.exhaustive
def test_another_port_for_one_that_runs_is_refused(cli: Cli) -> None:
    cli("emulator", "up", "--grpc")
    done = cli("emulator", "up", "--port", str(free_port()))
    assert (done.returncode, "already" in done.stderr) == (64, True)
    done = cli("emulator", "up", "--grpc-port", str(free_port()))
    assert (done.returncode, "runs at" in done.stderr) == (64, True)


@pytest.mark.parametrize("words", [
    ["env"], ["vanish", "foo"], ["preempt", "foo"], ["worker", "foo", "0", "silent"],
    ["fault", "add", "hidden", "seconds=4"],
    ["fault", "list"], ["fault", "clear"], ["capacity", "list"], ["rehearse"], ["requests"],
], ids=" ".join)  # fmt: skip
def test_a_command_about_a_running_emulator_starts_none(tpujob: Tpujob, words: list[str]) -> None:
    with tpujob.starting_no_emulator():
        done = tpujob("emulator", *words)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr == "the emulator is not running\nhint: `tpujob emulator up` starts it\n"


def test_a_rehearsal_starts_the_emulator(cli: Cli) -> None:
    assert cli("emulator", "capacity", "set", "*/*", "none").returncode == 0
    assert control.running(cli.emulator_directory) is not None


def test_with_a_daemon_of_an_older_version_up_and_env_print_what_it_has(cli: Cli) -> None:
    def answer(asked: Request) -> StubReply:
        if asked.method == "PATCH":
            return StubReply(400, {"error": {"message": "settings: there is no setting lend_torch"}})
        return StubReply(200, {"target": None} if asked.path.endswith("grpc") else {"visible_s": 0.0})

    cli.emulator_directory.mkdir(mode=0o700, parents=True)
    with stub_api() as older, (cli.emulator_directory / "daemon.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (cli.emulator_directory / "token").write_text("secret")
        (cli.emulator_directory / "daemon.json").write_text(json.dumps({"url": older.url, "pid": os.getpid()}))
        older.answer_with = answer
        shown = cli("emulator", "env")
        assert (shown.returncode, f"TPUJOB_EMULATOR_URL={older.url}" in shown.stdout) == (0, True), shown.text
        refused = cli("emulator", "up", "--no-lend-torch")
        assert refused.returncode == 64 and "no setting lend_torch" in refused.stderr, refused.text
        assert "`tpujob emulator stop`" in refused.stderr


# -- ssh and scp for gcloud -------------------------------------------------------------------------------------------


def test_the_wrapper_adds_the_port_of_the_worker_that_gcloud_names(
    api: tpu_v2.TpuClient, create: Create, shared_emulator: Emulator, login_key: Path
) -> None:
    node = create(accelerator_type="v5litepod-16")
    ports = [machine.port for machine in machines(api, node.name, login_key)]
    directory = shared_emulator.state_dir

    def port(program: str, *words: str) -> int | None:
        return ssh_wrapper.port_for(directory, program, [*words])

    assert [port("ssh", "-o", f"HostKeyAlias=tpu.{node.id}-{i}-abc/+9", "u@127.0.0.1") for i in range(4)] == ports
    assert port("scp", "-o", f"HostKeyAlias=tpu.{node.id}-3", "a", "u@127.0.0.1:b") == ports[3]
    alias = f"HostKeyAlias=tpu.{node.id}-0"
    assert port("ssh", "-o", alias, "-p", "7", "u@h") is None  # a port is given
    assert port("ssh", "-o", alias, "u@h", "--", "psql", "-p", "7") == ports[0]  # another program's port
    assert port("ssh", "-o", f"HostKeyAlias=tpu.{node.id}-9", "u@h") is None  # no such worker
    assert port("ssh", "-o", "HostKeyAlias=tpu.1-0", "u@h") is None  # not of this emulator
    assert port("ssh", "u@h", "--", alias) is None


def test_the_wrapper_changes_no_other_use(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "ssh").write_text('#!/bin/sh\nprintf "%s\\n" real "$@"\n')
    (real / "ssh").chmod(0o755)
    directory = control.ssh_programs(tmp_path / "no emulator here")
    (tmp_path / "other").mkdir()
    elsewhere = f"{tmp_path}/other:{directory}:{directory}:{real}:/usr/bin:/bin"
    foreign = ["-o", "HostKeyAlias=tpu.1-0", "host", "a b"]
    for words, path in (
        (["-p", "22", "host", "a b"], f"{directory}:{real}:/usr/bin:/bin"),
        (["host"], elsewhere),
        (foreign, elsewhere),
        (foreign, f"{directory}:{real}:/usr/bin:/bin"),
    ):
        done = subprocess.run(
            [directory / "ssh", *words], env={"PATH": path}, capture_output=True, text=True, timeout=HANG_S, check=False
        )
        assert done.stdout.splitlines() == ["real", *words], done.stderr
