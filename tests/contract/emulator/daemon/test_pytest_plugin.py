"""The emulator in another project's tests: the documented fixture, without anything else of tpujob."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from orchestrator.emulator.daemon import control
from tests import ROOT
from tests.waiting import HANG_S, until

CONFTEST = 'pytest_plugins = ["orchestrator.emulator.pytest_plugin"]\n'
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
    assert not request.config.pluginmanager.hasplugin("orchestrator.emulator.pytest_plugin")
