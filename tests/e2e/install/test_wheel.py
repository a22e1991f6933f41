"""The wheel: built offline, used from another directory than the checkout; and uninstalled as docs/install.md says."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cloud_tpu_emulator.daemon import control
from tests import ROOT
from tests.cli_fixture import Cli, sandbox
from tests.waiting import until

pytestmark = pytest.mark.ci
PACKAGES = ("orchestrator", "cloud_tpu_emulator", "payload", "tpujob")
SLEEP = """\
tpu: {accelerator: v5litepod-8, zone: us-central1-a}
command: echo started; sleep 600
limits: {max_duration: 20m}
"""


@dataclass(frozen=True)
class Installed:
    source: Path  # what the wheel was built from
    wheel: Path
    venv: Path

    @property
    def python(self) -> str:
        return str(self.venv / "bin" / "python")

    @property
    def tpujob(self) -> str:
        return str(self.venv / "bin" / "tpujob")


def pip(*words: str) -> None:
    """Run pip, which needs not be in the environment of the tests: the Python that it was made from has it."""
    for python in (sys.executable, sys._base_executable):  # type: ignore[attr-defined]
        if subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0:
            argv = [python, "-m", "pip", "--disable-pip-version-check", *words]
            done = subprocess.run(argv, capture_output=True, text=True, env=clean(), check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            return
    raise AssertionError("no pip: install it into this environment, or into the Python that it was made from")


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    for folder in (*PACKAGES, "jobs"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    offline = ("--no-index", "--no-deps")
    pip("--python", sys.executable, "wheel", *offline, "--no-build-isolation", "-w", str(place / "dist"), str(source))
    assert not (source / "build").exists(), "a later wheel would hold what is deleted by then"
    (wheel,) = (place / "dist").glob("tpujob-*.whl")
    venv = place / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    pip("--python", str(venv / "bin" / "python"), "install", *offline, str(wheel))
    (site,) = venv.glob("lib/python*/site-packages")
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "libraries.pth").write_text("".join(f"{path}\n" for path in sorted(libraries)))
    return Installed(source, wheel, venv)


@pytest.fixture
def wheel_cli(cli: Cli, installed: Installed) -> Iterator[Cli]:
    """`tpujob` of the wheel, without any path to the checkout."""
    del cli.env["PYTHONPATH"]
    cli.program = ("env", "--unset=PYTHONPATH", installed.tpujob)
    yield cli
    cli("emulator", "stop", "--yes")


def test_the_wheel_holds_every_module_and_every_file_that_they_read(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    folders = {folder: folder for folder in PACKAGES} | {"jobs": "orchestrator/examples"}
    expected = {
        str(Path(target, path.relative_to(installed.source / folder)))
        for folder, target in folders.items()
        for path in (installed.source / folder).rglob("*")
        if path.is_file() and path.suffix not in (".md", ".pyc")
    }
    assert names == expected


def test_the_installed_command_is_the_wheels(installed: Installed, tmp_path: Path) -> None:
    code = "import orchestrator, payload, tpujob; print(orchestrator.ROOT, payload.__path__[0], tpujob.__path__[0])"
    found = subprocess.run(
        [installed.python, "-c", code], cwd=tmp_path, env=clean(), capture_output=True, text=True, check=True
    ).stdout.split()
    assert all(Path(path).is_relative_to(installed.venv.resolve()) for path in found), found


def test_an_example_is_copied_and_runs_on_the_emulator(wheel_cli: Cli) -> None:
    assert wheel_cli("--version").stdout.startswith("tpujob ")
    copied = wheel_cli("init", "--example", "hello")
    assert (copied.returncode, copied.stdout) == (0, "jobs/hello.yaml\n"), copied.text
    again = wheel_cli("init", "--example", "hello")
    assert again.returncode == 64 and again.stderr.startswith("jobs/hello.yaml exists; nothing was copied\n")
    assert "jax\t" in wheel_cli("init", "--example").stdout
    done = wheel_cli("run", "jobs/hello.yaml")
    assert done.returncode == 0, done.text
    assert "worker0 | hello from worker 0 of 1" in done.stdout
    assert "/report.html · tpujob show" in done.stderr, "the wheel has what a page is made of"
    assert wheel_cli.alive() == [] and wheel_cli.lived() == 1


def test_bash_completes_the_commands_of_the_installed_one(wheel_cli: Cli, installed: Installed) -> None:
    script = """
        eval "$(tpujob --show-completion)"
        COMP_WORDS=(tpujob install) COMP_CWORD=1
        _tpujob_completion tpujob
        echo "${COMPREPLY[@]}"
    """
    path = f"{installed.venv / 'bin'}:{os.environ['PATH']}"
    env = clean() | wheel_cli.env | {"PATH": path}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "install-gc\n", done.stderr


@pytest.mark.exhaustive
def test_kill_9_is_followed_by_the_deletion_by_the_guardian_of_the_wheel(wheel_cli: Cli) -> None:
    wheel_cli.env |= {"TPUJOB_GUARDIAN": "on", "TPUJOB_EMULATED_SPEED": "1"}
    process = wheel_cli.start("run", wheel_cli.job(SLEEP))
    wheel_cli.until("started", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    until(lambda: not wheel_cli.alive(), "the deletion")
    deleted = [call["caller"] for call in wheel_cli.requests("nodes.delete") if call["status"] == 200]
    assert set(deleted) == {"client"}, "it was not the guardian"


@pytest.mark.exhaustive
def test_a_disaster_is_rehearsed(wheel_cli: Cli) -> None:
    done = wheel_cli("drill", "--only", "1")
    assert done.returncode == 0, done.text
    assert "1 of 1 promises kept, nothing left behind" in done.text


PAGE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE.split("\n## Uninstall\n")[1], re.MULTILINE | re.DOTALL)
USED = """
tpujob run --accelerator v5e-8 --zone us-central1-a -- sh -c 'echo 1 > "$TPUJOB_ARTIFACTS/x"'
tpujob run --set on=local -- true
tpujob up mine --zone us-central1-a
tpujob --install-completion
mkdir -p ~/.config/tpujob ~/.cache/tpujob/data
echo 'zone: us-central1' > ~/.config/tpujob/settings.yaml
grep -q tpujob.sh ~/.bashrc
"""


class Shell:
    """bash with a home of its own, in which `tpujob` is a command."""

    def __init__(self, directory: Path) -> None:
        self.environ = (
            os.environ | sandbox(directory) | {"TPUJOB_STATE_DIR": "", "XDG_STATE_HOME": "", "XDG_CACHE_HOME": ""}
        )
        self.home, self.work, programs = directory / "home", directory / "work", directory / "bin"
        for made in (self.work, programs):
            made.mkdir()
        (programs / "tpujob").write_text(
            f'#!/bin/sh\nexec {shlex.join([sys.executable, "-m", "orchestrator.cli"])} "$@"\n'
        )
        (programs / "tpujob").chmod(0o755)
        self.environ["PATH"] = f"{programs}:{self.environ['PATH']}"
        (self.home / ".bashrc").write_text("# mine\n")

    def __call__(self, block: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", block], cwd=self.work, env=self.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    started = Shell(tmp_path)
    yield started
    control.stop(started.home / ".local" / "state" / "tpujob" / "emulator")


@pytest.mark.exhaustive
def test_nothing_is_left_in_the_home_and_nothing_is_billed(shell: Shell) -> None:
    shell(USED)
    ended, deleted = BLOCKS
    assert "absent (checked" in shell(ended)
    shell(deleted)
    left = {str(path.relative_to(shell.home)): path.read_text() for path in shell.home.rglob("*") if path.is_file()}
    assert {name: text.strip() for name, text in left.items()} == {".bashrc": "# mine"}
