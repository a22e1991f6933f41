"""A worker whose only `python3` is 3.10, as on today's TPU VM images, from the command lines that are sent over SSH."""

import json
import os
import subprocess
from collections.abc import Callable

import pytest

from orchestrator.remote.ssh import agent
from tests.unit.vm.conftest import Worker, parsed
from tests.unit.vm.shipped import Tree
from tests.waiting import HANG_S

JOB = """
python3 -c 'import sys; print("on", *sys.version_info[:2])'
echo result > "$TPUJOB_ARTIFACTS/result.txt"
exit 3
"""
Shell = Callable[..., bytes]


@pytest.fixture
def shell(worker: Worker, python310: str) -> Shell:
    """The worker's: what it says to a command line and to what comes on stdin."""
    (worker.home / "bin").mkdir()
    (worker.home / "bin" / "python3").symlink_to(python310)
    env = {"HOME": str(worker.home), "PATH": f"{worker.home / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin"}

    def answer(command: str, stdin: bytes = b"") -> bytes:
        argv = ["bash", "-c", command]
        return subprocess.run(argv, input=stdin, capture_output=True, env=env, timeout=HANG_S, check=True).stdout

    return answer


def test_a_command_runs_from_the_agents_arrival_to_its_artifacts(worker: Worker, shell: Shell) -> None:
    assert agent.versioned_name().encode() in shell(agent.serve_command(), agent.archive())
    said = shell(agent.command("start"), worker.request(JOB))
    assert parsed(said.splitlines()[0]) == {"started": True}
    assert b"on 3 10\n" in said and b'"rc": 3' in said, "followed to its end"
    assert json.loads(worker.path("main", "exit.json").read_text())["rc"] == 3
    status = parsed(shell(agent.command("status", "a1", "main")))
    assert status["state"] == "exited"
    wanted = json.dumps({"attempt": "a1", "patterns": ["*"]})
    row, end, packed = shell(agent.command("pack"), f"{wanted}\n[[0, 1]]\n".encode()).split(b"\n", 2)
    assert (parsed(row)["path"], parsed(end)["end"]) == ("artifacts/result.txt", 1)
    assert packed == b"result\n"


def test_what_is_shipped_is_stored_and_unpacked_and_the_worker_reports_its_python(worker: Worker, shell: Shell) -> None:
    shell(agent.serve_command(), agent.archive())
    assert parsed(shell(agent.command("hello")))["python"].startswith("3.10.")
    tree = Tree({"a.txt": b"shipped\n"})
    assert shell(agent.command("receive", tree.id), tree.stream()).endswith(b'tpujob:{"stored": 1}\n')
    said = shell(agent.command("start"), worker.request("cat a.txt", manifest=tree.id))
    assert b"shipped\n" in said and b'"rc": 0' in said
