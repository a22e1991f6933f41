"""The fixture `tpu_emulator` for test suites of other projects, and programs that know only Google's address."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import psutil
import pytest
from google.cloud import tpu_v2

from cloud_tpu_emulator.daemon import control
from cloud_tpu_emulator.fixture import TpuEmulator
from tests import ROOT
from tests.emulator.contract.conftest import ZONE, fetch, finish, node_body
from tests.emulator.fixture import Emulator
from tests.waiting import HANG_S, ran, until

PROGRAM = """
import sys
import google.auth
from google.cloud import tpu_v2

credentials, project = google.auth.default()
client = tpu_v2.TpuClient(transport=sys.argv[1]) if sys.argv[1:] else tpu_v2.TpuClient()
parent = f"projects/{project}/locations/us-central1-a"
node = tpu_v2.Node(accelerator_type="v5litepod-4", runtime_version="v2-alpha-tpuv5-lite")
made = client.create_node(parent=parent, node_id=f"plain-{client.transport.kind}", node=node).result(timeout=60)
print(made.name, made.state.name, [each.name for each in client.list_nodes(parent=parent)].count(made.name))
"""


@pytest.fixture(scope="module")
def environment(shared_emulator: Emulator) -> dict[str, str]:
    return shared_emulator.published.environment()


def plain(environment: dict[str, str], *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has this environment and nothing else."""
    return ran(argv, env=environment | more, cwd="/")


@pytest.mark.parametrize(("words", "kind"), [([], "grpc"), (["rest"], "rest")])
def test_a_plain_client_of_google_needs_only_the_environment(
    environment: dict[str, str], words: list[str], kind: str
) -> None:
    done = plain(environment, sys.executable, "-c", PROGRAM, *words)
    assert done.stdout == f"{ZONE}/nodes/plain-{kind} READY 1\n", done.stderr


def test_curl_too_and_no_other_api_of_google_is_reached(shared_emulator: Emulator, environment: dict[str, str]) -> None:
    token = f"Authorization: Bearer {shared_emulator.token}"
    done = plain(environment, "curl", "-sS", "-H", token, f"https://tpu.googleapis.com/v2/{ZONE}/acceleratorTypes")
    assert '"acceleratorTypes"' in done.stdout, done.stderr
    refused = plain(environment, "curl", "-sS", "https://compute.googleapis.com/")
    assert refused.returncode != 0 and "403" in refused.stderr


def test_a_caller_without_token_or_header_and_a_web_page_get_nothing(
    shared_emulator: Emulator, environment: dict[str, str]
) -> None:
    done = plain(environment, "curl", "-sS", f"https://tpu.googleapis.com/v2/{ZONE}/nodes")
    assert "UNAUTHENTICATED" in done.stdout, done.stderr
    token = f"{shared_emulator.url}/computeMetadata/v1/instance/service-accounts/default/token"
    page = {"Metadata-Flavor": "Google", "Origin": "http://127.0.0.1"}
    callers: list[dict[str, Any]] = [{"Accept": "*/*"}, page, {"Metadata-Flavor": "Google", "Host": "evil.example"}]
    for headers in callers:
        status, text, _ = fetch(token, **headers)
        assert status == 403 and shared_emulator.token not in text


def test_another_host_is_reached_unread(shared_emulator: Emulator, environment: dict[str, str]) -> None:
    path = f"{shared_emulator.url}/v2/{ZONE}/nodes"
    done = plain(environment, "curl", "-sS", "--noproxy", "", "-x", environment["https_proxy"], "-p", path)
    assert "UNAUTHENTICATED" in done.stdout, done.stderr


def test_its_methods_make_happen_what_they_say(emulator: Emulator) -> None:
    tpus: TpuEmulator = emulator.published
    client = tpus.client()
    tpus.settings(notice_s=600, maintenance_s=600)
    for name in ("a", "b"):
        finish(client.create_node(parent=ZONE, node_id=name, node=node_body()))

    def state(name: str) -> str:
        return client.get_node(name=f"{ZONE}/nodes/{name}").state.name

    tpus.put("a", "REPAIRING", lasts_s=300)
    assert state("a") == "REPAIRING"
    tpus.maintain("b")
    tpus.advance(301)
    until(lambda: state("a"), wanted=lambda found: found == "READY")
    assert client.get_node(name=f"{ZONE}/nodes/b").health != tpu_v2.Node.Health.UNHEALTHY_MAINTENANCE
    tpus.advance(300)
    assert client.get_node(name=f"{ZONE}/nodes/b").health == tpu_v2.Node.Health.UNHEALTHY_MAINTENANCE
    tpus.preempt(f"{ZONE}/nodes/a", notice_s=60)
    assert state("a") == "READY"
    tpus.advance(60)
    assert state("a") == "PREEMPTED"
    [hours] = [row["node_seconds"] for row in tpus.billing() if row["name"].endswith("/a")]
    assert 661 <= hours < 700


def test_the_cloud_keeps_its_time_across_a_restart(emulator: Emulator) -> None:
    reached = emulator.request("POST", "/_emulator/clock", {"advance_s": 86400})["now"]
    assert reached > emulator.status()["started"]
    control.stop(emulator.state_dir)
    assert emulator.restarted().status()["started"] > reached


CONFTEST = 'pytest_plugins = ["cloud_tpu_emulator.pytest_plugin"]\n'
TESTS = """
import os, subprocess, sys

def test_another_test_has_another_cloud(tpu_emulator):
    assert tpu_emulator.billing() == []

def test_tpujob_in_a_child_process_runs_a_job_there_with_state_of_its_own(tpu_emulator, tmp_path):
    (tmp_path / "job.yaml").write_text("tpu: {accelerator: v5e-8, zone: us-central1-a}\\ncommand: echo trained\\n")
    argv = [sys.executable, "-m", "orchestrator.cli", "run", "job.yaml"]
    done = subprocess.run(argv, cwd=tmp_path, env=os.environ | tpu_emulator.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["until"] is None for row in tpu_emulator.billing()] == [False]

def test_a_node_is_left_behind(tpu_emulator):
    node = {"acceleratorType": "v5litepod-4", "runtimeVersion": "v2-alpha-tpuv5-lite"}
    tpu_emulator.call("POST", "/v2/projects/emulated/locations/us-central1-a/nodes?nodeId=left", node)
    assert [row["until"] for row in tpu_emulator.billing()] == [None]
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


def started(directory: Path, tests: str, conftest: str = CONFTEST, path: str = "") -> subprocess.Popen[str]:
    """Start pytest in a project with these tests. `path`: what else Python searches."""
    (directory / "conftest.py").write_text(conftest)
    (directory / "test_mine.py").write_text(tests)
    argv = [
        sys.executable,
        *["-m", "pytest", "-q", "-s", "--color=no", "-p", "no:cacheprovider"],
        f"--basetemp={directory / 'tmp'}",
    ]
    env, pipe = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{path}", "PYTEST_ADDOPTS": ""}, subprocess.PIPE
    return subprocess.Popen(argv, cwd=directory, env=env, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def printed(directory: Path, tests: str, **more: str) -> str:
    """Return what pytest printed at its end."""
    with started(directory, tests, **more) as process:
        return process.communicate(timeout=HANG_S)[0]


def programs(page: Path) -> dict[str, str]:
    """Return the programs of a page, by their names."""
    text = page.read_text(encoding="utf-8")
    return dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


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
    assert re.search(r"^3 passed in ", text, re.MULTILINE), text
    assert processes_below(tmp_path) == []


@pytest.mark.ci
@pytest.mark.parametrize(("without", "result"), [("", "2 passed"), (r", retry=Retry\(.*?\)", "1 failed, 1 passed")])
def test_the_tests_of_the_page_pass_and_find_a_delete_that_is_not_repeated(
    tmp_path: Path, without: str, result: str
) -> None:
    files = programs(ROOT / "docs" / "emulator.md")
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


@pytest.mark.ci
def test_the_programs_of_its_readme_work(tmp_path: Path, shared_emulator: Emulator) -> None:
    files = programs(ROOT / "cloud_tpu_emulator" / "README.md")
    env = os.environ | control.client_environment(shared_emulator.endpoint, shared_emulator.state_dir)
    subprocess.run([sys.executable, "-c", files["list_nodes.py"]], env=env, check=True, timeout=HANG_S)
    (tmp_path / "create.py").write_text(files["create.py"])
    text = printed(tmp_path, files["test_create.py"])
    assert "1 passed" in text, text


HEAVY = """
def pytest_collection_finish(session):
    import sys
    heavy = {"google.cloud", "grpc", "aiohttp", "requests", "cloud_tpu_emulator.daemon.control"} & set(sys.modules)
    print("heavy:", sorted(heavy))
"""


@pytest.mark.parametrize("named", ["", CONFTEST])
def test_the_entry_point_loads_a_module_that_imports_nothing_heavy(tmp_path: Path, named: str) -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    [(name, module)] = points.items()
    assert name == module, "pytest registers a plugin that conftest.py names, too, by its module"
    installed = tmp_path / "site" / "mine-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Name: mine\nVersion: 1\n")
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{name} = {module}\n")
    tests = "def test(tpu_emulator): assert tpu_emulator.billing() == []\n"
    text = printed(tmp_path, tests, conftest=named + HEAVY, path=str(tmp_path / "site"))
    assert "heavy: []" in text and "1 passed" in text, text
