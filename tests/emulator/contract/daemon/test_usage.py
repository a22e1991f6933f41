"""How people use the emulator: `tpujob emulator up`, `env` and `stop`, and the fixture of another project's tests."""

import fcntl
import inspect
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from google.cloud import tpu_v2

from cloud_tpu_emulator import __main__
from cloud_tpu_emulator.daemon import control, ssh_wrapper
from orchestrator.cli.commands.emulator.daemon import up
from tests.cli_fixture import Cli, Tpujob
from tests.emulator.contract.conftest import Create, machines
from tests.emulator.fixture import Emulator
from tests.fakes.api import Request, StubReply, stub_api
from tests.waiting import ran


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


BASH = shutil.which("bash")


def shell(cli: Cli, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    assert BASH is not None
    words = [BASH, "-c", script]
    return ran(words, env=os.environ | cli.env | env)


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


MODULE = (sys.executable, "-m", "cloud_tpu_emulator")


def test_the_module_starts_what_up_starts(cli: Cli) -> None:
    assert {*inspect.signature(up).parameters} - {"as_json"} == __main__.SHARED | {"port"}
    env = os.environ | cli.env
    argv = [*MODULE, "--detach", "--grpc"]
    done = ran(argv, env=env)
    assert done.returncode == 0 and "TPUJOB_EMULATOR_GRPC" in done.stdout, done.stderr
    assert cli("emulator", "env").stdout == done.stdout
    assert cli("emulator", "stop").stdout == "stopped\n"
    with subprocess.Popen(MODULE, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None and "TPUJOB_EMULATOR_URL" in process.stdout.readline()
        assert json.loads(cli("emulator", "status", "--json").stdout)["pid"] == process.pid
        process.terminate()
    assert process.returncode == 0


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
        done = ran([directory / "ssh", *words], env={"PATH": path})
        assert done.stdout.splitlines() == ["real", *words], done.stderr
