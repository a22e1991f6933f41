"""The agent's archive and command lines, and what importing this layer costs."""

import io
import subprocess
import sys
import zipfile
from pathlib import Path

from orchestrator.remote.ssh import agent


def test_the_archive_holds_the_agents_files_and_is_the_same_every_time() -> None:
    files = zipfile.ZipFile(io.BytesIO(agent.archive())).namelist()
    assert {"__main__.py", "vm/__main__.py", "vm/serve.py", "vm/supervisor.py", "vm/pack.py"} <= set(files)
    code = "from orchestrator.remote.ssh import agent; print(agent.digest())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == agent.digest()


def test_a_worker_and_a_pod_get_what_they_run_and_no_more() -> None:
    of_worker, of_pod = (
        set(zipfile.ZipFile(io.BytesIO(packed)).namelist()) for packed in (agent.archive(), agent.pod_archive())
    )
    assert not {name for name in of_worker if name.startswith("vm/pod")}
    assert {"vm/pod.py", "vm/pod_output.py", "vm/local.py", "vm/supervisor.py", "vm/pack.py"} <= of_pod
    assert not {"vm/serve.py", "vm/receive.py", "vm/watchdog.py"} & of_pod
    assert len(agent.pod_archive()) < 80 << 10  # it shares the 1 MiB of a ConfigMap with the code


def run(home: Path, command: str, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    return subprocess.run(
        ["bash", "-c", command], check=False, input=stdin, capture_output=True, env={"HOME": str(home), "PATH": path}
    )


def test_the_archive_is_installed_once_and_says_its_name(tmp_path: Path) -> None:
    first = run(tmp_path, agent.serve_command(), agent.archive())
    assert (first.returncode, first.stdout) == (0, b"\ntpujob:%s\n" % agent.versioned_name().encode())
    again = run(tmp_path, agent.serve_command(), agent.archive())
    assert again.stdout == first.stdout
    assert [path.name for path in (tmp_path / "tpujob" / "bin").iterdir()] == [f"{agent.versioned_name()}.zip"]


def test_the_script_of_a_job_calls_single_verbs(tmp_path: Path) -> None:
    run(tmp_path, agent.serve_command(), agent.archive())
    assert b'"state": "none"' in run(tmp_path, agent.command("status", "a1", "main"), b"").stdout
    assert b"bad name 'a b'" in run(tmp_path, agent.command("status", "a b", "main"), b"").stdout


def test_an_archive_that_arrives_cut_or_changed_is_never_installed(tmp_path: Path) -> None:
    assert b"was cut" in run(tmp_path, agent.serve_command(), agent.archive()[:-1]).stderr
    assert b"another content" in run(tmp_path, agent.serve_command(), bytes(len(agent.archive()))).stderr
    assert list(tmp_path.iterdir()) == []


def test_an_archive_that_a_crash_of_the_worker_left_empty_is_installed_again(tmp_path: Path) -> None:
    run(tmp_path, agent.serve_command(), agent.archive())
    (installed,) = (tmp_path / "tpujob" / "bin").iterdir()
    installed.write_bytes(b"")
    assert run(tmp_path, agent.serve_command(), agent.archive()).returncode == 0
    assert installed.read_bytes() == agent.archive()


def test_importing_the_fleet_imports_no_ssh_library() -> None:
    code = "import sys, orchestrator.remote.fleet.fleet\n"
    code += "print({'paramiko', 'fabric', 'invoke', 'cryptography'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "set()"
