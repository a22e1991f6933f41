"""Environments of jobs, made by the real verb with uv and with pip, from wheels of the test and without a network."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from cloud_tpu_emulator.vms import pythons
from orchestrator.text.scripts import Environment
from orchestrator.vm.environment import tools, virtualenv
from tests import ROOT
from tests.waiting import HANG_S, ran, until
from tests.wheels import wheel

UV = shutil.which("uv") or next(
    (str(path) for place in sys.path for path in [Path(place, "../../../bin/uv").resolve()] if path.exists()), None
)
PYENV = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
ALPHA = Environment(what="requirements.txt", requirements="alpha\n")


class Worker:
    """A home directory, and the programs that are in PATH there."""

    def __init__(self, directory: Path, uv: str | None) -> None:
        self.home, self.bin = directory / "home", directory / "bin"
        self.wheels = directory / "wheels"
        for path in (self.home, self.bin):
            path.mkdir(parents=True)
        self.env = {
            "HOME": str(self.home),
            "PYTHONPATH": str(ROOT),
            "PYENV_ROOT": str(directory / "none"),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "UV_PYTHON_DOWNLOADS": "never",
        }
        if uv is not None:
            (self.bin / "uv").symlink_to(uv)
        python = directory / "python"
        pythons.make(python, [pythons._pip(directory / "links")])  # whose pip is there at once
        (python / "bin" / "uv").unlink(missing_ok=True)
        self.env["PATH"] = f"{self.bin}:{python / 'bin'}:/usr/bin:/bin"
        wheel(self.wheels, "alpha")

    def start(self, asked: Environment) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestrator.vm", "environment"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.env,
            cwd=self.home,
        )
        process.stdin.write(json.dumps(asdict(asked) | {"name": asked.name}))
        process.stdin.close()
        process.stdin = None
        return process

    def make(self, asked: Environment) -> tuple[int, str]:
        process = self.start(asked)
        said, _ = process.communicate(timeout=HANG_S)
        return process.returncode, said

    def place(self, asked: Environment) -> Path:
        return self.home / "tpujob" / "envs" / asked.name

    def run(self, asked: Environment, code: str) -> str:
        argv = [str(self.place(asked) / "bin" / "python"), "-c", code]
        env = {name: value for name, value in self.env.items() if name != "PYTHONPATH"}
        done = ran(argv, env=env)
        return done.stdout.strip() or done.stderr

    @property
    def environments(self) -> set[str]:
        return {path.name for path in (self.home / "tpujob" / "envs").iterdir() if path.is_dir()}


@pytest.fixture(params=["uv", pytest.param("pip", marks=pytest.mark.ci)])
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Worker:
    if request.param == "uv" and UV is None:
        pytest.skip("needs uv (the `test` extra)")
    return Worker(tmp_path, UV if request.param == "uv" else None)


@pytest.fixture
def with_pip(tmp_path: Path) -> Worker:
    return Worker(tmp_path, None)


@pytest.mark.exhaustive
@pytest.mark.parametrize("uv", [None, UV])
def test_a_python_that_lends_nothing_makes_a_whole_environment(tmp_path: Path, uv: str | None) -> None:
    """As on a TPU VM; here the venv module takes seconds to unpack pip."""
    worker = Worker(tmp_path, uv)
    (worker.bin / "python3").symlink_to(sys._base_executable)  # type: ignore[attr-defined]
    code, said = worker.make(ALPHA)
    assert code == 0 and "requirements.txt: 1 package in " in said
    assert str(worker.place(ALPHA)) in worker.run(ALPHA, "import pip; print(pip.__file__)")
    assert (worker.place(ALPHA) / "bin" / "pip").exists()


def test_an_environment_is_made_once_and_one_line_says_so(worker: Worker) -> None:
    code, said = worker.make(ALPHA)
    venv = "uv venv" if (worker.bin / "uv").exists() else "venv"
    assert code == 0 and said.startswith(f"setup    {venv}, requirements.txt: 1 package in "), said
    assert worker.run(ALPHA, "import alpha; print(alpha.__version__)") == "0.0.1"
    assert (worker.place(ALPHA) / "bin" / "pip").exists()
    shutil.rmtree(worker.wheels)
    there = f"setup    {venv}, requirements.txt: 1 package, is there already\n"
    assert worker.make(replace(ALPHA, remark="a remark")) == (0, f"setup    a remark\n{there}")


def test_what_a_lock_names_is_installed_and_no_other_file(worker: Worker) -> None:
    hashed = hashlib.sha256(wheel(worker.wheels, "alpha", "0.0.0").read_bytes()).hexdigest()
    locked = replace(ALPHA, lock=f"alpha==0.0.0 --hash=sha256:{hashed}\n", lock_python=OWN)
    code, said = worker.make(locked)
    assert code == 0 and worker.run(locked, "import alpha; print(alpha.__version__)") == "0.0.0", said
    forged = replace(locked, lock=f"alpha==0.0.0 --hash=sha256:{64 * '0'}\n")
    code, said = worker.make(forged)
    assert code != 0 and re.search("hash", said, re.I), said
    assert forged.name != locked.name != ALPHA.name


def test_a_lock_for_another_python_is_not_installed_and_that_is_said(worker: Worker) -> None:
    locked = replace(ALPHA, lock="alpha==7\n", lock_python="3.7")
    code, said = worker.make(locked)
    assert code == 0 and f"chosen are for Python 3.7, and this worker has {OWN}: chosen anew" in said
    assert worker.run(locked, "import alpha; print(alpha.__version__)") == "0.0.1"


def test_pip_installs_a_lock_with_what_is_local_beside_what_has_hashes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called: list[str] = []
    monkeypatch.setattr(tools.Tool, "_call", lambda self, argv, done: called.extend(argv))
    tool = tools.Tool(None, tmp_path, 0, "requirements.txt", True)
    tool.install("--pre\nalpha==1 --hash=sha256:0 --hash=sha256:1\n", "")
    assert "alpha==1 --hash=sha256:0 --hash=sha256:1\n" in (tmp_path / "requirements.txt").read_text()
    tool.install("--pre\nalpha==1 --hash=sha256:0\n./lib\n", "")
    assert (tmp_path / "requirements.txt").read_text() == "--pre\nalpha==1\n./lib\n"
    assert called.count("-r") == 2


def test_an_index_that_the_requirements_name_counts_more_than_that_of_pip() -> None:
    environ = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "https://one", "PIP_EXTRA_INDEX_URL": "https://two"}
    for requirements, default in (("alpha\n", "https://one"), ("--index-url https://three\nalpha\n", None)):
        found = dict(environ)
        tools.adopt_settings_of_pip(sys.prefix, requirements, found)
        assert (found.get("UV_DEFAULT_INDEX"), found["UV_INDEX"]) == (default, "https://two")


def test_an_environment_whose_deletion_was_killed_does_not_count_as_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "old"
    place.mkdir()
    (place / virtualenv.MARK).write_text("{}")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(virtualenv.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        virtualenv._delete(place)
    assert place.exists() and not (place / virtualenv.MARK).exists()


def test_where_pip_cannot_be_had_uv_stands_for_it_also_below_a_home_with_an_odd_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "O'Brien $HOME"
    place = home / "envs" / "e"
    (place / "bin").mkdir(parents=True)
    uv = home / "uv"
    uv.write_text('#!/bin/sh\necho "$VIRTUAL_ENV" "$@"\n')
    uv.chmod(0o755)
    failed = subprocess.CompletedProcess([], 1, "", "")
    monkeypatch.setattr(tools, "ask", lambda argv: failed)
    tools.Tool(str(uv), place, 0, "", True).ensure_pip()
    said = ran([str(place / "bin" / "pip"), "list"], check=True).stdout
    assert said == f"{place} pip list\n"


@pytest.mark.ci
def test_other_workers_than_the_first_say_only_what_is_wrong(with_pip: Worker) -> None:
    with_pip.env["TPUJOB_WORKER"] = "3"
    assert with_pip.make(ALPHA) == (0, "")
    code, said = with_pip.make(Environment(what="requirements.txt", requirements="nosuch\n"))
    assert code != 0 and "nosuch" in said


def test_a_failed_install_names_the_package_and_ends_with_the_code_of_the_tool(worker: Worker) -> None:
    asked = Environment(what="requirements.txt", requirements="alpha\nnosuch>=3\n")
    code, said = worker.make(asked)
    last = said.splitlines()[-1]
    assert code == 1 and last.startswith("setup    requirements.txt cannot be installed: "), said
    assert "nosuch" in last
    assert worker.environments == set(), "what is half made takes no room"


def test_constraints_hold(worker: Worker) -> None:
    wheel(worker.wheels, "alpha", "2.0")
    asked = Environment(what="requirements.txt", requirements="alpha\n", constraints="alpha<1\n")
    assert worker.make(asked)[0] == 0
    assert worker.run(asked, "import alpha; print(alpha.__version__)") == "0.0.1"


def test_a_path_of_the_code_is_installed_from_the_working_directory(worker: Worker) -> None:
    wheel(worker.home / "vendor", "local", "7.0")
    asked = Environment(what="requirements.txt", requirements="./vendor/local-7.0-py3-none-any.whl\n")
    assert worker.make(asked)[0] == 0
    assert worker.run(asked, "import local; print(local.__version__)") == "7.0"


def test_an_environment_whose_python_is_gone_is_made_again(with_pip: Worker) -> None:
    with_pip.make(ALPHA)
    (with_pip.place(ALPHA) / "bin" / "python").unlink()
    code, said = with_pip.make(ALPHA)
    assert code == 0 and "1 package in" in said


SLOW_UV = """#!/bin/bash
if [ "$1" = venv ]; then exec {python} -m venv --without-pip "${{@: -1}}"; fi
[[ "$*" == *" -r "* ]] || exit 1
touch {started}
while [ ! -e {go_on} ]; do sleep 0.02; done
touch {wrote}
exit 1
"""


@pytest.fixture
def killed(with_pip: Worker, tmp_path: Path) -> Callable[[], None]:
    """Kill -9 the verb while its tool installs; the tool itself goes on. Call it to let the tool end."""
    started, go_on, wrote = tmp_path / "started", tmp_path / "go-on", tmp_path / "wrote"
    uv = with_pip.bin / "uv"
    uv.write_text(SLOW_UV.format(python=sys.executable, started=started, go_on=go_on, wrote=wrote))
    uv.chmod(0o755)
    process = with_pip.start(ALPHA)
    until(started.exists, "the installation")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    uv.unlink()

    def end() -> None:
        go_on.touch()
        until(wrote.exists, "the end of the tool")

    return end


@pytest.mark.ci
def test_after_kill_9_in_the_middle_the_half_environment_is_not_used(
    with_pip: Worker, killed: Callable[[], None]
) -> None:
    assert (with_pip.place(ALPHA) / "bin" / "python").exists(), "it is half made"
    killed()
    code, said = with_pip.make(ALPHA)
    assert code == 0 and "1 package in" in said
    assert with_pip.run(ALPHA, "import alpha; print(alpha.__version__)") == "0.0.1"


def test_no_process_begins_again_while_the_tool_of_a_killed_one_still_writes(
    with_pip: Worker, killed: Callable[[], None]
) -> None:
    with Path(f"{with_pip.place(ALPHA)}.lock").open() as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        killed()
        until(lambda: fcntl.flock(lock, fcntl.LOCK_EX) is None, "the lock")


def test_two_at_once_make_it_once(with_pip: Worker) -> None:
    both = [with_pip.start(ALPHA) for _ in range(2)]
    said = sorted(process.communicate(timeout=HANG_S)[0] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert sum("1 package in" in text for text in said) == 1, said


@pytest.mark.ci
def test_old_environments_are_deleted_but_for_the_newest_and_those_in_use(with_pip: Worker) -> None:
    root = with_pip.home / "tpujob" / "envs"
    for number, name in enumerate(("old", "used", "newer", "newest")):
        (root / name).mkdir(parents=True)
        (root / name / ".complete").touch()
        os.utime(root / name / ".complete", (1_000 + number, 1_000 + number))
    (root / "half").mkdir()
    with (root / "used.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        with_pip.make(ALPHA)
    assert with_pip.environments == {ALPHA.name, "newest", "newer", "used"}


def test_a_python_that_the_worker_does_not_have_is_one_line(worker: Worker) -> None:
    code, said = worker.make(Environment(python="3.99"))
    assert code != 0
    assert said.splitlines()[-1].startswith(
        "setup    there is no Python 3.99 on this worker (in PATH, or of pyenv), and "
    )


@pytest.mark.ci
def test_a_python_of_the_worker_is_found_in_path_although_a_shim_there_has_nothing_behind_it(worker: Worker) -> None:
    asked = Environment(python=OWN)
    other = worker.bin / "python3"
    other.write_text("#!/bin/sh\necho 'pyenv: no such version' >&2; exit 127\n")
    other.chmod(0o755)
    (worker.bin / f"python{OWN}").symlink_to(sys._base_executable)  # type: ignore[attr-defined]
    code, said = worker.make(asked)
    assert code == 0 and f", Python {OWN}." in said, said


@pytest.mark.ci
@pytest.mark.parametrize(
    "version", [pytest.param(v, marks=pytest.mark.exhaustive) for v in ("3.10", "3.13")] + ["3.12"]
)
def test_another_python_of_pyenv_is_used(worker: Worker, version: str) -> None:
    if version == OWN or not any((PYENV / "versions").glob(f"{version}*/bin/python{version}")):
        pytest.skip(f"needs pyenv's Python {version} beside {OWN}")
    worker.env["PYENV_ROOT"] = str(PYENV)
    asked = Environment(what="requirements.txt", requirements="alpha\n", python=version)
    code, said = worker.make(asked)
    assert code == 0 and f"Python {version}." in said, said
    assert worker.run(asked, "import alpha, sys; print('%d.%d' % sys.version_info[:2])") == version


def test_a_python_that_is_too_old_is_refused_before_anything_is_installed(with_pip: Worker) -> None:
    asked = Environment(what="torch", requirements="nosuch\n", least_python="3.99", too_old="too old: {version}")
    assert with_pip.make(asked) == (2, f"setup    too old: {sys.version.split()[0]}\n")


def lend(worker: Worker, directory: Path) -> Environment:
    """Lend packages of this test in place of torch, as the emulator does; return what asks for them."""
    for name, needs in (("torch-2.9.0+own", "Requires-Dist: parts"), ("parts-1.0", "")):
        package = directory / name.partition("-")[0]
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("__version__ = 'lent'\n")
        info = directory / f"{name}.dist-info"
        info.mkdir()
        version = name.partition("-")[2]
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {version}\n{needs}\n")
        (info / "entry_points.txt").write_text(f"[console_scripts]\nrun-{package.name} = {package.name}:run\n")
    pip = pythons._pip(directory.parent / "links")
    pythons.make(worker.home.parent / "python", [pip, pythons._lent("torch", directory, {})])
    return Environment(what="requirements.txt", requirements="needs-torch\ntorch>=2\n")


def test_what_an_emulated_worker_lends_is_installed_already_for_pip_and_uv(worker: Worker, tmp_path: Path) -> None:
    asked = lend(worker, tmp_path / "lent")
    wheel(worker.wheels, "needs_torch", requires=("torch>=2.1", "parts"))
    code, said = worker.make(asked)
    assert code == 0 and ": 1 package, torch of this machine lent (emulated) in " in said, said
    assert worker.run(asked, "import needs_torch, torch, parts; print(torch.__version__)") == "lent"
    assert (worker.place(asked) / "bin" / "run-torch").exists()


def test_another_version_of_what_is_lent_replaces_it_here_and_deletes_nothing_there(
    worker: Worker, tmp_path: Path
) -> None:
    lent = lend(worker, tmp_path / "lent")
    wheel(worker.wheels, "torch", "1.5")
    asked = replace(lent, requirements="torch<2\n")
    code, said = worker.make(asked)
    assert code == 0 and "this machine's torch is not lent: torch<2 is asked for," in said, said
    assert said.count("lent") == 1 and worker.run(asked, "import torch; print(torch.__version__)") == "1.5"
    assert "No module named 'parts'" in worker.run(asked, "import parts"), "what is lent with it is of that torch"
    assert (tmp_path / "lent" / "torch" / "__init__.py").exists()
    code, said = worker.make(replace(asked, base=str(worker.home.parent / "python" / "bin" / "python")))
    assert code == 1 and "torch==2.9.0+own of this machine is lent (emulated)\n" in said, "a training has no choice"


def visions(worker: Worker) -> None:
    for version, torch in (("0.20.0", "2.5.0"), ("0.24.0", "2.9.0"), ("0.25.0", "2.10.0")):
        wheel(worker.wheels, "torchvision", version, requires=(f"torch=={torch}",))
        wheel(worker.wheels, "torch", torch)


@pytest.mark.parametrize("also", ["", "torch\n", 'torch==2.5.0; python_version < "3"\n'])
def test_what_is_built_for_one_torch_is_that_of_the_torch_that_is_lent(
    worker: Worker, tmp_path: Path, also: str
) -> None:
    visions(worker)
    asked = replace(lend(worker, tmp_path / "lent"), requirements=f"torchvision\n{also}")
    code, said = worker.make(asked)
    assert code == 0 and ": 1 package, torch of this machine lent (emulated) in " in said, said
    assert worker.run(asked, "import torch, torchvision as v; print(torch.__version__, v.__version__)") == "lent 0.24.0"


def test_what_needs_another_torch_than_the_one_lent_says_which_package_wants_what(
    worker: Worker, tmp_path: Path
) -> None:
    visions(worker)
    code, said = worker.make(replace(lend(worker, tmp_path / "lent"), requirements="torchvision>=0.25\n"))
    assert code == 1 and re.search("torchvision.*0.25.* depends on torch==2.10.0", last := said.splitlines()[-1]), said
    assert "torch==2.9.0+own of this machine is lent (emulated); requirements that name another torch get it" in last


@pytest.mark.parametrize(("asked", "pin"), [
    ("torch_xla\ntorch; python_version > '3'\n", "torch==2.9.*"),
    ("torch_xla\ntorch\n", "torch==2.9.*"), ("torch-xla==2.5.0\ntorchvision\n", "torch==2.5.*"),
    ("torch_xla\ntorch>=2\n", "torch==2.9.*"), ("torch>=2\ntorch_xla[tpu]==2.5.0\n", "torch==2.5.*"),
    ("torch_xla\ntorchvision==0.20.0\n", "torch-xla==2.5.*"),
    ("torch_xla\ntorch==2.5.0\n", "torch-xla==2.5.*"), ("torch_xla==2.5.0\ntorch==2.5.0", ""),
])  # fmt: skip
def test_torch_and_torch_xla_are_of_one_version_which_their_metadata_do_not_say(
    worker: Worker, asked: str, pin: str
) -> None:
    visions(worker)
    for version in ("2.5.0", "2.9.0"):
        wheel(worker.wheels, "torch_xla", version)
    environment = replace(ALPHA, requirements=asked)
    constraint = "torch==2.5.0\n" if pin == "torch-xla==2.5.*" else ""
    if constraint:  # the same wherever it is given
        assert worker.make(replace(ALPHA, requirements="torch_xla\ntorch\n", constraints=constraint))[0] == 0
    code, said = worker.make(environment)
    assert code == 0 and (f" {pin} is asked for, too" in said if pin else "asked for" not in said), said
    program = "import torch, torch_xla as x; print(torch.__version__[:3] == x.__version__[:3])"
    assert worker.run(environment, program) == "True"


APT_GET = """#!/bin/sh
[ "$2" = update ] && exit 0
echo x >>"$0.calls"
[ $(wc -l <"$0.calls") -gt %d ] && touch "$0.done" && exit 0
echo "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4750 (unattended-upgr)" >&2
echo "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?" >&2
exit 100
"""
HELD = "the lock /var/lib/dpkg/lock-frontend. It is held by process 4750 (unattended-upgr)"


@pytest.mark.parametrize("times", [2, 1000])
def test_the_lock_of_a_package_manager_is_waited_for_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], times: int
) -> None:
    programs = {
        "sudo": '#!/bin/sh\n[ "$1" = apt-get ] || shift\nexec "$@"\n',
        "apt-get": APT_GET % times,
        "python3": f'#!/bin/sh\n[ -e "{tmp_path}/apt-get.done" ] && mkdir "$4" || exit 1\n',  # -m venv --without-pip
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(tools, "APT_PAUSE_S", 0.01)
    monkeypatch.setattr(tools, "APT_LOCK_S", HANG_S if times == 2 else 0.0)
    refused = f"requirements.txt cannot be created: waited 0 minutes for {HELD}"
    with (tmp_path / "lock").open("w") as lock:
        tool = tools.Tool(None, tmp_path / "made", lock.fileno(), "requirements.txt", True)
        if times == 2:
            tool.create(tmp_path / "python3", with_pip=False)
            assert (tmp_path / "made").is_dir()
        else:
            with pytest.raises(tools.Failed, match=re.escape(refused)):
                tool.create(tmp_path / "python3", with_pip=False)
    assert capfd.readouterr().out.count(f"setup    waiting for {HELD}\n") == 1


@pytest.mark.parametrize(("variables", "cert"), [
    ({}, "/of the file.pem"), ({"PIP_CERT": "/p.pem", "REQUESTS_CA_BUNDLE": "/r.pem"}, "/p.pem"),
    ({"SSL_CERT_FILE": "/uv.pem"}, "/uv.pem"), ({"PIP_CONFIG_FILE": os.devnull, "CURL_CA_BUNDLE": "/c"}, "/c"),
    ({"PIP_CONFIG_FILE": os.devnull, "UV_INDEX": "https://own"}, None),
])  # fmt: skip
def test_what_pip_is_set_up_with_is_that_of_uv_too(tmp_path: Path, variables: dict[str, str], cert: str | None) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\ncert = /of the file.pem\n[install]\nfind-links = /a\n    /b\n")
    environ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": str(config)}
    environ |= {"PIP_INDEX_URL": "https://i.example", "PIP_EXTRA_INDEX_URL": "https://m", **variables}
    code = (
        f"import sys, os, json; sys.path.insert(0, {str(ROOT)!r}); from orchestrator.vm.environment import tools as t; "
    )
    code += "t.adopt_settings_of_pip(sys.base_prefix); print(json.dumps(dict(os.environ)))"
    found = json.loads(subprocess.check_output([sys.executable, "-c", code], env=environ, timeout=HANG_S))
    indexes = [found.get(name) for name in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_STRATEGY")]
    others = ["https://own", None] if "UV_INDEX" in variables else ["https://m", "unsafe-best-match"]
    assert indexes == ["https://i.example", *others]
    assert found.get("UV_FIND_LINKS") == ("/a,/b" if "PIP_CONFIG_FILE" not in variables else None)
    assert found.get("SSL_CERT_FILE") == cert


@pytest.mark.parametrize(("output", "why"), [
    (
        "ERROR: Could not find a version that satisfies the requirement x (from versions: none)\n"
        "ERROR: No matching distribution found for x\n",
        "No matching distribution found for x",
    ),
    ("error: Request failed after 3 retries in 7.2s\n  cause: Failed to fetch: https://i/x/\n  cause: refused\n",
     "Request failed after 3 retries in 7.2s: Failed to fetch: https://i/x/"),
    ("  × No solution found when resolving dependencies:\n  ╰─▶ Because x was not found\n",
     "No solution found when resolving dependencies: Because x was not found"),
    ("error: No solution found\n  cause: Because a needs b==1\n         And because you require b==2, no.\n",
     "No solution found: Because a needs b==1 And because you require b==2, no."),
    ("error: Failed to fetch\n  Caused by: no route\n", "Failed to fetch: no route"), ("Killed\n", ""),
])  # fmt: skip
def test_what_is_wrong_is_read_from_the_output_of_each_tool(output: str, why: str) -> None:
    assert tools.problem(output.splitlines()) == why
